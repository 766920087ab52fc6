"""The transmitters, packet in and packet out: NAT, direct routing, tunnelling, in each family."""

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6PacketTooBig
from scapy.packet import Raw
from support.packets import loaded
from support.world import (
    CIP,
    DIP,
    DROUTE,
    FAMILIES,
    RIP,
    RIP6,
    TUNNEL,
    VIP,
    ends,
    packed,
    ports,
    sums_right,
    tcp,
    ttl,
    udp,
)

from uvs.engine.core import TUN_F_CSUM, TUN_F_REMCSUM, TUN_GRE, TUN_GUE, TUN_IPIP, Why, checksum
from uvs.ipvs.skb import Verdict

STOLEN, ACCEPT, DROP = Verdict.STOLEN, Verdict.ACCEPT, Verdict.DROP


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


@pytest.mark.parametrize(("inner", "outer"), [(4, 4), (4, 6), (6, 4), (6, 6)])
@pytest.mark.parametrize("flags", [0, TUN_F_CSUM, TUN_F_REMCSUM])
@pytest.mark.parametrize("tun_type", [TUN_GUE, TUN_GRE])
def test_tunnel_by_gue_and_gre(world, inner, outer, tun_type, flags):
    client, vip, _, _ = FAMILIES[inner]
    _, _, rip, dip = FAMILIES[outer]
    port = 6080 if tun_type == TUN_GUE else 0
    world.server(world.service(vip), rip, 80, TUNNEL, tun_type=tun_type, tun_port=port, tun_flags=flags)
    packet = tcp(client, 1024, vip, 80, data=b"abc", **({"ttl": 33} if inner == 4 else {"hlim": 33}))
    sent = world.local_in(packet).sent[0][1]
    assert (ends(sent), ttl(sent)) == ((dip, rip), 32)
    assert (sent.proto if outer == 4 else sent.nh) == {TUN_GUE: 17, TUN_GRE: 47}[tun_type]
    if outer == 4:
        assert sums_right(IP(bytes(sent)[:20]))
    rest = bytes(sent.payload)
    if tun_type == TUN_GUE:
        assert ports(sent)[1] == 6080
        assert 32768 <= ports(sent)[0] < 60999
        assert sent[UDP].len == len(rest)
        assert (rest[6:8] != b"\0\0") == (flags != 0)
        assert not flags or loaded(sent).l4_csum_ok()
        assert rest[8:12] == (b"\0\4\0\0" if inner == 4 else b"\0\x29\0\0")
        inside = rest[12:]
    else:
        csum = flags == TUN_F_CSUM
        assert rest[:4] == (b"\x80\0" if csum else b"\0\0") + (b"\x08\0" if inner == 4 else b"\x86\xdd")
        assert not csum or (checksum(rest), rest[6:8]) == (0, b"\0\0")
        inside = rest[8 if csum else 4 :]
    lower = packet.copy()
    setattr(lower, "ttl" if inner == 4 else "hlim", 32)
    assert inside == bytes(lower)


def test_kind_of_tunnel_is_the_servers_not_the_connections(world):
    """An edit changes the tunnel of running connections, unlike the forwarding method."""
    svc = world.service()
    world.server(svc, RIP[1], 80, TUNNEL)
    kinds = []
    for tun_type in (TUN_IPIP, TUN_GRE, TUN_GUE):
        world.edit(svc, RIP[1], 80, TUNNEL, tun_type=tun_type, tun_port=6080)
        kinds.append(world.local_in(tcp(CIP, 1024, VIP, 80, "A" if kinds else "S")).sent[0][1].proto)
    assert kinds == [4, 47, 17]


# what goes into a 1500 byte route, by outer family
ROOM = [
    (TUN_IPIP, 0, 1480, 1460),
    (TUN_GUE, 0, 1468, 1448),
    (TUN_GUE, TUN_F_CSUM, 1468, 1448),
    (TUN_GUE, TUN_F_REMCSUM, 1468, 1448),
    (TUN_GRE, 0, 1476, 1456),
    (TUN_GRE, TUN_F_CSUM, 1472, 1452),
]


@pytest.mark.parametrize("pmtu_disc", [0, 1])
@pytest.mark.parametrize("inner", [4, 6])
@pytest.mark.parametrize(("tun_type", "flags", "over4", "over6"), ROOM)
def test_what_fits_a_tunnel(world, tun_type, flags, over4, over6, inner, pmtu_disc):
    client, vip, _, _ = FAMILIES[inner]
    world.ipvs.sysctl.set("pmtu_disc", pmtu_disc)
    svc = world.service(vip)
    header = 40 if inner == 4 else 60
    for rip, room, sport in ((RIP[1], over4, 1), (RIP6[1], over6, 2)):
        world.server(svc, rip, 80, TUNNEL, tun_type=tun_type, tun_port=6080, tun_flags=flags)
        for length in (room, room + 1):
            packet = tcp(client, 1024 + sport, vip, 80, data=bytes(length - header))
            if inner == 4:
                packet.flags = "DF"
            out = world.local_in(packet)
            if length == room or (inner == 4 and not pmtu_disc):
                assert (out.why, out.to) == (Why.FORWARDED, rip)
                assert len(bytes(out.sent[0][1])) == 1500 + length - room
            else:
                error = out.sent[0][1]
                assert (out.why, out.to) == (Why.TOO_BIG, client)
                told = error[ICMP].nexthopmtu if inner == 4 else error[ICMPv6PacketTooBig].mtu
                assert told == room
        world.delete(svc, rip)


@pytest.mark.parametrize(("rip", "least"), [(RIP[1], 88 + 12), (RIP6[1], 1320 + 12)])
def test_a_route_too_small_for_any_tunnel(world, rip, least):
    world.server(world.service(), rip, 80, TUNNEL, tun_type=TUN_GUE, tun_port=6080)
    for world.routes.mtu, why in ((least, Why.FORWARDED), (least - 1, Why.TOO_BIG)):
        assert world.local_in(tcp(CIP, 1024, VIP, 80)).why == why


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
