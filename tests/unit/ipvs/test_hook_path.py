"""The hook path, packet in and packet out: each mode, each family, each reason."""

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPerror, TCPerror, UDPerror, fragment
from scapy.layers.inet6 import ICMPv6DestUnreach, ICMPv6PacketTooBig, ICMPv6TimeExceeded, IPv6
from scapy.packet import Raw
from support.world import (
    CIP,
    CIP6,
    DIP,
    DIP6,
    DROUTE,
    MASQ,
    RIP,
    RIP6,
    TUNNEL,
    VIP,
    VIP6,
    World,
    icmp_error,
    ip,
    packed,
    sums_right,
    tcp,
    udp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

STOLEN, ACCEPT, DROP = Verdict.STOLEN, Verdict.ACCEPT, Verdict.DROP
FAMILIES = {4: (CIP, VIP, RIP[1], DIP), 6: (CIP6, VIP6, RIP6[1], DIP6)}


@pytest.fixture
def world():
    w = World()
    yield w
    w.close()


def ends(packet):
    return packet.src, packet.dst


def ports(packet):
    l4 = packet.getlayer(TCP) or packet.getlayer(UDP)
    return l4.sport, l4.dport


def ttl(packet):
    return packet.hlim if isinstance(packet, IPv6) else packet.ttl


# ---------------------------------------------------------------- NAT


@pytest.mark.parametrize("family", [4, 6])
@pytest.mark.parametrize(("proto", "make"), [(6, tcp), (17, udp)])
def test_nat_both_ways(world, family, proto, make):
    client, vip, rip, _ = FAMILIES[family]
    svc = world.service(vip, 80, proto)
    world.server(svc, rip, 8080)

    out = world.local_in(make(client, 1024, vip, 80, data=b"odd"))
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.FORWARDED, rip)
    request = out.sent[0][1]
    assert (ends(request), ports(request), ttl(request)) == ((client, rip), (1024, 8080), 63)
    assert sums_right(request)
    assert request[Raw].load == b"odd"

    reply = make(rip, 8080, client, 1024, data=b"answer")
    out = world.forward(reply)
    assert (out.verdict, out.why, out.sent) == (ACCEPT, Why.REPLY, [])
    assert (ends(out.content), ports(out.content)) == ((vip, client), (80, 1024))
    assert ttl(out.content) == ttl(reply)  # the kernel forwards it
    assert sums_right(out.content)


def test_nat_a_wrong_checksum_stays_wrong(world):
    world.server(world.service(), RIP[1], 8080)
    packet = tcp(CIP, 1024, VIP, 80)
    packet[TCP].chksum = 0x1111
    assert not sums_right(world.local_in(packet).sent[0][1])


def test_nat_udp_without_a_checksum_gets_one(world):
    world.server(world.service(VIP, 53, 17), RIP[1], 53)
    packet = udp(CIP, 1024, VIP, 53)
    packet[UDP].chksum = 0
    sent = world.local_in(packet).sent[0][1]
    assert sent[UDP].chksum != 0
    assert sums_right(sent)


def test_nat_server_on_this_host_goes_on_to_the_local_stack(world):
    world.server(world.service(), DIP, 8080)
    out = world.local_in(tcp(CIP, 1024, VIP, 80))
    assert (out.verdict, out.why, out.sent) == (ACCEPT, Why.LOCAL, [])
    assert (ends(out.content), ports(out.content), ttl(out.content)) == ((CIP, DIP), (1024, 8080), 64)
    reply = world.local_out(tcp(DIP, 8080, CIP, 1024, "SA"))
    assert (reply.why, ends(reply.content), ports(reply.content)) == (Why.REPLY, (VIP, CIP), (80, 1024))


def test_nat_loopback_server_is_not_for_packets_from_outside(world):
    world.routes.local.add(packed("127.0.0.1"))
    world.server(world.service(), "127.0.0.1", 8080)
    out = world.local_in(tcp(CIP, 1024, VIP, 80))
    assert (out.verdict, out.why) == (DROP, Why.BOUNDARY)


def test_reply_from_another_port_or_server_is_only_forwarded(world):
    world.server(world.service(), RIP[1], 8080)
    world.local_in(tcp(CIP, 1024, VIP, 80))
    for source, port in ((RIP[1], 8081), (RIP[2], 8080)):
        out = world.forward(tcp(source, port, CIP, 1024, "SA"))
        assert (out.verdict, out.why, out.content) == (ACCEPT, Why.NO_CONN, None)


