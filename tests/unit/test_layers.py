"""Layers over configured weights: what the table has, what is put back, what others' changes lead to."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from support.world import RIP, VIP, World, packed

from uvs.control import state
from uvs.ipvs.spec import DestSpec, IpvsError
from uvs.layers import Health, Layers, id_of, text

DOWN, GONE = Health(up=False), Health(up=False, remove=True)


class Place:
    """A service of two servers, of weights 4 and 2, on paper, and its layers."""

    def __init__(self, path=None, arena=None):
        self.world = World(path=arena)
        self.now = 1000.0
        self.layers = Layers(self.world.ipvs.services, lambda: self.now)
        self.saved = state.SavedTable(path, "boot", layers=self.layers) if path else None
        if self.saved:
            assert self.saved.restore(self.world.ipvs) == []
        self.commits = 0
        self.layers.commit = self._commit

    def _commit(self):
        self.commits += 1

    def furnish(self):
        self.svc = self.world.service()
        for i, weight in ((1, 4), (2, 2)):
            self.world.server(self.svc, RIP[i], weight=weight)
        return self

    @property
    def key(self):
        return next(iter(self.world.ipvs.services)).key

    def weights(self):
        """Last number of a server's address: its effective weight."""
        svc = self.world.ipvs.services.get(self.key)
        return {d.spec.addr[-1] - 10: d.weight for d in svc.dests}

    def edit(self, i, weight):
        self.world.edit(self.svc, RIP[i], weight=weight)
        self.layers.settle()


def server(i):
    return 2, packed(RIP[i]), 80


def spec(i, weight=1):
    return DestSpec(2, packed(RIP[i]), 80, weight=weight)


@pytest.fixture
def place():
    it = Place().furnish()
    yield it
    it.world.close()


@pytest.mark.parametrize(
    ("health", "weight"),
    [
        (None, 4),
        (Health(), 4),
        (DOWN, 0),
        (Health(weight=10), 10),
        (Health(weight=0), 0),
        (Health(share=0.5), 2),
        (Health(share=0.01), 1),  # at least 1
        (Health(weight=10, share=0.25), 2),
        (Health(up=False, weight=10), 0),
    ],
)
def test_the_effective_weight(place, health, weight):
    place.layers.set_health(place.key, server(1), health)
    assert place.weights() == {1: weight, 2: 2}
    place.layers.set_health(place.key, server(1), None)
    assert place.weights() == {1: 4, 2: 2}


def test_a_server_that_was_configured_as_zero_stays_at_zero(place):
    place.edit(1, 0)
    place.layers.set_health(place.key, server(1), Health(weight=9))
    assert place.weights()[1] == 0


def test_what_is_set_by_hand_is_the_configured_weight(place):
    place.layers.set_health(place.key, server(1), DOWN)
    place.edit(1, 7)
    assert place.weights()[1] == 0
    place.layers.set_health(place.key, server(1), Health(share=0.5))
    assert place.weights()[1] == 4  # of 7
    place.edit(1, 20)
    assert place.weights()[1] == 10


def test_a_server_that_is_removed_comes_back_as_it_is_configured(place):
    place.layers.set_health(place.key, server(1), GONE)
    assert place.weights() == {2: 2}
    assert place.layers.configured(place.svc)[server(1)] == spec(1, 4)
    place.layers.hold(place.key, server(1), spec(1, 9))
    place.layers.set_health(place.key, server(1), Health())
    assert place.weights() == {1: 9, 2: 2}
    assert place.layers.of(place.key, server(1)).held is None


def test_no_hand_brings_a_dead_server_back(place):
    place.layers.set_health(place.key, server(1), GONE)
    place.world.server(place.svc, RIP[1], weight=3)
    assert place.weights()[1] == 0  # not for a packet
    place.layers.settle()
    assert place.weights() == {2: 2}
    place.layers.set_health(place.key, server(1), Health())
    assert place.weights() == {1: 3, 2: 2}


def test_health_outlives_the_server_and_the_service(place):
    place.layers.set_health(place.key, server(1), DOWN)
    place.world.ipvs.services.flush()
    place.furnish()
    place.layers.settle()
    assert place.weights() == {1: 0, 2: 2}


def test_only_what_checks_tell_beside_their_finding_is_no_change(place):
    place.layers.set_health(place.key, server(1), DOWN)
    told, before = [], place.commits
    place.layers.observers.append(lambda *what: told.append(what))
    place.layers.set_health(place.key, server(1), replace(DOWN, about={"checks": 3}))
    assert (told, place.commits) == ([], before)
    assert next(row for row in place.layers.rows() if row.server == server(1)).layer.health.about == {
        "checks": 3
    }


def test_the_fallback_server_is_in_the_table_exactly_while_it_is_set(place):
    layers, sorry = place.layers, spec(3, 1)
    layers.set_fallback(place.key, sorry)
    assert place.weights() == {1: 4, 2: 2, 3: 1}
    assert id_of(sorry) not in layers.configured(place.svc)
    place.world.delete(place.svc, RIP[3])
    layers.settle()
    assert 3 in place.weights()
    layers.set_fallback(place.key, None)
    assert place.weights() == {1: 4, 2: 2}
    layers.set_fallback(place.key, sorry)
    place.world.ipvs.services.flush()
    place.furnish()
    layers.settle()
    assert 3 in place.weights()


