"""Services over a table that an earlier run left."""

from __future__ import annotations

import errno
import gc
from dataclasses import replace

import pytest
from support.world import CIP, DROUTE, MASQ, RIP, RIP6, TUNNEL, VIP, VIP6, World, packed, tcp

from uvs.engine.core import AF_INET, TUN_GRE, TUN_GUE, TUN_IPIP
from uvs.ipvs.scheduling import Scheduler
from uvs.ipvs.services import Dest, IpvsError, Service


def test_counters_of_an_earlier_run_are_no_rates_of_this_one():
    world = World()
    svc = world.service()
    world.server(svc, RIP[1])
    for port in range(1024, 1124):
        world.local_in(tcp(CIP, port, VIP, 80))
    # The records stay, as in an arena; who knew them is gone.
    again = type(world.ipvs)(world.table, world.routes, world.ipvs.clock)
    again.services.attach([(svc.spec, [svc.dests[0].spec])])
    (same,) = again.services
    again.services.estimate()
    for est in (again.services.total, same.est, same.dests[0].est):
        assert (est.counters[:2], est.rates) == ((100, 100), (0, 0, 0, 0, 0))
    world.close()


@pytest.fixture
def restarted(tmp_path):
    """A director after a change, and the one that takes its arena over."""
    worlds = []

    def restart(before):
        saved = [(svc.spec, [d.spec for d in svc.dests]) for svc in before.ipvs.services]
        before.close()
        after = World(path=str(tmp_path / "connections"), now=before.now)
        after.ipvs.services.attach(saved)
        worlds.append(after)
        return after

    first = World(path=str(tmp_path / "connections"))
    yield first, restart
    worlds[-1].close()


def test_zeroed_counters_stay_zeroed(restarted):
    """Over a restart too: of each service and server, and of all."""
    world, restart = restarted
    svc = world.service()
    dest, services = world.server(svc, RIP[1]), world.ipvs.services

    def syns(world, first, count):
        for port in range(first, first + count):
            world.local_in(tcp(CIP, port, VIP, 80))
        world.ipvs.services.estimate()

    def shown(world):
        (svc,) = world.ipvs.services
        return [o.counters[0] for o in (svc.est, svc.dests[0].est, world.ipvs.services.total)]

    syns(world, 1024, 100)
    services.zero(svc.key)
    syns(world, 2000, 3)
    assert shown(world) == [3, 3, 103]
    again = restart(world)
    assert shown(again) == [3, 3, 103]
    again.ipvs.services.zero(None)
    syns(again, 3000, 2)
    last = restart(again)
    assert shown(last) == [2, 2, 2]
    assert (svc.est.rates[0], last.table.total.raw[0]) == (0, 105)
    assert dest.est.counters[0] == 3


@pytest.mark.parametrize(
    ("added", "edited", "last"), [(5, [0], 5), (5, [2, 0, 0], 2), (0, [], 0), (0, [3, 0], 3), (4, [], 4)]
)
def test_the_last_weight_outlives_the_process(restarted, added, edited, last):
    """mh gives a quiesced server the slots of the weight that it had (ip_vs_mh_gcd_weight)."""
    world, restart = restarted
    svc = world.service(sched="mh")
    world.server(svc, RIP[1], weight=added)
    world.server(svc, RIP[2], weight=1)
    for weight in edited:
        world.edit(svc, RIP[1], weight=weight)

    def table(svc):
        return [d.spec.addr for d in svc.scheduler.table]

    before = table(svc)
    (after,) = restart(world).ipvs.services
    assert [d.rec.last_weight for d in after.dests] == [1, last]
    assert table(after) == before


def test_a_deleted_server_keeps_its_counters(restarted):
    """Added again after a restart, to the service that it was of, it goes on with them."""
    world, restart = restarted
    svc = world.service()
    world.server(svc, RIP[1])
    for port in range(1024, 1044):
        world.local_in(tcp(CIP, port, VIP, 80))
    world.delete(svc, RIP[1])
    again = restart(world)
    (svc,) = again.ipvs.services
    dest = again.server(svc, RIP[1])
    again.ipvs.services.estimate()
    assert (dest.est.counters[0], dest.est.rates[0]) == (20, 0)


@pytest.mark.parametrize("protocol", [0, 1, 47, 50, 58, 255])
def test_a_service_of_any_protocol_outlives_the_process(restarted, protocol):
    """ip_vs takes any, and any method and kind of tunnel; no packet ever finds them."""
    world, restart = restarted
    svc = world.service(proto=protocol)
    world.server(svc, RIP[1], 80, 5)
    world.server(svc, RIP[2], 80, TUNNEL, tun_type=7)
    records = [svc.rec.index, *(d.rec.index for d in svc.dests)]
    again = restart(world)
    assert again.table.message == ""
    (svc,) = again.ipvs.services
    assert (svc.key.protocol, [svc.rec.index, *(d.rec.index for d in svc.dests)]) == (protocol, records)