def test_fwmark_service_keeps_the_packets_port(world):
    svc = world.service(fwmark=7)
    world.server(svc, RIP[1], 0)
    out = world.local_in(tcp(CIP, 1024, "10.1.1.1", 443), mark=7)
    assert (out.to, ports(out.sent[0][1])) == (RIP[1], (1024, 443))
    assert world.local_in(tcp(CIP, 1025, "10.1.1.1", 443), mark=8).why == Why.NO_SERVICE


# ---------------------------------------------------------------- DR and TUN


@pytest.mark.parametrize("family", [4, 6])
def test_dr_changes_nothing_but_the_ttl(world, family):
    client, vip, rip, _ = FAMILIES[family]
    world.server(world.service(vip), rip, 80, DROUTE)
    packet = tcp(client, 1024, vip, 80, data=b"x" * 11)
    out = world.local_in(packet)
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.FORWARDED, rip)
    expected = packet.copy()
    if family == 4:
        expected.ttl = 63
    else:
        expected.hlim = 63
    assert bytes(out.sent[0][1]) == bytes(expected)


@pytest.mark.parametrize(("inner", "outer"), [(4, 4), (4, 6), (6, 4), (6, 6)])
def test_tunnel(world, inner, outer):
    client, vip, _, _ = FAMILIES[inner]
    _, _, rip, dip = FAMILIES[outer]
    world.server(world.service(vip), rip, 80, TUNNEL)
    packet = tcp(client, 1024, vip, 80, data=b"abc", **({"ttl": 33} if inner == 4 else {"hlim": 33}))
    out = world.local_in(packet)
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.FORWARDED, rip)
    sent = out.sent[0][1]
    assert ends(sent) == (dip, rip)
    assert ttl(sent) == 32
    assert (sent.proto if outer == 4 else sent.nh) == {4: 4, 6: 41}[inner]
    inside = sent.payload
    assert (ends(inside), ports(inside), ttl(inside)) == ((client, vip), (1024, 80), 32)
    assert sums_right(sent)
    assert sums_right(inside)


@pytest.mark.parametrize(
    ("tos", "flags", "pmtu_disc", "outer_tos", "outer_flags"),
    [
        (0xB8, "", 1, 0xB8, ""),
        (0x02, "DF", 1, 0x02, "DF"),
        (0x03, "DF", 1, 0x02, "DF"),  # CE outside would be lost: ECT(0)
        (0x29, "DF", 0, 0x29, ""),
    ],
)
def test_tunnel_header_copies_tos_and_df(world, tos, flags, pmtu_disc, outer_tos, outer_flags):
    world.ipvs.sysctl.set("pmtu_disc", pmtu_disc)
    world.server(world.service(), RIP[1], 80, TUNNEL)
    sent = world.local_in(_with(tos, flags)).sent[0][1]
    assert (sent.tos, str(sent.flags)) == (outer_tos, outer_flags)
    assert (sent.id == 0) == (outer_flags == "DF")


def _with(tos, flags):
    return IP(src=CIP, dst=VIP, tos=tos, flags=flags, id=7777) / TCP(sport=1024, dport=80, flags="S")


@pytest.mark.parametrize("fwd", [DROUTE, TUNNEL])
def test_local_server_of_dr_and_tun_gets_the_packet_as_it_is(world, fwd):
    world.server(world.service(), DIP, 80, fwd)
    out = world.local_in(tcp(CIP, 1024, VIP, 80))
    assert (out.verdict, out.why, out.content, out.sent) == (ACCEPT, Why.LOCAL, None, [])


# ---------------------------------------------------------------- what is not balanced


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
        (IP(src=CIP, dst=VIP, proto=6, frag=100) / Raw(b"x" * 40), Why.FRAGMENT),
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


