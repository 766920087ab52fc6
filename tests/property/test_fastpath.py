"""The fast path is the hook path: the same packets through both, and everything is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import fragment
from scapy.layers.sctp import SCTPChunkCookieAck, SCTPChunkData, SCTPChunkInit
from support.fastworld import FastWorld, everything, sctp, told
from support.lies import KNOBS, director, steps
from support.world import CIP, CIP6, RIP, RIP6, VIP, VIP6, World, packed, tcp, udp

from uvs.egress.fragments import Sizes
from uvs.engine.core import AF_INET, NextHop, Step
from uvs.ipvs.services import SVC_F_ONEPACKET, ServiceKey
from uvs.ipvs.skb import Hook


def toggle(things: set[Any], thing: Any) -> None:
    things.symmetric_difference_update({thing})


def toggle_server(world: World) -> None:
    svc = world.ipvs.services.get(ServiceKey(AF_INET, 6, packed(VIP), 80))
    if svc.dests:
        world.delete(svc, RIP[1], 8080)
    else:
        world.server(svc, RIP[1], 8080)


def toggle_ops(world: World) -> None:
    spec = world.ipvs.services.get(ServiceKey(AF_INET, 17, packed(VIP), 53)).spec
    world.ipvs.services.edit_service(replace(spec, flags=spec.flags ^ SVC_F_ONEPACKET))


def toggle_mtu(world: World) -> None:
    world.routes.mtu = 1500 + 600 - world.routes.mtu


# What may happen between packets.
CHANGES: dict[str, Callable[[World], None]] = {
    "its server is deleted, or comes back": toggle_server,
    "its service is by single packets, or not": toggle_ops,
    "a packet of its size fits, or not": toggle_mtu,
    "there is no route, or again": lambda world: toggle(world.routes.unreachable, packed(RIP[1])),
    "the server is this host, or not": lambda world: toggle(world.routes.local, packed(RIP[1])),
    "deleted servers' connections end": lambda world: world.ipvs.expire_nodest_conns(),
}


def compare(packets: Any, knobs: set[str], half: bool = False) -> int:
    """Both ways; how many went by the fast path."""
    slow, fast = director(), FastWorld(director())
    fast.half = half
    try:
        for world in (slow, fast):
            for name in knobs:
                world.ipvs.sysctl.set(name, 1)
        for hook, data, mark, seconds in packets:
            if hook is None:
                for world in (slow, fast):
                    CHANGES[data](world)
                continue
            assert told(fast.at(hook, data, mark=mark)) == told(slow.at(hook, data, mark=mark))
            assert everything(fast) == everything(slow)
            for world in (slow, fast):
                world.pass_time(seconds)
        assert everything(fast) == everything(slow)
        return fast.fast
    finally:
        slow.close()
        fast.close()


# Flows as they are: what each end says, in any order.
SAID = [
    (Hook.LOCAL_IN, bytes(packet))
    for packet in (
        *(tcp(CIP, 1024, VIP, port, flags, b"x" * n) for port in (80, 81, 82, 21)
          for flags, n in (("S", 0), ("A", 0), ("PA", 100), ("FA", 0), ("R", 0))),
        *(tcp(CIP6, 1024, VIP6, 80, flags) for flags in ("S", "A", "FA")),
        tcp(CIP, 1024, VIP, 80, "A", b"x" * 1480), tcp(CIP, 1024, VIP, 80, "A", ttl=1),
        tcp("127.0.0.1", 1024, VIP, 80, "S"), tcp("127.0.0.1", 1024, VIP, 80, "A"),
        udp(CIP, 2000, VIP, 53), udp(CIP6, 2000, VIP6, 53), udp(CIP, 2000, "224.0.0.5", 53),
        sctp(CIP, 1024, VIP, 80, SCTPChunkInit()), sctp(CIP, 1024, VIP, 80, SCTPChunkData(data=b"x")),
        tcp(RIP[1], 8080, CIP, 1024, "SA"),
    )
] + [
    (Hook.FORWARD, bytes(packet))
    for packet in (
        *(tcp(RIP[1], 8080, CIP, 1024, flags) for flags in ("SA", "A", "FA", "R")),
        tcp(VIP, 81, CIP, 1024, "SA"), tcp(RIP[1], 21, CIP, 1024, "PA", b"220 \r\n"),
        tcp(RIP6[1], 8080, CIP6, 1024, "SA"), tcp(RIP[2], 9, CIP, 9, "A"), udp(RIP[1], 5353, CIP, 2000),
        udp(RIP6[1], 5353, CIP6, 2000), udp(RIP[2], 5060, CIP, 5060), tcp(RIP[1], 8080, CIP, 0, "A"),
        sctp(RIP[1], 8080, CIP, 1024, SCTPChunkCookieAck()),
    )
]  # fmt: skip

flows = st.lists(
    st.tuples(st.sampled_from(SAID), st.sampled_from([0, 0, 0, 0, 1, 70])).map(lambda t: (*t[0], 0, t[1])),
    min_size=1,
    max_size=40,
)
changes = st.lists(
    st.tuples(st.sampled_from(SAID), st.sampled_from([0, 0, 0, 70])).map(lambda t: (*t[0], 0, t[1]))
    | st.sampled_from(sorted(CHANGES)).map(lambda name: (None, name, 0, 0)),
    min_size=1,
    max_size=60,
)
knobs = st.sets(st.sampled_from([*KNOBS, "snat_reroute", "run_estimation"]))


@settings(max_examples=300, deadline=None)
@given(flows, knobs, st.booleans())
def test_flows(packets, knobs, half):
    compare(packets, knobs, half)


@settings(max_examples=300, deadline=None)
@given(changes, knobs)
def test_changes(packets, knobs):
    """In mid-flow."""
    compare(packets, knobs)


@settings(max_examples=200, deadline=None)
@given(steps, knobs)
def test_lies(packets, knobs):
    compare(packets, knobs)


@pytest.mark.parametrize(
    ("opening", "packet"),
    [
        ([tcp(CIP, 1024, VIP, 80)], (Hook.LOCAL_IN, tcp(CIP, 1024, VIP, 80, "A"))),
        ([tcp(CIP, 1024, VIP, 81)], (Hook.LOCAL_IN, tcp(CIP, 1024, VIP, 81, "PA", b"x"))),
        ([tcp(CIP, 1024, VIP, 80)], (Hook.FORWARD, tcp(RIP[1], 8080, CIP, 1024, "SA"))),
        ([tcp(CIP6, 1024, VIP6, 80)], (Hook.LOCAL_IN, tcp(CIP6, 1024, VIP6, 80, "A"))),
        ([udp(CIP, 2000, VIP, 53)], (Hook.LOCAL_IN, udp(CIP, 2000, VIP, 53))),
        ([sctp(CIP, 1024, VIP, 80, SCTPChunkInit())],
         (Hook.LOCAL_IN, sctp(CIP, 1024, VIP, 80, SCTPChunkData(data=b"x")))),
        ([], (Hook.LOCAL_IN, tcp(CIP, 1024, VIP, 80, "A"))),
        ([], (Hook.FORWARD, tcp(RIP[3], 8080, CIP, 1024, "A"))),
    ],
    ids=["nat", "dr", "reply", "nat v6", "udp", "sctp", "no connection", "no reply"],
)  # fmt: skip
def test_what_it_takes(opening: list[Any], packet: tuple[Hook, Any]) -> None:
    """Else the tests above could compare the hook path with itself."""
    packets = [(Hook.LOCAL_IN, p, 0, 0) for p in opening]
    assert compare([*packets, (*packet, 0, 0)], set()) == 1


def test_a_row_that_is_gone() -> None:
    """A connection that holds the index of a row that is gone goes to the hook path, though its slot has another."""
    world = FastWorld(director())
    world.local_in(tcp(CIP, 1024, VIP, 80))
    (conn,) = world.table.conns()
    world.hops.put(conn.nexthop + 65536, NextHop(1, 1500), True)
    assert world.packet.load(bytes(tcp(CIP, 1024, VIP, 80, "A"))) == 0
    assert world.fastpath.step(world.packet, Hook.LOCAL_IN, world.now) == (Step.SLOW, 0, 0)


def datagram(size: int, ident: int) -> Any:
    packet = udp(CIP, 2000, VIP, 53, b"x" * size)
    packet.id = ident
    return packet


@pytest.mark.parametrize(
    ("pieces", "packet", "fast"),
    [
        ((), datagram(1000, 7), True),
        ((), datagram(1473, 7), False),  # longer than the link it came by
        ((7,), datagram(1000, 7), False),
        ((7, 7), datagram(1000, 7), False),
        ((8,), udp(CIP6, 2000, VIP6, 53), True),
    ],
    ids=["none", "unseen", "one", "two", "another's"],
)
def test_what_came_in_fragments(pieces: tuple[int, ...], packet: Any, fast: bool) -> None:
    """It leaves in such: the hook path's. Others are not kept from the fast path."""
    world, sizes = FastWorld(director()), Sizes()
    world.whole = 1500
    sizes.count = world.fastpath.fragmented
    world.ipvs.largest_fragment = lambda head, indev: sizes.largest(head, world.whole)
    world.local_in(datagram(1, 1))
    world.local_in(udp(CIP6, 2000, VIP6, 53))
    for ident in pieces:
        for part in fragment(datagram(1000, ident), 600):
            sizes.fragment(bytes(part))
    before = world.fast
    world.local_in(packet)
    assert world.fast == before + fast
    world.local_in(datagram(1000, 9))
    assert world.fast == before + fast + (pieces != (8,)), "what was asked for is forgotten"
