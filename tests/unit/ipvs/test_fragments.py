"""Fragments on the hook path: each hook puts them together by itself, and what is whole goes its way."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, UDP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.packet import Raw
from support.world import (
    CIP,
    CIP6,
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
    udp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Hook, Verdict

DATA = bytes(range(256)) * 12


@pytest.fixture
def world():
    w = World()
    yield w
    w.close()


def parts(packet, size=1300, ident=5):
    """The fragments of a packet, as its sender makes them."""
    if not isinstance(packet, IPv6):
        return fragment(packet, size - 20 & ~7)
    return fragment6(
        IPv6(src=packet.src, dst=packet.dst, hlim=packet.hlim)
        / IPv6ExtHdrFragment(id=ident)
        / packet.payload,
        size,
    )


def gathered(world, hook, fragments):
    """What becomes of the last one; the others are kept."""
    *first, last = [world.at(hook, each) for each in fragments]
    assert {(out.verdict, out.why) for out in first} <= {(Verdict.STOLEN, Why.GATHERED)}
    return last


@pytest.mark.parametrize("way", [MASQ, DROUTE, TUNNEL])
@pytest.mark.parametrize(("client", "vip", "server"), [(CIP, VIP, RIP[1]), (CIP6, VIP6, RIP6[1])])
def test_a_request(world, client, vip, server, way):
    world.server(world.service(vip, 53, 17), server, 53, way)
    out = gathered(world, Hook.LOCAL_IN, parts(udp(client, 1024, vip, 53, DATA))[::-1])
    assert (out.verdict, out.why, out.to) == (Verdict.STOLEN, Why.FORWARDED, server)
    inner = out.sent[0][1].getlayer(UDP)
    assert bytes(inner.payload) == DATA
    assert sums_right(out.sent[0][1])
    assert world.skb.frag_max == (1300 if client == CIP else 1296), "so it leaves"


@pytest.mark.parametrize(("client", "vip", "server"), [(CIP, VIP, RIP[1]), (CIP6, VIP6, RIP6[1])])
def test_a_reply(world, client, vip, server):
    """IPv4 is accepted whole: the kernel cuts it; IPv6 it would not cut, so that it is sent."""
    world.server(world.service(vip, 53, 17), server, 53)
    world.local_in(udp(client, 1024, vip, 53))
    out = gathered(world, Hook.FORWARD, parts(udp(server, 53, client, 1024, DATA)))
    assert out.why == Why.REPLY
    if client == CIP:
        assert (out.verdict, out.sent) == (Verdict.ACCEPT, [])
        whole = out.content
    else:
        assert (out.verdict, out.to) == (Verdict.STOLEN, CIP6)
        whole = out.sent[0][1]
    assert (whole.src, bytes(whole[UDP].payload)) == (vip, DATA)
    assert sums_right(whole)


@pytest.mark.parametrize(("client", "server"), [(CIP, RIP[1]), (CIP6, RIP6[1])])
def test_of_no_service(world, client, server):
    """It came in pieces for our sake, and goes on whole or is sent."""
    out = gathered(world, Hook.FORWARD, parts(udp(server, 99, client, 1024, DATA)))
    assert out.why == Why.NO_CONN
    whole = out.content if out.verdict == Verdict.ACCEPT else out.sent[0][1]
    assert (whole.src, bytes(whole[UDP].payload)) == (server, DATA)


def test_each_hook_by_itself(world):
    """IP_DEFRAG_VS_IN, _OUT, _FWD: what one hook saw does not complete what another saw."""
    one, *rest = parts(udp(RIP[1], 53, CIP, 1024, DATA))
    assert world.forward(one).why == Why.GATHERED
    assert {world.local_in(each).why for each in rest} == {Why.GATHERED}


def test_overlapping_ones_are_dropped(world):
    one, two, *_ = parts(udp(CIP, 1024, VIP, 53, DATA))
    two[IP].frag -= 2
    assert world.local_in(one).why == Why.GATHERED
    out = world.local_in(two)
    assert (out.verdict, out.why) == (Verdict.DROP, Why.REASSEMBLY)


def test_time_passes(world):
    one, *rest = parts(udp(CIP, 1024, VIP, 53, DATA))
    assert world.local_in(one).why == Why.GATHERED
    world.pass_time(30)
    assert {world.local_in(each).why for each in rest} == {Why.GATHERED}


@pytest.mark.parametrize("protocol", [47, 50, 51])
def test_ipv4_protocols_that_ipvs_does_not_look_into_pass_as_they_are(world, protocol):
    one, *_ = fragment(IP(src=CIP, dst=VIP, proto=protocol) / Raw(DATA), 1000)
    assert world.local_in(one).verdict == Verdict.ACCEPT
    assert world.ipvs.reassembler.info()["queues"] == 0


def test_an_icmp_error_in_pieces(world):
    """ip_vs_out_icmp() gathers first: the checksum is over the whole."""
    world.server(world.service(VIP, 53, 17), RIP[1], 53)
    world.local_in(udp(CIP, 1024, VIP, 53, DATA))
    error = icmp_error(RIP[1], CIP, 3, 3, udp(CIP, 1024, RIP[1], 53, DATA))
    out = gathered(world, Hook.FORWARD, parts(error))
    assert (out.verdict, out.why) == (Verdict.ACCEPT, Why.ICMP_OUT)
    assert (out.content.src, out.content[ICMP].type) == (VIP, 3)
    assert sums_right(out.content)


def test_an_icmpv6_error_behind_a_fragment_header_is_dropped_no_more_once_it_is_whole(world):
    """nf_defrag_ipv6 runs before ip_vs_in_icmp_v6() looks."""
    world.server(world.service(VIP6, 53, 17), RIP6[1], 53)
    atomic = IPv6(src=CIP6, dst=VIP6) / IPv6ExtHdrFragment() / udp(CIP6, 1024, VIP6, 53).payload
    out = world.local_in(atomic)
    assert (out.why, IPv6ExtHdrFragment in out.sent[0][1]) == (Why.FORWARDED, False)


@pytest.mark.parametrize(
    ("came", "mtu", "why"),
    [
        (0, 1500, Why.TOO_BIG),
        (1400, 1500, Why.FORWARDED),
        (1500, 1500, Why.FORWARDED),
        (1500, 1400, Why.TOO_BIG),
    ],
)
def test_an_ipv6_packet_is_too_big_when_its_largest_fragment_is(world, came, mtu, why):
    """__mtu_check_toobig_v6(): where the kernel put it together, somebody else tells how it came."""
    world.server(world.service(VIP6, 53, 17), RIP6[1], 53)
    world.routes.pmtu[packed(RIP6[1])] = mtu
    asked = []
    world.ipvs.largest_fragment = lambda head, indev: asked.append((head, indev)) or came
    packet = ip(CIP6, VIP6) / UDP(sport=1024, dport=53) / Raw(DATA)
    assert world.local_in(packet, indev=3).why == why
    assert asked == [(bytes(packet)[:40], 3)]
    assert world.skb.frag_max == came