def test_no_neighbour_behind_a_tunnel(world):
    """The director tells itself of its outer packet; from there the client hears of its own."""
    from uvs.ipvs.unreachable import no_neighbour

    world.server(world.service(), RIP[1], 80, TUNNEL)
    packet = tcp(CIP, 1024, VIP, 80)
    outer = world.local_in(packet).sent[0][1]
    ((_, data),) = no_neighbour(world.ipvs, bytes(outer))
    assert (ends(IP(data)), IP(data)[ICMP].code) == ((DIP, DIP), 1)
    out = world.local_in(data, indev=1)
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.TUNNEL_ICMP, CIP)
    error = out.sent[0][1]
    assert (ends(error), error[ICMP].type, error[ICMP].code) == ((VIP, CIP), 3, 1)
    assert (ends(error[IPerror]), error[TCPerror].dport) == ((CIP, VIP), 80)


@pytest.mark.parametrize("family", [4, 6])
def test_the_director_as_a_client_is_told_too(world, family):
    """And not at a limited rate."""
    _, vip, _, dip = FAMILIES[family]
    world.ipvs.icmp_limit[2].interval_ms = world.ipvs.icmp_limit[10].interval_ms = 1000
    world.service(vip)
    outs = [world.local_out(tcp(dip, 1024 + i, vip, 80)) for i in range(20)]
    assert {(out.verdict, out.why, out.to) for out in outs} == {(DROP, Why.NO_DEST, dip)}
    assert ends(outs[0].sent[0][1]) == (vip, dip)


# ---------------------------------------------------------------- bad input


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


def test_first_fragment_of_a_datagram_is_scheduled_like_any_packet(world):
    world.server(world.service(VIP, 53, 17), RIP[1], 53)
    first, *_ = fragment(udp(CIP, 1024, VIP, 53, b"x" * 3000), fragsize=1400)
    assert world.local_in(first).why == Why.FORWARDED


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


# ---------------------------------------------------------------- ICMP errors


def test_icmp_error_of_a_server_reaches_the_client(world):
    world.server(world.service(VIP, 53, 17), RIP[1], 5353)
    world.local_in(udp(CIP, 2000, VIP, 53))
    quoted = udp(CIP, 2000, RIP[1], 5353)
    for source, keep in ((RIP[1], None), (RIP[1], 8), (RIP[1], 4), ("198.19.0.77", 8)):
        out = world.forward(icmp_error(source, CIP, 3, 3, quoted, keep=keep))
        assert (out.verdict, out.why) == (ACCEPT, Why.ICMP_OUT)
        assert (ends(out.content), sums_right(out.content)) == ((VIP, CIP), True)
        inner = out.content[IPerror]
        assert (ends(inner), bytes(inner.payload)[2:4]) == ((CIP, VIP), (53).to_bytes(2, "big"))
        if keep is None:
            assert out.content[UDPerror].sport == 2000
    wrong = icmp_error(RIP[1], CIP, 3, 3, quoted)
    wrong[ICMP].chksum = 1
    assert world.forward(wrong).why == Why.CHECKSUM
    other = icmp_error(RIP[1], CIP, 3, 3, udp(CIP, 2001, RIP[1], 5353))
    out = world.forward(other)
    assert (out.verdict, out.why, out.content) == (ACCEPT, Why.NO_CONN, None)
    not_handled = icmp_error(RIP[1], CIP, 12, 0, quoted)
    assert world.forward(not_handled).content is None


@pytest.mark.parametrize(("fwd", "target"), [(MASQ, RIP[1]), (DROUTE, VIP), (TUNNEL, VIP)])
def test_icmp_error_of_the_client_reaches_the_server(world, fwd, target):
    world.server(world.service(), RIP[1], 80, fwd)
    world.local_in(tcp(CIP, 1024, VIP, 80))
    error = icmp_error(CIP, VIP, 3, 4, tcp(VIP, 80, CIP, 1024, "A"), mtu=1300)
    out = world.local_in(error)
    assert (out.verdict, out.why, out.to) == (STOLEN, Why.ICMP_IN, RIP[1])
    sent = out.sent[0][1]
    sent = sent.payload if fwd == TUNNEL else sent
    assert (sent.dst, sent[ICMP].nexthopmtu, sent[IPerror].src) == (target, 1300, target)
    assert sums_right(sent)
    before = world.entries
    assert before == [("SYN_RECV", 60)]


def test_icmp_of_no_connection_goes_to_the_local_stack(world):
    world.server(world.service(), RIP[1])
    out = world.local_in(icmp_error(CIP, VIP, 3, 3, tcp(VIP, 80, CIP, 1024, "A")))
    assert (out.verdict, out.why) == (ACCEPT, Why.NO_CONN)


