"""Services as packets find them (csrc/service.c), and what their schedulers keep (csrc/sched.c)."""

from __future__ import annotations

from typing import Any

import pytest
from support.fastworld import FastWorld
from support.world import CIP, CIP6, DROUTE, RIP, RIP6, VIP, VIP6, World, tcp

from uvs.engine.core import Kind, Sched


@pytest.fixture
def world() -> Any:
    w = FastWorld(World())
    yield w
    w.close()


def taken(world: FastWorld, vip: str, port: int, cport: int, mark: int = 0) -> bool:
    """Is a SYN done by the fast path?"""
    before = world.fast
    client = CIP6 if ":" in vip else CIP
    world.local_in(tcp(client, cport, vip, port), mark=mark)
    return world.fast > before


def test_many_services_are_found_until_they_are_deleted(world: FastWorld) -> None:
    ports = range(1000, 1300)
    for port in ports:
        world.server(world.service(VIP, port), RIP[1 + port % 3], 80)
        assert not taken(world, VIP, port, 1)
    assert all(taken(world, VIP, port, 2) for port in ports)
    for svc in list(world.ipvs.services)[::2]:
        world.ipvs.services.del_service(svc.key)
    assert [taken(world, VIP, port, 3) for port in ports] == [port % 2 == 1 for port in ports]


def test_what_tells_services_apart(world: FastWorld) -> None:
    """Family, protocol, address, port; or family and mark."""
    world.server(world.service(VIP, 80), RIP[1], 80)
    assert not taken(world, VIP, 80, 1)
    assert taken(world, VIP, 80, 2)
    for vip, port, mark in ("198.18.0.101", 80, 0), (VIP, 81, 0), (VIP6, 80, 0):
        assert not taken(world, vip, port, 3, mark)
    world.server(world.service(VIP6, fwmark=5), RIP6[1], 80)
    assert taken(world, VIP, 80, 4, 5), "a mark of the other family only"
    assert not taken(world, VIP6, 80, 4, 5)
    assert taken(world, VIP6, 80, 5, 5)


def test_a_mark_goes_before_the_address(world: FastWorld) -> None:
    world.server(world.service(VIP, 80), RIP[1], 80)
    world.local_in(tcp(CIP, 1, VIP, 80))
    svc = world.service(fwmark=5)
    world.server(svc, RIP[2], 80)
    world.local_in(tcp(CIP, 2, VIP, 80), mark=5)
    assert taken(world, VIP, 80, 3, 5)
    assert svc.dests[0].rec.refcnt == 2
    world.edit(svc, RIP[2], fwd=DROUTE)
    assert not taken(world, VIP, 80, 4, 5), "its replies must be looked for"
    world.ipvs.services.del_service(svc.key)
    assert taken(world, VIP, 80, 5, 5)


def test_a_turn_stays_where_it_was(world: FastWorld) -> None:
    svc = world.service(sched="rr")
    sched = svc.scheduler.sched
    for i in RIP:
        world.server(svc, RIP[i])
    assert [sched.schedule() for _ in range(2)] == [0, 1]
    world.server(svc, RIP[1], 81)
    assert (sched.last, len(sched.records)) == (3, 4)
    world.delete(svc, RIP[2])
    assert sched.last == 2, "its predecessor"
    assert sched.schedule() == 2
    assert sched.records == [d.rec.index for d in svc.dests]


def test_a_table_of_places_that_are_not_there_is_none(world: FastWorld) -> None:
    svc = world.service(sched="sh")
    world.server(svc, RIP[1])
    sched = svc.scheduler.sched
    sched.fill([0] * 256)
    assert sched.slots == 256
    sched.fill([0, 1])
    assert sched.slots == 0


def test_a_scheduler_of_the_hook_path_chooses_nobody(world: FastWorld) -> None:
    svc = world.service()
    world.server(svc, RIP[1])
    sched = Sched(svc.rec, Kind.NONE)
    sched.insert(svc.dests[0].rec)
    assert sched.schedule() == -1


def test_a_closed_table_is_no_crash() -> None:
    world = World()
    svc = world.service(sched="rr")
    world.close()
    with pytest.raises(TypeError):
        svc.scheduler.sched.schedule()
