"""What is not balanced, what cannot go, what lies: verdict, reason, and what the sender is told."""

import pytest
from scapy.layers.inet import ICMP, IP, IPerror, TCPerror
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded, IPv6
from scapy.packet import Raw
from support.world import (
    CIP,
    CIP6,
    DROUTE,
    FAMILIES,
    MASQ,
    RIP,
    RIP6,
    TUNNEL,
    VIP,
    VIP6,
    World,
    ends,
    ip,
    packed,
    sums_right,
    tcp,
    udp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

STOLEN, ACCEPT, DROP = Verdict.STOLEN, Verdict.ACCEPT, Verdict.DROP


@pytest.mark.parametrize(
    ("packet", "why"),
    [
        (tcp(CIP, 1024, VIP, 81), Why.NO_SERVICE),
        (udp(CIP, 1024, VIP, 80), Why.NO_SERVICE),
        (tcp(CIP, 1024, VIP, 80, "A"), Why.NOT_SYN),
        (tcp(CIP, 1024, VIP, 80, "R"), Why.NOT_SYN),
        (tcp(CIP, 1024, VIP, 80, "SR"), Why.NOT_SYN),
        (tcp(CIP, 20, VIP, 80), Why.CLIENT_PORT),
        (ip(CIP, VIP) / ICMP(type=8), Why.ICMP_TYPE),
        (IP(src=CIP, dst=VIP, proto=47) / Raw(b"x" * 20), Why.PROTOCOL),
        (tcp(CIP, 1024, "224.0.0.5", 80), Why.NOT_FOR_HOST),
    ],
    ids=lambda v: v.label if isinstance(v, Why) else v.summary(),
)
def test_accepted_untouched(world, packet, why):
    world.server(world.service(), RIP[1])
    out = world.local_in(packet)
    assert (out.verdict, out.why, out.sent, out.content) == (ACCEPT, why, [], None)
    assert world.entries == []


@pytest.mark.parametrize(
    ("setup", "why"),
    [
        ([], Why.NO_DEST),
        ([{"weight": 0}, {"weight": 0}], Why.WEIGHT_0),
        ([{"weight": 0}, {"weight": 1, "u_threshold": 1}], Why.OVERLOAD),
    ],
)
@pytest.mark.parametrize("family", [4, 6])
def test_no_server_port_unreachable(world, family, setup, why):
    client, vip, _, _ = FAMILIES[family]
    svc = world.service(vip)
    for i, kw in enumerate(setup, 1):
        world.server(svc, (RIP if family == 4 else RIP6)[i], **kw)
    if why == Why.OVERLOAD:
        world.local_in(tcp(client, 999, vip, 80))
    packet = tcp(client, 1024, vip, 80, **({"tos": 4} if family == 4 else {}))
    out = world.local_in(packet)
    assert (out.verdict, out.why, out.to) == (DROP, why, client)
    error = out.sent[0][1]
    assert ends(error) == (vip, client)
    assert sums_right(error)
    if family == 4:
        assert (error.tos, error[ICMP].type, error[ICMP].code, error.ttl) == (0xC4, 3, 3, 64)
        assert bytes(error[IPerror])[:40] == bytes(packet)
    else:
        assert (error.tc, error[ICMPv6DestUnreach].code, error.hlim) == (0, 4, 64)


@pytest.mark.parametrize(("sched", "port"), [("none", 80), ("rr", 0)])
def test_no_scheduler_and_a_port_0_service_that_is_not_persistent(world, sched, port):
    """The servers are well: neither overload nor weight is the reason."""
    world.server(world.service(VIP, port, sched=sched), RIP[1])
    out = world.local_in(tcp(CIP, 1024, VIP, 80))
    assert (out.verdict, out.why, out.sent[0][1][ICMP].code) == (DROP, Why.NO_DEST, 3)


@pytest.mark.parametrize("family", [4, 6])
def test_bypass(world, family):
    """IPv6 asks nothing of the routing table first: what is local is refused by the transmitter."""
    client, vip, away, _ = FAMILIES[family]
    world.ipvs.sysctl.set("cache_bypass", 1)
    world.service(vip, fwmark=7)
    out = world.local_in(tcp(client, 1024, away, 80), mark=7)
    assert (out.verdict, out.why, out.to, ends(out.sent[0][1])) == (STOLEN, Why.BYPASS, away, (client, away))
    assert world.entries == [("SYN_RECV", 60)]
    out = world.local_in(tcp(client, 1025, vip, 80), mark=7)
    assert out.why == (Why.NO_DEST if family == 4 else Why.BOUNDARY)


def test_errors_are_rate_limited(world):
    world.ipvs.icmp_limit[2].interval_ms = 1000
    world.service()
    told = [bool(world.local_in(tcp(CIP, 1024 + i, VIP, 80)).sent) for i in range(8)]
    assert told == [True] * 6 + [False] * 2
    assert world.local_in(tcp("10.9.0.2", 1024, VIP, 80)).sent
    world.now += 10**9
    assert world.local_in(tcp(CIP, 1024, VIP, 80)).sent


@pytest.mark.parametrize("family", [4, 6])
def test_ttl_exceeded(world, family):
    client, vip, rip, _ = FAMILIES[family]
    world.server(world.service(vip), rip)
    out = world.local_in(tcp(client, 1024, vip, 80, **({"ttl": 1} if family == 4 else {"hlim": 1})))
    assert (out.verdict, out.why, out.to) == (DROP, Why.TTL, client)
    error = out.sent[0][1]
    if family == 4:
        assert (error[ICMP].type, error[ICMP].code, error[IPerror].ttl) == (11, 0, 1)
    else:
        assert error[ICMPv6TimeExceeded].code == 0
    assert sums_right(error)


@pytest.mark.parametrize("fwd", [MASQ, DROUTE, TUNNEL])
@pytest.mark.parametrize("family", [4, 6])
def test_too_big(world, family, fwd):
    client, vip, rip, _ = FAMILIES[family]
    world.server(world.service(vip), rip, 80, fwd)
    world.local_in(tcp(client, 1024, vip, 80))
    overhead = (20 if family == 4 else 40) if fwd == TUNNEL else 0
    fits = 1500 - overhead - (40 if family == 4 else 60)
    kw = {"flags": "A"}

    def big(n):
        packet = tcp(client, 1024, vip, 80, data=b"x" * n, **kw)
        if family == 4:
            packet[IP].flags = "DF"
        return packet

    assert world.local_in(big(fits)).why == Why.FORWARDED
    out = world.local_in(big(fits + 1))
    assert (out.verdict, out.why, out.to) == (DROP, Why.TOO_BIG, client)
    error = out.sent[0][1]
    if family == 4:
        assert (error[ICMP].type, error[ICMP].code, error[ICMP].nexthopmtu) == (3, 4, 1500 - overhead)
        assert error[IPerror].ttl == 63  # already lowered
        assert len(error) <= 576
    else:
        assert error[ICMPv6PacketTooBig].mtu == 1500 - overhead
        assert len(error) <= 1280
    assert sums_right(error)


def test_without_df_a_large_packet_is_egress_business(world):
    world.server(world.service(VIP, 53, 17), RIP[1], 53)
    out = world.local_in(udp(CIP, 1024, VIP, 53, b"x" * 3000))
    assert (out.why, len(out.sent[0][1])) == (Why.FORWARDED, 3028)


@pytest.mark.parametrize("family", [4, 6])
def test_no_route(world, family):
    client, vip, rip, _ = FAMILIES[family]
    world.server(world.service(vip), rip)
    world.routes.unreachable.add(packed(rip))
    out = world.local_in(tcp(client, 1024, vip, 80))
    assert (out.verdict, out.why, out.to) == (DROP, Why.NO_ROUTE, client)
    error = out.sent[0][1]
    if family == 4:
        assert (error[ICMP].type, error[ICMP].code, error[IPerror].ttl) == (3, 1, 64)
    else:
        assert error[ICMPv6DestUnreach].code == 3


def test_no_neighbour_is_told_about_the_packet_that_the_client_sent(world):
    from uvs.ipvs.unreachable import no_neighbour

    world.server(world.service(), RIP[1], 8080)
    out = world.local_in(tcp(CIP, 1024, VIP, 80))
    ((_, data),) = no_neighbour(world.ipvs, bytes(out.sent[0][1]))
    error = IP(data)
    assert (error[ICMP].type, error[ICMP].code) == (3, 1)
    assert (error.dst, error[IPerror].src, error[IPerror].dst, error[TCPerror].dport) == (CIP, CIP, VIP, 80)
    assert sums_right(error)


@pytest.mark.parametrize("family", [4, 6])
def test_the_director_as_a_client_is_told_too(world, family):
    """And not at a limited rate."""
    _, vip, _, dip = FAMILIES[family]
    world.ipvs.icmp_limit[2].interval_ms = world.ipvs.icmp_limit[10].interval_ms = 1000
    world.service(vip)
    outs = [world.local_out(tcp(dip, 1024 + i, vip, 80)) for i in range(20)]
    assert {(out.verdict, out.why, out.to) for out in outs} == {(DROP, Why.NO_DEST, dip)}
    assert ends(outs[0].sent[0][1]) == (vip, dip)


@pytest.mark.parametrize(
    ("packet", "verdict", "why"),
    [
        (b"", DROP, Why.SHORT),
        (b"\x45", DROP, Why.SHORT),
        (b"\x00" * 40, DROP, Why.MALFORMED),
        (bytes(tcp(CIP, 1, VIP, 80))[:39], DROP, Why.SHORT),
        (b"\x44" + bytes(tcp(CIP, 1, VIP, 80))[1:], DROP, Why.MALFORMED),
        (bytes(IP(src=CIP, dst=VIP, proto=6) / Raw(b"x" * 19)), DROP, Why.SHORT),
        (bytes(IP(src=CIP, dst=VIP, proto=17) / Raw(b"x" * 7)), DROP, Why.SHORT),
        (bytes(IP(src=CIP, dst=VIP, proto=1) / Raw(b"\3\3\0\0")), DROP, Why.SHORT),
        (bytes(IP(src=CIP, dst=VIP, proto=1) / Raw(b"\3\3\0\0\0\0\0\0\x45")), ACCEPT, Why.SHORT),
        (bytes(IPv6(src=CIP6, dst=VIP6, nh=6) / Raw(b"x" * 19)), DROP, Why.SHORT),
    ],
)
def test_short_and_lying_packets(world, packet, verdict, why):
    world.server(world.service(), RIP[1])
    out = world.local_in(packet)
    assert (out.verdict, out.why, out.sent) == (verdict, why, [])


def test_table_full(world):
    small = World(conn_max=1)
    svc = small.service()
    dest = small.server(svc, RIP[1])
    client, vip, rip = packed(CIP), packed(VIP), packed(RIP[1])
    for i in range(small.table.info()["conn_max"]):
        last = small.table.conn_new(
            2, 17, client, i & 0xFFFF, vip, i >> 16, 2, rip, 80, 0, 0, dest.rec.index, small.now
        )
    assert last is None
    out = small.local_in(tcp(CIP, 1024, VIP, 80))
    assert (out.verdict, out.why, out.sent) == (DROP, Why.TABLE_FULL, [])
    small.close()


@pytest.mark.parametrize(
    ("proto", "port", "keep", "why", "left"),
    [
        (6, 80, 3, Why.NO_CONN, 50),  # without both ports it is nobody's
        (6, 80, 4, Why.SHORT, 60),
        (6, 80, 19, Why.SHORT, 60),
        (6, 21, 19, Why.SHORT, 60),  # before its helper sees it
        (17, 53, 7, Why.SHORT, 300),
    ],
)
def test_a_reply_cut_short_restarts_the_timer(world, proto, port, keep, why, left):
    """NAT cannot rewrite it; it is dropped, not counted, and the connection put (handle_response)."""
    make = tcp if proto == 6 else udp
    dest = world.server(world.service(VIP, port, proto), RIP[1], port)
    world.local_in(make(CIP, 1024, VIP, port))
    world.pass_time(10)
    reply = bytes(make(RIP[1], port, CIP, 1024))[20 : 20 + keep]
    out = world.forward(IP(src=RIP[1], dst=CIP, proto=proto) / Raw(reply))
    assert (out.verdict, out.why, out.sent) == (ACCEPT if why == Why.NO_CONN else DROP, why, [])
    assert ([seconds for _, seconds in world.entries], dest.rec.stats[2]) == ([left], 0)