@pytest.mark.parametrize(("df", "told"), [(True, 880), (False, None)])
def test_router_on_the_way_of_a_tunnel(world, df, told):
    """Its frag-needed is about our packet: we learn the MTU, the client hears of its own packet."""
    dest = world.server(world.service(), RIP[1], 80, TUNNEL)
    packet = tcp(CIP, 1024, VIP, 80)
    if df:
        packet[IP].flags = "DF"
    sent = world.local_in(packet).sent[0][1]
    error = icmp_error("198.19.0.77", DIP, 3, 4, sent, mtu=900)
    out = world.local_in(error)
    assert (out.verdict, out.why) == (STOLEN, Why.TUNNEL_ICMP)
    assert world.routes.pmtu == {packed(RIP[1]): 900}
    if not told:
        assert out.sent == []
        return
    answer = out.sent[0][1]
    assert (out.to, ends(answer), answer[ICMP].nexthopmtu) == (CIP, (VIP, CIP), told)
    # Counted as it passes LOCAL_OUT, and for what it quotes.
    assert dest.rec.stats[2::2] == (2, len(answer) + len(packet))
    assert ends(answer[IPerror]) == (CIP, VIP)
    assert sums_right(answer)


def test_error_about_a_later_fragment_of_a_tunnel_packet(world):
    world.server(world.service(), RIP[1], 80, TUNNEL)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    sent.frag = 100
    out = world.local_in(icmp_error("198.19.0.77", DIP, 3, 4, sent, mtu=900))
    assert (out.verdict, out.why, world.routes.pmtu) == (ACCEPT, Why.FRAGMENT, {})


@pytest.mark.parametrize(("port", "why"), [(21, Why.NO_DEST), (2000, Why.FTP_DATA)])
def test_error_for_an_ftp_service_without_servers(world, port, why):
    """schedule_icmp: the port that counts is the quoted one on the service's side."""
    world.ipvs.sysctl.set("schedule_icmp", 1)
    world.service(VIP, 21, flags=1)
    error = icmp_error(CIP, VIP, 3, 3, tcp(VIP, port, CIP, 1024, "A"))
    out = world.local_in(error)
    assert (out.verdict, out.why, out.sent) == (DROP if port == 21 else ACCEPT, why, [])


def test_error_about_somebody_elses_tunnel(world):
    world.server(world.service(), RIP[1], 80, TUNNEL)
    sent = world.local_in(tcp(CIP, 1024, VIP, 80)).sent[0][1]
    sent.dst = RIP[2]
    out = world.local_in(icmp_error("198.19.0.77", DIP, 3, 4, sent, mtu=900))
    assert (out.verdict, out.why, world.routes.pmtu) == (ACCEPT, Why.PROTOCOL, {})


# ---------------------------------------------------------------- connections


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
    assert dest.rec.stats == svc.rec.stats == world.table.total == expected
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


# ---------------------------------------------------------------- the walk


def test_a_walk_is_recorded_when_asked_for(world):
    world.server(world.service(), RIP[1], 8080)
    world.ipvs.recorder.want = 1
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.forward(tcp(RIP[1], 8080, CIP, 1024, "SA"))
    (walk,) = world.ipvs.recorder.walks
    told = walk.to_json()
    assert (told["hook"], told["verdict"], told["why"]) == ("LOCAL_IN", "STOLEN", "forwarded")
    functions = [s["function"] for s in told["steps"]]
    for name in (
        "ip_vs_in",
        "ip_vs_conn_in_get",
        "ip_vs_service_find",
        "ip_vs_rr_schedule",
        "ip_vs_conn_new",
    ):
        assert name in functions
    assert told["entry"]["before"] is None
    assert told["entry"]["after"]["state"] == "SYN_RECV"
    assert told["sent"][0]["packet"] == f"TCP {CIP}:1024 > {RIP[1]}:8080 S"


def test_every_verdict_is_counted_by_its_reason(world):
    world.server(world.service(), RIP[1])
    for packet in (tcp(CIP, 1024, VIP, 80), tcp(CIP, 1024, VIP, 81), tcp(CIP, 1025, VIP, 80, "A")):
        world.local_in(packet)
    counted = {Why(i): n for i, n in enumerate(world.ipvs.why) if n}
    assert counted == {Why.FORWARDED: 1, Why.NO_SERVICE: 1, Why.NOT_SYN: 1}
