"""Packets that stand for many TCP segments: what leaves of them are segments, whole in themselves."""

from __future__ import annotations

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Raw
from support.world import CIP, CIP6, DROUTE, MASQ, RIP, RIP6, TUNNEL, VIP, VIP6, ends, packed, sums_right, tcp

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
