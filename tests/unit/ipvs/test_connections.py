"""The life of connections: states, counters, deleted servers, ports used again, thresholds, persistence."""

import pytest
from support.world import (
    CIP,
    RIP,
    VIP,
    tcp,
    udp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

STOLEN, ACCEPT, DROP = Verdict.STOLEN, Verdict.ACCEPT, Verdict.DROP


def test_states_time_outs_and_counters(world):
    """A client that closes first, by NAT: state, seconds left, active/inactive after each packet."""
    svc = world.service()
    dest = world.server(svc, RIP[1])
    story = [
        ("in", "S", "SYN_RECV", 60, (1, 0)),
        ("out", "SA", "SYN_RECV", 60, (1, 0)),
        ("in", "A", "ESTABLISHED", 900, (1, 0)),
        ("in", "FA", "CLOSE_WAIT", 60, (0, 1)),
        ("out", "A", "CLOSE_WAIT", 60, (0, 1)),
        ("out", "FA", "TIME_WAIT", 120, (0, 1)),
        ("in", "A", "TIME_WAIT", 120, (0, 1)),
    ]
    for way, flags, state, seconds, counters in story:
        if way == "in":
            world.local_in(tcp(CIP, 1024, VIP, 80, flags))
        else:
            world.forward(tcp(RIP[1], 80, CIP, 1024, flags))
        assert world.entries == [(state, seconds)], (way, flags)
        assert (dest.rec.activeconns, dest.rec.inactconns) == counters
    world.pass_time(119)
    assert world.entries == [("TIME_WAIT", 1)]
    world.pass_time(1.5)
    assert world.entries == []
    assert (dest.rec.activeconns, dest.rec.inactconns, dest.rec.refcnt) == (0, 0, 0)


def test_a_connection_of_more_packets_than_its_counter_holds(world):
    world.server(world.service(), RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    (conn,) = world.table.conns()
    conn.in_pkts = 2**32 - 1
    assert world.local_in(tcp(CIP, 1024, VIP, 80, "A")).why == Why.FORWARDED
    assert conn.in_pkts == 0


def test_counters(world):
    svc = world.service()
    dest = world.server(svc, RIP[1])
    syn, reply = tcp(CIP, 1024, VIP, 80), tcp(RIP[1], 80, CIP, 1024, "SA", b"x" * 60)
    world.local_in(syn)
    world.forward(reply)
    expected = (1, 1, 1, len(syn), len(reply))
    assert dest.rec.stats == svc.rec.stats == world.table.total.raw == expected
    world.ipvs.services.estimate()
    assert dest.est.counters == svc.est.counters == world.ipvs.services.total.counters == expected
    world.ipvs.services.zero()
    assert svc.est.counters == (0, 0, 0, 0, 0)


def test_deleted_server(world):
    """Its clients' packets are dropped and refresh nothing, its replies still pass; added again it lives on."""
    svc = world.service()
    dest = world.server(svc, RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.delete(svc, RIP[1])
    world.pass_time(10)
    out = world.local_in(tcp(CIP, 1024, VIP, 80, "A"))
    assert (out.verdict, out.why, out.sent) == (DROP, Why.DEAD_DEST, [])
    assert world.entries == [("SYN_RECV", 50)]
    assert world.forward(tcp(RIP[1], 80, CIP, 1024, "SA")).why == Why.REPLY
    assert world.entries == [("SYN_RECV", 60)]
    assert world.server(svc, RIP[1]) is dest
    assert world.local_in(tcp(CIP, 1024, VIP, 80, "A")).why == Why.FORWARDED


def test_expire_nodest_conn(world):
    world.ipvs.sysctl.set("expire_nodest_conn", 1)
    svc = world.service()
    world.server(svc, RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.delete(svc, RIP[1])
    world.server(svc, RIP[2])
    out = world.local_in(tcp(CIP, 1024, VIP, 80, "A"))
    assert (out.verdict, out.why) == (ACCEPT, Why.NOT_SYN)
    out = world.local_in(tcp(CIP, 1024, VIP, 80))
    assert (out.why, out.to) == (Why.FORWARDED, RIP[2])


@pytest.mark.parametrize(("on", "left"), [(0, 5), (1, 1)])
def test_expire_nodest_conn_ends_connections_without_a_packet(world, on, left):
    """At the deletion of a server, with their templates; those of other servers stay (reference 2.4)."""
    world.ipvs.sysctl.set("expire_nodest_conn", on)
    persistent = world.service(VIP, 81, flags=1, timeout=300)
    world.server(persistent, RIP[1], 81)
    for port in (1024, 1025):
        world.local_in(tcp(CIP, port, VIP, 81))
    svc = world.service()
    world.server(svc, RIP[2])
    world.server(svc, RIP[1])
    for port in (1024, 1025):
        world.local_in(tcp(CIP, port, VIP, 80))
    world.delete(svc, RIP[1])
    world.ipvs.services.del_service(persistent.key)
    world.ipvs.expire_nodest_conns()
    assert len(world.entries) == left
    assert sum(d.refcnt for d in world.table.dests()) == left


def test_deleted_server_leaves_the_trash_when_it_is_idle(world):
    svc = world.service()
    gone = []
    world.ipvs.services.observers.append(lambda event, s, d: gone.append(event))
    world.server(svc, RIP[1])
    world.delete(svc, RIP[1])
    for _ in range(5):
        world.now += 61 * 10**9
        world.ipvs.services.expire_trash(world.now)
    assert gone == ["add_dest", "del_dest", "gone_dest"]
    assert world.table.info()["dests"] == 0


@pytest.mark.parametrize(
    ("mode", "way", "anew"),
    [
        (1, ["iS", "oSA", "iA", "iFA", "oFA"], True),  # TIME_WAIT
        (1, ["iS", "oSA", "iA", "oR"], True),  # CLOSE
        (1, ["iS", "oSA", "iA"], False),
        (0, ["iS", "oSA", "iA", "oR"], False),
    ],
)
def test_a_client_port_used_again(world, mode, way, anew):
    world.ipvs.sysctl.set("conn_reuse_mode", mode)
    svc = world.service()
    world.server(svc, RIP[1])
    for step in way:
        if step[0] == "i":
            world.local_in(tcp(CIP, 1024, VIP, 80, step[1:]))
        else:
            world.forward(tcp(RIP[1], 80, CIP, 1024, step[1:]))
    world.server(svc, RIP[2])  # rr serves it next
    assert world.local_in(tcp(CIP, 1024, VIP, 80)).to == (RIP[2] if anew else RIP[1])


def test_thresholds(world):
    svc = world.service()
    dest = world.server(svc, RIP[1], u_threshold=4)
    for i in range(4):
        assert world.local_in(tcp(CIP, 1024 + i, VIP, 80)).why == Why.FORWARDED
    assert world.local_in(tcp(CIP, 2000, VIP, 80)).why == Why.OVERLOAD
    assert world.local_in(tcp(CIP, 1024, VIP, 80, "A")).why == Why.FORWARDED  # a connection that there is
    for i in range(4):
        world.forward(tcp(RIP[1], 80, CIP, 1024 + i, "R"))
    world.pass_time(11)
    assert not dest.overloaded


def test_thresholds_edited(world):
    """What Linux 6.1.0-57 answered, step by step: an edit looks at the load anew."""
    svc = world.service(VIP, 53, 17)
    world.server(svc, RIP[1], 53, u_threshold=4)
    clients = iter(range(1024, 2000))

    def new(n):
        outs = [world.local_in(udp(CIP, next(clients), VIP, 53)).why for _ in range(n)]
        return "".join("r" if why == Why.FORWARDED else "-" for why in outs)

    assert new(5) == "rrrr-"
    steps = [
        ((5, 0), "-"), ((6, 0), "rr-"), ((100, 0), "r"), ((7, 0), "-"), ((12, 6), "-"), ((12, 9), "r"),
        ((9, 0), "r-"), ((0, 0), "r"), ((50, 0), ""), ((11, 0), ""), ((51, 0), "r"),
    ]  # fmt: skip
    for (upper, lower), taken in steps:
        world.edit(svc, RIP[1], 53, u_threshold=upper, l_threshold=lower)
        assert new(len(taken)) == taken, (upper, lower)


def test_one_packet_scheduling(world):
    svc = world.service(VIP, 53, 17, flags=4)
    world.server(svc, RIP[1], 53)
    world.server(svc, RIP[2], 53)
    assert {world.local_in(udp(CIP, 1024, VIP, 53)).to for _ in range(2)} == {RIP[1], RIP[2]}
    assert world.entries == []


def test_persistence(world):
    svc = world.service(flags=1, timeout=300, netmask=0xFFFFFF00)
    for i in (1, 2, 3):
        world.server(svc, RIP[i])
    same_net = {world.local_in(tcp(f"10.9.0.{i}", 1024, VIP, 80)).to for i in range(1, 6)}
    assert len(same_net) == 1
    assert world.local_in(tcp("10.9.1.1", 1024, VIP, 80)).to not in same_net
    templates = [c for c in world.table.conns() if c.flags & 0x1000]
    assert len(templates) == 2
    assert {t.remaining(world.now) for t in templates} == {300_000}


def test_persistence_of_months(world):
    world.server(world.service(flags=1, timeout=2**31), RIP[1])
    assert world.local_in(tcp(CIP, 1024, VIP, 80)).why == Why.FORWARDED
