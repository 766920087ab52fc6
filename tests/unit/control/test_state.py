"""The saved table: what comes back, and what becomes of a file that is damaged."""

import json
import os
import stat

import pytest
from support.world import World, packed

from uvs.control import state
from uvs.control.ipvs_family import set_timeouts, timeouts
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)


@pytest.fixture
def world():
    w = World()
    yield w
    w.close()


@pytest.fixture
def saved(tmp_path):
    return state.SavedTable(tmp_path / "table.json")


def furnish(world):
    services = world.ipvs.services
    services.add_service(ServiceSpec(KEY, "wlc", 1, 360, 0xFFFFFF00))
    services.add_service(ServiceSpec(ServiceKey(10, 17, packed("2001:db8::1"), 53), "rr", 4, netmask=128))
    services.add_service(ServiceSpec(ServiceKey(2, 6, b"", 0, 7), "wrr"))
    for i in range(1, 5):
        services.add_dest(KEY, DestSpec(2, packed(f"10.0.1.{i}"), 80 + i, i % 2 * 3, i, 20 * i, i))
    services.add_dest(KEY, DestSpec(10, packed("2001:db8::9"), 80, 2, 0))
    set_timeouts(world.table, 100, 50, 25)
    world.ipvs.sysctl.set("expire_nodest_conn", 1)
    world.ipvs.sysctl.set("sync_threshold", "4 0")
    world.ipvs.sysctl.set("sync_qlen_max", "18446744073709551615")
    world.ipvs.sysctl.set("est_cpulist", "")


def everything(world):
    return (
        [(svc.spec, [dest.spec for dest in svc.dests]) for svc in world.ipvs.services],
        timeouts(world.table),
        {name: world.ipvs.sysctl.get(name) for name in world.ipvs.sysctl.names()},
    )


def test_all_of_it_comes_back_in_order(world, saved):
    furnish(world)
    saved.save(world.ipvs)
    again = World()
    assert state.SavedTable(saved.path).restore(again.ipvs) == ""
    services, times, sysctls = everything(again)
    for spec, _ in services:
        if spec.key.fwmark:
            spec.key = spec.key._replace(addr=b"")
    assert (services, times, sysctls) == everything(world)
    again.close()


def test_only_the_owner_reads_it_and_nothing_else_is_left(world, saved, tmp_path):
    furnish(world)
    old = os.umask(0)
    try:
        saved.save(world.ipvs)
    finally:
        os.umask(old)
    assert stat.S_IMODE(saved.path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [saved.path]


def files(saved):
    return sorted(path.name for path in saved.path.parent.iterdir())


def test_a_change_costs_a_line(world, saved):
    """The table is written once; a change is appended to the journal, and nothing without one."""
    saved.restore(world.ipvs)
    saved.save(world.ipvs)
    assert files(saved) == ["table.json"]
    furnish(world)
    saved.save(world.ipvs)
    saved.save(world.ipvs)
    assert files(saved) == ["table.json", "table.json.1"]
    journal = saved.path.with_name("table.json.1")
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    before = journal.stat().st_size
    world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=81)))
    saved.save(world.ipvs)
    assert 0 < journal.stat().st_size - before < 400


def test_a_long_journal_is_made_a_table(world, saved, monkeypatch):
    monkeypatch.setattr(state, "JOURNAL_MIN", 20)
    saved.restore(world.ipvs)
    for port in range(1, 50):
        world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=port)))
        saved.save(world.ipvs)
    assert len(files(saved)) <= 2
    assert len(state.SavedTable(saved.path).load()[0].services) == 49


@pytest.fixture
def journalled(world, saved):
    """A table with one service, and a journal with the others."""
    saved.restore(world.ipvs)
    world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=79)))
    saved.save(world.ipvs)
    furnish(world)
    saved.save(world.ipvs)
    return saved.path.with_name("table.json.1")


def test_a_torn_last_line_was_never_acknowledged(saved, journalled):
    text = journalled.read_bytes()
    for cut in (1, 10):
        journalled.write_bytes(text[:-cut])
        loaded, message = saved.load()
        assert (len(loaded.services), message) == (4, "")
        assert loaded.timeouts == (900, 120, 300)  # the last line was the settings


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b'["add_dest", [2, 6, "0a000001", 99, 0], {}]',
        b'["del_service", [2, 6, "0a000001", 99, 0]]',
        b'["add_service", 7]',
        b'["add_service", [[]], {}]',
        b'["frobnicate", [2, 6, "0a000001", 80, 0]]',
        b'{"timeouts": 1}',
    ],
)
def test_a_damaged_journal_is_set_aside(saved, journalled, line):
    journalled.write_bytes(journalled.read_bytes() + line + b"\n")
    loaded, message = saved.load()
    assert message.startswith("the journal of the saved table is damaged (")
    assert len(loaded.services) == 1  # what is whole
    assert files(saved) == ["table.json", "table.json.damaged"]


