"""The hook path under packets that lie: whatever comes, there is a verdict with a reason, and the counters
of the destinations equal what the table holds."""

from hypothesis import given, settings
from hypothesis import strategies as st
from support.lies import KNOBS, director, steps

from uvs.engine.core import ConnFlag, Why
from uvs.ipvs.skb import Verdict


@settings(max_examples=400, deadline=None)
@given(steps, st.sets(st.sampled_from(KNOBS)))
def test_every_packet_gets_a_verdict_and_the_counters_stay_true(packets, knobs):
    world = director()
    for name in knobs:
        world.ipvs.sysctl.set(name, 1)
    try:
        for hook, data, mark, seconds in packets:
            out = world.at(hook, data, mark=mark)
            assert out.verdict in Verdict
            assert out.why != Why.NONE
            assert (out.verdict == Verdict.ACCEPT) or out.content is None
            world.pass_time(seconds)
        assert sum(world.ipvs.why) == len(packets)
        counted: dict[int, list[int]] = {}
        for conn in world.table.conns():
            at = counted.setdefault(conn.dest, [0, 0, 0])
            template, inactive = conn.flags & ConnFlag.TEMPLATE, conn.flags & ConnFlag.INACTIVE
            at[2 if template else 1 if inactive else 0] += 1
        for rec in world.table.dests():
            counters = [rec.activeconns, rec.inactconns, rec.persistconns]
            assert counters == counted.get(rec.index, [0, 0, 0])
        world.pass_time(3600)
        world.pass_time(3600)
        assert world.entries == []
    finally:
        world.close()
