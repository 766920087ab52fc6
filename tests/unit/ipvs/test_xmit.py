"""The transmitters, packet in and packet out: NAT, direct routing, tunnelling, in each family."""

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.packet import Raw
from support.world import (
    CIP,
    DIP,
    DROUTE,
    FAMILIES,
    RIP,
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

from uvs.engine.core import Why
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