def test_a_journal_of_an_older_table_is_never_read(world, saved, journalled):
    old = journalled.read_bytes()
    again = World()
    other = state.SavedTable(saved.path)
    other.restore(again.ipvs)
    other.save(again.ipvs)
    assert files(saved) == ["table.json"]
    journalled.write_bytes(old)  # as if the crash came before it was removed
    loaded, message = state.SavedTable(saved.path).load()
    assert (len(loaded.services), message) == (4, "")
    again.close()


def test_a_failed_write_leaves_the_old_table_and_is_made_good(world, saved, monkeypatch):
    furnish(world)
    saved.save(world.ipvs)
    before = saved.path.read_bytes()
    world.ipvs.services.flush()
    other = state.SavedTable(saved.path)
    with monkeypatch.context() as m:
        m.setattr(os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises(OSError, match=r"cannot be saved to .*table\.json: No space left"):
            other.save(world.ipvs)
    assert saved.path.read_bytes() == before
    other.save(world.ipvs)  # what the failed try left is no hindrance
    assert saved.path.read_bytes() != before


def test_no_file_is_an_empty_table(world, saved):
    assert saved.restore(world.ipvs) == ""
    assert everything(world)[0] == []


def damaged(text, what):
    top = json.loads(text)
    what(top)
    return json.dumps(top).encode()


DAMAGE = [
    ("empty", lambda text: b""),
    ("torn", lambda text: text[: len(text) // 2]),
    ("no text", lambda text: b"\xff\xfe\0" * 100),
    ("no object", lambda text: b"[1, 2]"),
    ("deeply nested", lambda text: b"[" * 100_000),
    ("another version", lambda text: damaged(text, lambda t: t.update(version=99))),
    ("no services", lambda text: damaged(text, lambda t: t.pop("services"))),
    ("services of another kind", lambda text: damaged(text, lambda t: t.update(services={}))),
    ("two time-outs", lambda text: damaged(text, lambda t: t.update(timeouts=[1, 2]))),
    ("a time-out below 0", lambda text: damaged(text, lambda t: t.update(timeouts=[1, 2, -1]))),
    ("a port out of range", lambda text: damaged(text, lambda t: t["services"][0].update(port=65536))),
    ("a port that is true", lambda text: damaged(text, lambda t: t["services"][0].update(port=True))),
    ("an address of another family", lambda text: damaged(text, lambda t: t["services"][0].update(family=10))),
    ("no address", lambda text: damaged(text, lambda t: t["services"][0].update(address="x"))),
    ("a NUL in an address", lambda text: damaged(text, lambda t: t["services"][0].update(address="1\0"))),
    ("a family unknown", lambda text: damaged(text, lambda t: t["services"][0].update(family=1))),
    ("a service twice", lambda text: damaged(text, lambda t: t["services"].append(t["services"][0]))),
    ("a server twice", lambda text: damaged(text, lambda t: t["services"][0]["servers"].extend(t["services"][0]["servers"]))),
    ("a weight below 0", lambda text: damaged(text, lambda t: t["services"][0]["servers"][0].update(weight=-1))),
    ("a server of another kind", lambda text: damaged(text, lambda t: t["services"][0]["servers"].append(7))),
    ("a sysctl of another kind", lambda text: damaged(text, lambda t: t["sysctls"].update(pmtu_disc=[]))),
]  # fmt: skip


@pytest.mark.parametrize(("shows", "damage"), DAMAGE)
def test_a_damaged_file_is_set_aside(world, saved, shows, damage):
    furnish(world)
    text = damage(state.encode(world.ipvs))
    saved.path.write_bytes(text)
    empty = World()
    message = saved.restore(empty.ipvs)
    assert message.startswith("the saved table is damaged (")
    assert str(saved.path) + ".damaged" in message
    assert everything(empty)[0] == []
    assert not saved.path.exists()
    assert saved.path.with_name("table.json.damaged").read_bytes() == text
    empty.close()


def test_a_sysctl_of_another_version_is_told_and_passed_over(world, saved):
    furnish(world)
    saved.path.write_bytes(damaged(state.encode(world.ipvs), lambda t: t["sysctls"].update(nosuch="1")))
    again = World()
    assert "nosuch" in saved.restore(again.ipvs)
    assert len(again.ipvs.services) == 3
    again.close()