@pytest.mark.parametrize(
    ("why", "vip", "rip", "fwd", "tunnel", "refused"),
    [
        ("gue without a port", VIP, RIP[1], TUNNEL, (TUN_GUE, 0, 0), errno.EINVAL),
        ("even where it is not used", VIP, RIP[1], DROUTE, (TUN_GUE, 0, 0), errno.EINVAL),
        ("gue", VIP, RIP[1], TUNNEL, (TUN_GUE, 6080, 2), None),
        ("gre, another family", VIP, RIP6[1], TUNNEL, (TUN_GRE, 0, 1), None),
        ("another family by NAT", VIP6, RIP[1], MASQ, (TUN_IPIP, 0, 0), errno.EINVAL),
        ("another family by direct routing", VIP, RIP6[1], DROUTE, (TUN_IPIP, 0, 0), errno.EINVAL),
        ("a type that nobody knows", VIP, RIP[1], TUNNEL, (7, 0, 0), None),
        ("flags that nobody knows", VIP, RIP[1], TUNNEL, (TUN_GRE, 0, 0x1F0), None),
    ],
)
def test_tunnels_that_are_refused(world, why, vip, rip, fwd, tunnel, refused):
    svc = world.service(vip)
    named = dict(zip(("tun_type", "tun_port", "tun_flags"), tunnel, strict=True))
    if refused is None:
        dest = world.server(svc, rip, 80, fwd, **named)
        assert (dest.spec.tun_type, dest.spec.tun_port, dest.spec.tun_flags) == tunnel
        return
    for change in world.server, world.edit:
        with pytest.raises(IpvsError) as e:
            change(svc, rip, 80, fwd, **named)
        assert e.value.errno == refused


def test_which_tunnel_leads_to_an_address(world):
    """Of several the one made last; a change of its kind counts as made anew, one of its weight does not."""

    def found(port=0):
        return world.ipvs.services.rs_table.find_tunnel(AF_INET, packed(RIP[1]), port)

    svc = world.service()
    world.server(svc, RIP[1], 80, DROUTE)
    assert found() is None
    world.server(svc, RIP[1], 81, TUNNEL)
    assert (found(), found(6080)) == (TUN_IPIP, None)
    world.server(svc, RIP[1], 82, TUNNEL, tun_type=TUN_GRE)
    world.server(svc, RIP[1], 83, TUNNEL, tun_type=TUN_GUE, tun_port=6080)
    world.server(svc, RIP[1], 84, TUNNEL, tun_type=7)
    world.server(svc, RIP[1], 85, TUNNEL, tun_port=6081)  # ipip: by port 0 alone
    assert (found(), found(6080), found(6081)) == (TUN_GRE, TUN_GUE, None)
    world.edit(svc, RIP[1], 81, TUNNEL, weight=2)
    assert found() == TUN_GRE
    world.edit(svc, RIP[1], 80, TUNNEL)
    assert found() == TUN_IPIP
    for port in (80, 82):
        world.delete(svc, RIP[1], port)
    assert found() == TUN_IPIP
    world.delete(svc, RIP[1], 81)
    assert found() is None


def test_a_flush_in_steps_leaves_what_is_made_meanwhile(world):
    services = world.ipvs.services
    svcs = [world.service(VIP, port) for port in (80, 81, 82)]
    for svc in svcs:
        world.server(svc, RIP[1])
    steps = services.flushing()
    next(steps)
    services.del_service(svcs[1].key)
    again = services.add_service(svcs[0].spec)
    another = services.add_service(replace(svcs[1].spec, sched_name="lc"))
    list(steps)
    assert list(services) == [again, another]


def test_zeroing_in_steps_passes_over_what_is_deleted_meanwhile(world):
    """Its record may be another's by then."""
    services = world.ipvs.services
    first, second = world.service(VIP, 80), world.service(VIP, 81)
    for svc in (first, second):
        world.server(svc, RIP[1])
    steps = services.zeroing()
    next(steps)
    services.del_service(second.key)
    third = world.service(VIP, 82)
    world.server(third, RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 82))
    services.estimate()
    list(steps)
    assert (first.est.counters[0], third.est.counters[0]) == (0, 1)
    with pytest.raises(IpvsError, match="no such service"):
        services.zeroing(second.key)


def test_the_trash_tells_services_apart(world):
    """What was deleted is found by service and address; a service made anew has none of its predecessor's."""
    services = world.ipvs.services
    first = world.service()
    kept = [world.server(first, RIP[1]), world.server(first, RIP[2])]
    services.del_service(first.key)
    second = world.service()
    assert set(services.trash.of(first)) == set(kept)
    assert services.trash.of(second) == []
    assert world.server(second, RIP[2]) is kept[1]
    assert list(services.trash) == [kept[0]]
    assert len(services.trash) == 1
    services.del_service(second.key)
    assert (services.trash.of(first), services.trash.of(second)) == ([kept[0]], [kept[1]])


def test_what_is_deleted_goes_without_the_garbage_collector(world):
    """The director keeps the collector from looking at services: there must be no cycles among them."""

    def known():
        return sum(isinstance(o, Service | Dest | Scheduler) for o in gc.get_objects())

    gc.collect()
    before = known()
    gc.disable()
    try:
        svc = world.service()
        world.server(svc, RIP[1])
        world.local_in(tcp(CIP, 1024, VIP, 80))
        world.edit(svc, RIP[1], weight=2)
        assert known() == before + 3
        world.ipvs.services.flush()
        del svc
        world.pass_time(1000)
        for _ in range(4):
            world.now += 61 * 10**9
            world.ipvs.services.expire_trash(world.now)
        assert known() == before
    finally:
        gc.enable()
