"""Packets that stand for many TCP segments: what leaves of them are segments, whole in themselves."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6
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
    ends,
    icmp_error,
    packed,
    sums_right,
    tcp,
)

from uvs.engine.core import Why
from uvs.ipvs.skb import Verdict

DATA = bytes(range(256)) * 16
GATEWAY = "198.18.0.254"


def made_whole(sent):
    """The packets that were sent are segments; what they carry, put together."""
    for _, packet in sent:
        assert len(packet) <= 1500
        assert sums_right(packet)
    return b"".join(bytes(packet[TCP][Raw]) for _, packet in sent)


@pytest.mark.parametrize(("vip", "rip", "cip"), [(VIP, RIP[1], CIP), (VIP6, RIP6[1], CIP6)], ids=["v4", "v6"])
@pytest.mark.parametrize("fwd", [MASQ, DROUTE, TUNNEL], ids=["nat", "dr", "tun"])
def test_requests(world, fwd, vip, rip, cip):
    world.server(world.service(vip), rip, fwd=fwd)
    world.local_in(tcp(cip, 1024, vip, 80))
    out = world.local_in(tcp(cip, 1024, vip, 80, "A", DATA), gso=True)
    assert (out.verdict, out.why) == (Verdict.STOLEN, Why.FORWARDED)
    assert made_whole(out.sent) == DATA
    assert {to for to, _ in out.sent} == {rip}


def test_a_reply_that_is_routed_anew(world):
    """Taken out at FORWARD (snat_reroute) it is cut like any other: no frame holds the whole."""
    world.server(world.service(), RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.routes.ways[packed(VIP), 0] = packed(GATEWAY)
    out = world.forward(tcp(RIP[1], 80, CIP, 1024, "A", DATA), gso=True)
    assert (out.verdict, out.why, out.to) == (Verdict.STOLEN, Why.REPLY, GATEWAY)
    assert made_whole(out.sent) == DATA
    assert {ends(packet) for _, packet in out.sent} == {(VIP, CIP)}


def test_a_reply_that_keeps_its_route_stays_one(world):
    """The kernel still knows how to cut it."""
    world.server(world.service(), RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    out = world.forward(tcp(RIP[1], 80, CIP, 1024, "A", DATA), gso=True)
    assert (out.verdict, out.why, out.sent) == (Verdict.ACCEPT, Why.REPLY, [])
    assert bytes(out.content[TCP][Raw]) == DATA


def too_big(rip, cip, mtu):
    """A router's answer to a request that was sent on."""
    request = tcp(cip, 1024, rip, 80, "A")
    if ":" in rip:
        return IPv6(src="2001:db8:19::77", dst=cip) / ICMPv6PacketTooBig(mtu=mtu) / request
    return icmp_error("198.19.0.77", cip, 3, 4, request, mtu=mtu)


@pytest.mark.parametrize(("vip", "rip", "cip"), [(VIP, RIP[1], CIP), (VIP6, RIP6[1], CIP6)], ids=["v4", "v6"])
@pytest.mark.parametrize(
    ("told", "fits"), [((1400,), 1400), ((1300, 1400), 1300), ((1,), None), ((0,), 1500)]
)
def test_a_path_mtu_behind_the_director(world, vip, rip, cip, told, fits):
    """What its sender learns to make smaller is not cut larger again; nobody makes it tiny."""
    world.server(world.service(vip), rip)
    syn = tcp(cip, 1024, vip, 80)
    syn[TCP].options = [("MSS", 1460)]
    world.local_in(syn)
    for mtu in told:
        assert world.forward(too_big(rip, cip, mtu)).why == Why.ICMP_OUT
    out = world.local_in(tcp(cip, 1024, vip, 80, "A", DATA), gso=True)
    assert max(len(packet) for _, packet in out.sent) == (fits or (552 if vip == VIP else 1280))
    assert made_whole(out.sent) == DATA
