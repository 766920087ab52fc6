"""Services over a table that an earlier run left."""

from __future__ import annotations

from support.world import CIP, RIP, VIP, World, tcp


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
