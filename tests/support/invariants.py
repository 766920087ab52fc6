"""What must hold of a director on paper at any time, whatever came before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from support.world import World
from uvs.engine.binding import lib
from uvs.engine.core import ConnFlag, DestFlag, Table
from uvs.ipvs.services import Dest


def dests(world: World) -> list[Dest]:
    """Those that are in use and those in the trash."""
    services = world.ipvs.services
    return [d for svc in services for d in svc.dests] + list(services.trash)


@contextmanager
def full(table: Table, left: int) -> Iterator[None]:
    """A table with room for `left` records more, the others being services that nobody knows."""
    held = []
    while record := lib.uvs_service_new(table._t):
        held.append(record)
    try:
        for _ in range(left):
            lib.uvs_service_free(table._t, held.pop())
        yield
    finally:
        for record in held:
            lib.uvs_service_free(table._t, record)


def counters_equal_the_table(world: World) -> None:
    """What servers, controllers and the table count is what connections there are."""
    table = world.table
    conns = {table.index_of(c): c for c in table.conns()}
    held: dict[int, list[int]] = {}
    for c in conns.values():
        template, inactive = c.flags & ConnFlag.TEMPLATE, c.flags & ConnFlag.INACTIVE
        held.setdefault(c.dest, [0, 0, 0])[2 if template else 1 if inactive else 0] += 1
        assert not c.flags & ConnFlag.ONE_PACKET
        assert c.remaining(world.now) <= c.timeout
    records = {rec.index: rec for rec in table.dests()}
    assert held.keys() - {0} <= records.keys()
    for index, rec in records.items():
        counted = [rec.activeconns, rec.inactconns, rec.persistconns]
        assert counted == held.get(index, [0, 0, 0])
        assert rec.refcnt == sum(counted)
        total, u, low = sum(counted[:2]), rec.u_threshold, rec.l_threshold
        over = rec.flags & DestFlag.OVERLOAD
        assert over or not u or total < u
        assert not over or (u and (total >= low if low else total * 4 >= u * 3))
    controlled = Counter(c.control for c in conns.values() if c.control)
    assert {i: c.n_control for i, c in conns.items() if c.n_control} == controlled
    info = table.info()
    templates = sum(bool(c.flags & ConnFlag.TEMPLATE) for c in conns.values())
    assert (info["conns"], info["templates"]) == (len(conns) - templates, templates)
    assert info["no_cport"] == sum(bool(c.flags & ConnFlag.NO_CPORT) for c in conns.values())


def records_have_owners(world: World) -> None:
    """Every record is somebody's, and of those that are listed each has one."""
    services = world.ipvs.services
    assert sorted(d.rec.index for d in dests(world)) == sorted(r.index for r in world.table.dests())
    gone = {d.svc.rec.index for d in services.trash}
    records = {r.index for r in world.table.services()}
    assert {svc.rec.index for svc in services} <= records <= {svc.rec.index for svc in services} | gone
    for svc in services:
        assert all(d.available and d.svc is svc and d.rec.service == svc.rec.index for d in svc.dests)
    assert not any(d.available or d.rec.service for d in services.trash)