def test_a_fallback_server_is_no_server_of_the_service(place):
    with pytest.raises(IpvsError) as error:
        place.layers.set_fallback(place.key, spec(2))
    assert error.value.errno == errno.EEXIST
    with pytest.raises(IpvsError):
        place.layers.set_fallback(place.key, DestSpec(10, bytes(15) + b"\1", 80))
    assert place.weights() == {1: 4, 2: 2}
    assert place.layers.fallback(place.key) is None


# ---------------------------------------------------------------- drains


def test_a_drain_waits_for_connections_and_removes(place):
    place.layers.drain(place.key, server(1))
    assert place.weights()[1] == 0
    place.svc.dest(*server(1)).rec.activeconns = 1
    place.layers.second()
    assert 1 in place.weights()
    place.svc.dest(*server(1)).rec.activeconns = 0
    place.svc.dest(*server(1)).rec.inactconns = 1
    place.layers.second()
    assert 1 in place.weights()
    place.svc.dest(*server(1)).rec.inactconns = 0
    place.layers.second()
    assert place.weights() == {2: 2}
    assert list(place.layers.draining()) == []


def test_templates_count_unless_they_do_not_steer(place):
    place.layers.drain(place.key, server(1))
    place.svc.dest(*server(1)).rec.persistconns = 1
    place.layers.second()
    assert 1 in place.weights()
    place.world.ipvs.sysctl.set("expire_quiescent_template", 1)
    place.layers.second()
    assert 1 not in place.weights()


def test_a_deadline(place):
    place.layers.drain(place.key, server(1), 10)
    place.svc.dest(*server(1)).rec.activeconns = 1
    place.now += 9.9
    place.layers.second()
    assert 1 in place.weights()
    place.now += 0.2
    place.layers.second()
    assert 1 not in place.weights()


def test_cancelled_it_has_its_weight_again(place):
    place.layers.drain(place.key, server(1))
    place.layers.cancel(place.key, server(1))
    assert place.weights() == {1: 4, 2: 2}
    with pytest.raises(IpvsError) as error:
        place.layers.cancel(place.key, server(1))
    assert error.value.errno == errno.ENOENT


def test_a_weight_by_hand_ends_a_drain_but_zero_does_not(place):
    place.layers.drain(place.key, server(1))
    place.edit(1, 0)
    assert [each[1] for each in place.layers.draining()] == [server(1)]
    place.edit(1, 5)
    assert list(place.layers.draining()) == []
    assert place.weights()[1] == 5


def test_a_drained_server_that_is_configured_is_kept_out_until_it_is_cancelled(place):
    place.layers.entries = {(place.key.lookup, server(1)): spec(1, 4)}
    place.layers.drain(place.key, server(1))
    place.layers.second()
    assert place.weights() == {2: 2}
    ((_, _, drain),) = place.layers.draining()
    assert drain.done
    place.layers.second()
    place.layers.cancel(place.key, server(1))
    assert place.weights() == {1: 4, 2: 2}


def test_a_drain_of_a_dead_server(place):
    place.layers.set_health(place.key, server(1), GONE)
    place.layers.drain(place.key, server(1))
    place.layers.second()
    place.layers.set_health(place.key, server(1), Health())
    assert place.weights() == {2: 2}


def test_what_is_drained_must_be_there(place):
    for key, who, number in (
        (place.key, server(3), errno.ENOENT),
        (place.key._replace(port=81), server(1), errno.ESRCH),
        (place.key, server(3), errno.EBUSY),  # by now the fallback server: its service would have none
    ):
        if number == errno.EBUSY:
            place.layers.set_fallback(place.key, spec(3))
        with pytest.raises(IpvsError) as error:
            place.layers.drain(key, who)
        assert error.value.errno == number


# ---------------------------------------------------------------- saved


@pytest.mark.parametrize("rewritten", [False, True], ids=["journal", "table"])
def test_layers_outlive_the_director(tmp_path, rewritten):
    """Killed: the files are as the last save left them; restored, no dead server has a weight."""
    before = Place(tmp_path / "table", str(tmp_path / "arena")).furnish()
    layers, key = before.layers, before.key
    before.saved.save(before.world.ipvs)  # a table; what follows are journal lines
    layers.set_health(key, server(1), Health(up=False, about={"reason": "refused"}))
    layers.drain(key, server(2), 60)
    before.world.server(before.svc, RIP[3], weight=3)
    layers.set_health(key, server(3), Health(up=False, remove=True, share=0.5, weight=8))
    layers.set_fallback(key, DestSpec(2, packed(VIP), 8080))
    before.saved.save(before.world.ipvs)
    if rewritten:
        rewriting = before.saved.rewrite(before.world.ipvs)
        list(rewriting.steps())
        rewriting.finish()
    kept = list(layers.every()), list(layers.fallbacks()), before.weights()
    before.saved.close()
    before.world.close()

    after = Place(tmp_path / "table", str(tmp_path / "arena"))
    assert (list(after.layers.every()), list(after.layers.fallbacks()), after.weights()) == kept
    after.now += 61
    after.layers.second()
    after.layers.set_health(key, server(1), Health())
    after.layers.set_health(key, server(3), None)
    after.layers.set_fallback(key, None)
    assert after.weights() == {1: 4, 3: 3}
    assert list(after.layers.every()) == [(key, server(1), after.layers.of(key, server(1)))]
    after.world.close()


@pytest.mark.parametrize(
    ("who", "shown"),
    [((2, packed(RIP[1]), 80), f"{RIP[1]}:80"), ((10, packed("2001:db8::1"), 1), "[2001:db8::1]:1")],
)
def test_a_server_in_words(who, shown):
    assert text(who) == shown
