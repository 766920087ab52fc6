"""What makes schedulers fast chooses as the plain rule does, whatever the servers' weights and counters are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.world import World

from uvs.engine.core import AF_INET, DestFlag, Header
from uvs.ipvs.scheduling import Comparing, find, mh
from uvs.ipvs.services import Dest, DestSpec, Service

ANY = Header()
counts = st.integers(0, 3) | st.integers(0, 2**28)
# weight, active, inactive, overloaded
states = st.tuples(
    st.integers(0, 3) | st.integers(0, 2**31 - 1), counts, counts, st.sampled_from([0, 0, 0, 1])
)


def add(world: World, svc: Service, n: int, weight: int = 1) -> None:
    addr = (0x0A000000 + n).to_bytes(4, "big")
    world.ipvs.services.add_dest(svc.key, DestSpec(AF_INET, addr, 80, weight=weight))


def with_servers(world: World, sched: str, servers: list[tuple[int, int, int, int]]) -> Service:
    svc = world.service(sched=sched)
    for n, (weight, *_) in enumerate(servers):
        add(world, svc, n, weight)
    for dest, (_, active, inactive, over) in zip(reversed(svc.dests), servers, strict=True):
        dest.rec.activeconns, dest.rec.inactconns = active, inactive
        dest.rec.flags |= DestFlag.OVERLOAD * over
    return svc


@pytest.fixture(scope="module")
def world() -> Any:
    with_it = World(100_000)
    yield with_it
    with_it.close()


def renewed(world: World) -> World:
    """Without services and their remains."""
    world.ipvs.services.flush()
    for _ in range(4):
        world.pass_time(61)
        world.ipvs.services.expire_trash(world.now)
    return world


@pytest.mark.parametrize("sched", ["lc", "wlc", "sed", "nq", "fo", "ovf", "lblc", "lblcr"])
@given(servers=st.lists(states, max_size=8), gone=st.integers(0, 8))
def test_the_engine_compares_as_the_scheduler_says(world, sched, servers, gone):
    svc = with_servers(renewed(world), sched, servers)
    if gone < len(svc.dests):
        world.ipvs.services.del_dest(svc.key, *svc.dests[gone].id)
    scheduler = svc.scheduler
    assert isinstance(scheduler, Comparing)
    assert scheduler.sched.records == [d.rec.index for d in svc.dests]
    assert scheduler.find(scheduler.rule) is scheduler.choose()
    for dest in svc.dests if sched.startswith("lblc") else []:
        light = any(d.rec.activeconns * 2 < d.weight for d in svc.dests)
        assert scheduler.overloaded(dest) == (dest.rec.activeconns > dest.weight and light)


def wrr(dests: list[Dest], last: int, cw: int, di: int, mw: int) -> tuple[Dest | None, int, int]:
    """ip_vs_wrr_schedule, step by step: the chosen destination, its place from 1, and cw."""
    if not mw:
        return None, last, cw
    start, stop_after = last, 0
    last_pass = restarted = False
    while True:
        for at in range(last, len(dests)):
            last = at + 1
            if not dests[at].overloaded and dests[at].weight >= cw:
                return dests[at], last, cw
            if last == stop_after:
                return None, last, cw
        last = 0
        last_pass = last_pass or cw <= di
        cw -= di
        if cw <= 0:
            cw = mw
            if (restarted and last_pass) or not start:
                return None, last, cw
            restarted, last_pass = True, False
        if restarted and cw <= di and start:
            stop_after, last_pass = start, True


small = st.tuples(st.integers(0, 40), st.just(0), st.just(0), st.integers(0, 1))
# what happens between two choices: nothing, a server is full or free again, edited, deleted, added
between = st.tuples(st.sampled_from("   ooedn"), st.integers(0, 9), st.integers(0, 40))


def changed(world: World, svc: Service, what: str, n: int, weight: int) -> None:
    if what == "n":
        if all(int.from_bytes(d.spec.addr[2:], "big") != 100 + n for d in svc.dests):
            add(world, svc, 100 + n, weight)
    elif svc.dests and what != " ":
        dest = svc.dests[n % len(svc.dests)]
        if what == "o":
            dest.rec.flags ^= DestFlag.OVERLOAD
        elif what == "e":
            world.ipvs.services.edit_dest(svc.key, DestSpec(*dest.id, weight=weight))
        else:
            world.ipvs.services.del_dest(svc.key, *dest.id)


@given(
    servers=st.lists(small, max_size=6),
    factor=st.sampled_from([1, 2, 6]),
    steps=st.lists(between, max_size=30),
)
def test_wrr_passes_over_passes_in_vain(world, servers, factor, steps):
    svc = with_servers(renewed(world), "wrr", [(w * factor, a, i, o) for w, a, i, o in servers])
    s = svc.scheduler.sched
    for what, n, weight in steps:
        changed(world, svc, what, n, weight * factor)
        before = s.last, s.cw
        expected = wrr(svc.dests, s.last, s.cw, s.di, s.mw)
        assert (svc.scheduler.choose(), s.last, s.cw) == expected
        s.last, s.cw = before
        assert (svc.scheduler.schedule(ANY), s.last, s.cw) == expected, "the engine"


def rr(dests: list[Dest], last: Dest | None) -> Dest | None:
    """ip_vs_rr_schedule."""
    start = 0 if last is None else dests.index(last) + 1
    return next((d for d in (*dests[start:], *dests[:start]) if d.usable), None)


@given(servers=st.lists(small, max_size=6), steps=st.lists(between, max_size=30))
def test_rr_knows_its_place(world, servers, steps):
    """When the last one chosen is deleted its predecessor takes its part."""
    svc = with_servers(renewed(world), "rr", servers)
    s, last = svc.scheduler.sched, None
    for what, n, weight in steps:
        before = list(svc.dests)
        changed(world, svc, what, n, weight)
        if last and last not in svc.dests:
            last = before[before.index(last) - 1] if before.index(last) else None
        expected = rr(svc.dests, last)
        place = s.last
        assert svc.scheduler.choose() is expected
        s.last = place
        assert svc.scheduler.schedule(ANY) is expected, "the engine"
        last = expected or last
        assert s.last == (svc.dests.index(last) + 1 if last else 0)


@pytest.mark.parametrize("sched", ["dh", "sh", "mh"])
@given(servers=st.lists(small, max_size=4), steps=st.lists(between, max_size=8))
def test_a_table_filled_late_is_the_same(world, sched, servers, steps):
    svc = with_servers(renewed(world), sched, servers)
    for what, n, weight in steps:
        changed(world, svc, what, n, weight)
        if n % 2:
            svc.scheduler.table  # noqa: B018 (used between some of the changes)
    assert svc.scheduler.table == find(sched)(svc, lambda: 0, world.ipvs.sysctl).table


@pytest.mark.parametrize("used", [True, False])
def test_mh_of_more_servers_than_slots_keeps_its_table(world, used, monkeypatch):
    """EINVAL in ip_vs_mh_reassign_table, which nobody hears."""
    monkeypatch.setattr(mh, "SIZE", 5)
    svc = with_servers(renewed(world), "mh", [(1, 0, 0, 0)] * 5)
    expected = find("mh")(svc, lambda: 0, world.ipvs.sysctl).table
    if used:
        assert svc.scheduler.table == expected
    add(world, svc, 10)
    add(world, svc, 11)
    assert svc.scheduler.table == expected
    world.ipvs.services.del_dest(svc.key, *svc.dests[0].id)
    assert svc.scheduler.table == expected
    world.ipvs.services.del_dest(svc.key, *svc.dests[0].id)
    assert svc.scheduler.table == expected
    world.ipvs.services.del_dest(svc.key, *svc.dests[0].id)
    assert set(svc.scheduler.table) == set(svc.dests)
