"""The fast path is the hook path: the same packets through both, and everything is the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP, UDP, fragment
from scapy.layers.l2 import GRE
from scapy.layers.sctp import SCTPChunkCookieAck, SCTPChunkData, SCTPChunkInit
from support.fastworld import FastWorld, everything, sctp, told
from support.lies import KNOBS, director, steps
from support.world import CIP, CIP6, DIP, RIP, RIP6, TUNNEL, VIP, VIP6, World, icmp_error, packed, tcp, udp

from uvs.egress.fragments import Sizes
from uvs.engine.core import AF_INET, TUN_F_CSUM, TUN_F_REMCSUM, TUN_GRE, TUN_GUE, NextHop, Step
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


def toggle_pmtu_disc(world: World) -> None:
    world.ipvs.sysctl.set("pmtu_disc", 1 - world.ipvs.sysctl.pmtu_disc)


def toggle_tunnel(world: World) -> None:
    for svc in list(world.ipvs.services):
        for dest in [dest for dest in svc.dests if dest.spec.fwd == TUNNEL]:
            kind = (dest.spec.tun_type + 1) % 3
            world.ipvs.services.edit_dest(svc.key, replace(dest.spec, tun_type=kind, tun_port=6080))


# What may happen between packets.
CHANGES: dict[str, Callable[[World], None]] = {
    "its server is deleted, or comes back": toggle_server,
    "its service is by single packets, or not": toggle_ops,
    "a packet of its size fits, or not": toggle_mtu,
    "there is no route, or again": lambda world: toggle(world.routes.unreachable, packed(RIP[1])),
    "the server is this host, or not": lambda world: toggle(world.routes.local, packed(RIP[1])),
    "deleted servers' connections end": lambda world: world.ipvs.expire_nodest_conns(),
    "outer headers have DF, or not": toggle_pmtu_disc,
    "another kind of tunnel": toggle_tunnel,
}


def compare(packets: Any, knobs: set[str], half: bool = False, make: Callable[[], World] = director) -> int:
    """Both ways; how many went by the fast path. A packet: hook, bytes, mark, seconds until the next; then, if so,
    that it stands for many segments."""
    slow, fast = make(), FastWorld(make())
    fast.half = half
    try:
        for world in (slow, fast):
            for name in knobs:
                world.ipvs.sysctl.set(name, 1)
        for hook, data, mark, seconds, *gso in packets:
            if hook is None:
                for world in (slow, fast):
                    CHANGES[data](world)
                continue
            how = {"mark": mark, "gso": bool(gso)}
            assert told(fast.at(hook, data, **how)) == told(slow.at(hook, data, **how))
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
] + [
    (Hook.LOCAL_OUT, bytes(packet))
    for packet in (
        *(tcp(RIP[1], 8080, CIP, 1024, flags) for flags in ("SA", "A", "FA")), tcp(VIP, 81, CIP, 1024, "SA"),
        tcp(RIP[1], 8080, DIP, 1024, "SA"), tcp(DIP, 1024, VIP, 80), tcp(DIP, 1024, VIP, 80, "A"),
        udp(RIP[1], 5353, CIP, 2000), tcp(CIP, 1024, VIP, 80, "A"), tcp(RIP6[1], 8080, CIP6, 1024, "SA"),
        udp(CIP, 2000, "224.0.0.5", 53), tcp(RIP[2], 9, CIP, 9, "A"),
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


HERE = None, "the server is this host, or not"


@pytest.mark.parametrize(
    ("steps", "fast"),
    [
        (((Hook.LOCAL_IN, tcp(CIP, 1024, VIP, 80, "A")),), 1),
        (((Hook.LOCAL_OUT, tcp(RIP[1], 8080, CIP, 1024, "SA")),), 1),
        (((Hook.LOCAL_OUT, tcp(RIP[1], 8080, DIP, 1024, "SA")),), 0),
        ((HERE, (Hook.LOCAL_OUT, tcp(CIP, 1024, VIP, 80, "A")),), 0),
    ],
    ids=["request", "reply", "reply to this host", "by this host"],
)  # fmt: skip
def test_local_servers_it_takes(steps: Any, fast: int) -> None:
    """What is for a server on this host, and its replies; but what comes to LOCAL_IN afterwards."""
    opening = (Hook.LOCAL_IN, tcp(CIP, 1024, VIP, 80), 0, 0)
    assert compare([opening, (*HERE, 0, 0), *((*step, 0, 0) for step in steps)], set()) == fast


@pytest.mark.parametrize(("indev", "fast"), [(1, True), (2, False)], ids=["from it", "from elsewhere"])
def test_server_on_the_loopback_device(indev: int, fast: bool) -> None:
    """It is only reached from there (ip_vs_nat_xmit)."""
    worlds = World(), FastWorld(World())
    told_by = []
    for world in worlds:
        world.routes.local.add(packed("127.0.0.1"))
        world.server(world.service(VIP, 80), "127.0.0.1", 8080)
        world.local_in(tcp(VIP, 1024, VIP, 80), indev=1)
        told_by.append((told(world.local_in(tcp(VIP, 1024, VIP, 80, "A"), indev=indev)), everything(world)))
    assert told_by[0] == told_by[1]
    assert worlds[1].fast == fast


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


# ---- tunnels

KINDS = {
    "ipip": {},
    "gue": {"tun_type": TUN_GUE, "tun_port": 6080},
    "gue csum": {"tun_type": TUN_GUE, "tun_port": 6080, "tun_flags": TUN_F_CSUM},
    "gue remcsum": {"tun_type": TUN_GUE, "tun_port": 6080, "tun_flags": TUN_F_REMCSUM},
    "gre": {"tun_type": TUN_GRE},
    "gre csum": {"tun_type": TUN_GRE, "tun_flags": TUN_F_CSUM},
}
ENDS = {4: (CIP, VIP, RIP[1]), 6: (CIP6, VIP6, RIP6[1])}
LEARNT = 1400  # bytes: a path MTU


def through(kind: str, inner: int, outer: int) -> Callable[[], World]:
    """A director whose servers are behind tunnels."""

    def make() -> World:
        world = World()
        world.ipvs.flow_seed = 7
        for port, protocol in ((80, 6), (53, 17)):
            svc = world.service(ENDS[inner][1], port, protocol)
            world.server(svc, ENDS[outer][2], port, TUNNEL, **KINDS[kind])
        return world

    return make


def told_to(packet: Any, df: bool, ttl: int) -> bytes:
    if packet.version == 6:
        packet.hlim = ttl
    else:
        packet.flags, packet.ttl = "DF" if df else 0, ttl
    return bytes(packet)


def tunnelled(draw: Callable[..., Any], kind: str, inner: int, outer: int) -> tuple[Any, ...]:
    """What may come: segments around what fits the tunnel, packets of many of them, what routers say."""
    cip, vip, rip = ENDS[inner][0], ENDS[inner][1], ENDS[outer][2]
    what = draw(st.sampled_from(["tcp", "tcp", "many", "many", "udp", "error", "change"]))
    if what == "change":
        return None, draw(st.sampled_from(["a packet of its size fits, or not", "outer headers have DF, or not",
                                           "another kind of tunnel"])), 0, 0  # fmt: skip
    if what == "error":
        if outer == 6 or inner == 6:
            return Hook.LOCAL_IN, bytes(tcp(cip, 9, vip, 80, "A")), 0, 0
        inside = tcp(cip, 1024, vip, 80, "A")
        if draw(st.booleans()):
            inside.flags = "DF"
        between = {
            "ipip": b"",
            "gue": bytes(UDP(sport=40000, dport=6080)) + b"\0\4\0\0",
            "gre": bytes(GRE(proto=0x0800, chksum_present="csum" in kind)),
        }[kind.split()[0]]
        protocol = {"ipip": 4, "gue": 17, "gre": 47}[kind.split()[0]]
        quoted = IP(src=DIP, dst=rip, proto=protocol) / (between + bytes(inside))
        return Hook.LOCAL_IN, bytes(icmp_error("198.19.0.77", DIP, 3, 4, quoted, mtu=LEARNT)), 0, 0
    df = inner == 4 and draw(st.booleans())
    ttl = draw(st.sampled_from([64, 64, 64, 2, 1]))
    head = 20 if inner == 4 else 40
    room = draw(st.sampled_from([1500, 1500, LEARNT, 600])) - (20 if outer == 4 else 40) - head
    room += draw(st.integers(-60, 12)) if draw(st.booleans()) else -draw(st.integers(60, 500))
    if what == "udp":
        return Hook.LOCAL_IN, told_to(udp(cip, 2000, vip, 53, b"u" * max(room - 8, 0)), df, ttl), 0, 0
    if draw(st.integers(0, 9)) == 0:
        packet = tcp(cip, 1024, vip, 80, "S")
        packet[TCP].options = [("MSS", draw(st.sampled_from([536, 1400, 1460, 8960])))]
        return Hook.LOCAL_IN, told_to(packet, df, ttl), 0, 0
    flags = draw(st.sampled_from(["A", "PA", "FPA", "AC"]))
    size = room - 20 if what == "tcp" else draw(st.sampled_from([0, 1, 1000, 1448, 2896, 3000, 20000, 60000]))
    data = bytes(range(251)) * (size // 251 + 1)
    packet = tcp(cip, 1024, vip, 80, flags, data[: max(size, 0)])
    if draw(st.booleans()):
        packet[TCP].options = [("NOP", None), ("NOP", None), ("Timestamp", (7, 9))]
    return Hook.LOCAL_IN, told_to(packet, df, ttl), 0, 0, *([True] if what == "many" else [])


@pytest.mark.parametrize("outer", [4, 6])
@pytest.mark.parametrize("inner", [4, 6])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=25, deadline=None)
@given(st.data(), st.booleans())
def test_tunnels(kind: str, inner: int, outer: int, data: st.DataObject, half: bool) -> None:
    """Every kind, around the MTU, whole and in many segments."""
    packets = [
        tunnelled(lambda strategy: data.draw(strategy), kind, inner, outer)
        for _ in range(data.draw(st.integers(1, 12)))
    ]
    cip, vip = ENDS[inner][:2]
    opening = [
        (Hook.LOCAL_IN, bytes(tcp(cip, 1024, vip, 80))),
        (Hook.LOCAL_IN, bytes(udp(cip, 2000, vip, 53))),
    ]
    compare([*((*packet, 0, 0) for packet in opening), *packets], set(), half, through(kind, inner, outer))


@pytest.mark.parametrize("outer", [4, 6])
@pytest.mark.parametrize("inner", [4, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_tunnels_it_takes(kind: str, inner: int, outer: int) -> None:
    """What fits goes by the fast path, packets of many segments always; others do not."""
    cip, vip = ENDS[inner][:2]
    head = {"ipip": 0, "gue": 12, "gre": 8 if "csum" in kind else 4}[kind.split()[0]] + (
        20 if outer == 4 else 40
    )
    room = 1500 - head - (40 if inner == 4 else 60)
    opening = (Hook.LOCAL_IN, bytes(tcp(cip, 1024, vip, 80)), 0, 0)
    for size, gso, fast in ((room, False, 1), (room + 1, False, 0), (room + 1, True, 1), (40000, True, 1)):
        packet = (Hook.LOCAL_IN, bytes(tcp(cip, 1024, vip, 80, "A", b"x" * size)), 0, 0)
        assert (
            compare([opening, (*packet, True) if gso else packet], set(), True, through(kind, inner, outer))
            == fast
        )
