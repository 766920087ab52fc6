"""Fragmentation: which bytes go where, which flags and options each fragment has."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import (
    IP,
    TCP,
    UDP,
    IPOption_EOL,
    IPOption_LSRR,
    IPOption_NOP,
    IPOption_Router_Alert,
    IPOption_RR,
)
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
)
from support.packets import CLIENT, CLIENT6, SERVER, SERVER6, VIP, VIP6, loaded, same

DATA = bytes(range(256)) * 12


def cut(packet: Any, mtu: int, ident: int = 0xABCD) -> list[bytes]:
    parts = loaded(packet).fragments(mtu, ident)
    assert parts is not None
    assert all(len(part) <= mtu for part in parts)
    return parts


def check(parts: list[bytes], expected: list[Any]) -> None:
    assert len(parts) == len(expected)
    for part, want in zip(parts, expected, strict=True):
        assert same(part, want)


def v4(frag: int, flags: str = "MF", **fields: Any) -> Any:
    return IP(src=CLIENT, dst=VIP, id=7, proto=17, frag=frag, flags=flags, **fields)


def test_v4() -> None:
    parts = cut(v4(0, "") / DATA[:3000], 1500)
    check(parts, [v4(0) / DATA[:1480], v4(185) / DATA[1480:2960], v4(370, "") / DATA[2960:3000]])


def test_v4_room_that_is_no_multiple_of_8() -> None:
    """A fragment holds a multiple of 8; the last one may fill the MTU to the byte."""
    check(cut(v4(0, "") / DATA[:119], 83), [v4(0) / DATA[:56], v4(7, "") / DATA[56:119]])
    check(
        cut(v4(0, "") / DATA[:120], 83), [v4(0) / DATA[:56], v4(7) / DATA[56:112], v4(14, "") / DATA[112:120]]
    )


def test_v4_that_fits() -> None:
    packet = v4(0, "DF") / DATA[:100]
    assert cut(packet, 120) == [bytes(packet)]


def test_v4_middle_fragment_is_cut_again() -> None:
    """RFC 791 3.2: every part of a fragment that is not the last keeps MF."""
    check(cut(v4(100) / DATA[:128], 84), [v4(100) / DATA[:64], v4(108) / DATA[64:128]])


def test_v4_last_fragment_is_cut_again() -> None:
    check(cut(v4(100, "") / DATA[:100], 84), [v4(100) / DATA[:64], v4(108, "") / DATA[64:100]])


def test_v4_df_is_not_looked_at_and_an_atomic_datagram_gets_an_identification() -> None:
    atomic = IP(src=CLIENT, dst=VIP, id=0, proto=17, flags="DF") / DATA[:100]
    expected = IP(src=CLIENT, dst=VIP, id=0xABCD, proto=17, flags="MF") / DATA[:64]
    assert same(cut(atomic, 84)[0], expected)
    assert same(cut(v4(0, "DF") / DATA[:100], 84)[0], v4(0) / DATA[:64])


def test_v4_options_with_the_copied_flag() -> None:
    """RFC 791 3.1: source route and router alert in every fragment, record route in the first only."""
    options = [
        IPOption_NOP(),
        IPOption_RR(routers=[SERVER]),
        IPOption_LSRR(routers=[SERVER]),
        IPOption_NOP(),
        IPOption_Router_Alert(),
        IPOption_EOL(),
    ]
    copied = [IPOption_LSRR(routers=[SERVER]), IPOption_Router_Alert(), IPOption_EOL()]
    parts = cut(v4(0, "", options=options) / DATA[:200], 124)
    check(parts, [v4(0, options=options) / DATA[:80], v4(10, options=copied) / DATA[80:168],
                  v4(21, "", options=copied) / DATA[168:200]])  # fmt: skip


@pytest.mark.parametrize(
    "options", [b"\x07", b"\x07\x00\0\0", b"\x07\x01\0\0", b"\x87\xff\1\1", b"\x94\x05\0\0"]
)
def test_v4_options_that_lie_end_the_copying(options: bytes) -> None:
    options = options.ljust(4, b"\0")
    head = bytes(IP(src=CLIENT, dst=VIP, ihl=6, len=24 + 200, id=7, proto=17))
    parts = cut(head + options + DATA[:200], 124)
    assert [len(p) for p in parts] == [120, 124]
    assert parts[0][20:24] == options
    assert parts[1][0] == 0x45
    assert parts[0][24:] + parts[1][20:] == DATA[:200]


def v6(offset: int, more: int, nh: int = 17) -> Any:
    return IPv6ExtHdrFragment(nh=nh, offset=offset, m=more, id=0xABCD)


V6 = IPv6(src=CLIENT6, dst=VIP6, fl=3)


def test_v6() -> None:
    packet = V6 / UDP(sport=1, dport=2) / DATA[:2900]
    body = bytes(packet)[40:]
    check(cut(packet, 1280), [V6 / v6(0, 1) / body[:1232], V6 / v6(154, 1) / body[1232:2464],
                              V6 / v6(308, 0) / body[2464:]])  # fmt: skip


def test_v6_room_that_is_no_multiple_of_8() -> None:
    packet = V6 / UDP(sport=1, dport=2) / DATA[:104]
    body = bytes(packet)[40:]
    check(cut(packet, 111), [V6 / v6(0, 1) / body[:56], V6 / v6(7, 0) / body[56:112]])
    packet = V6 / UDP(sport=1, dport=2) / DATA[:111]
    body = bytes(packet)[40:]
    check(cut(packet, 111), [V6 / v6(0, 1) / body[:56], V6 / v6(7, 0) / body[56:119]])


def test_v6_that_fits() -> None:
    packet = V6 / UDP() / DATA[:1000]
    assert cut(packet, 1280) == [bytes(packet)]


HBH, RH, DST = IPv6ExtHdrHopByHop, IPv6ExtHdrRouting, IPv6ExtHdrDestOpt

# what it shows, extension headers before the fragment header, after it
UNFRAGMENTABLE: list[tuple[str, list[Any], list[Any], int]] = [
    ("hop-by-hop", [HBH()], [], 17),
    ("hop-by-hop, destination", [HBH()], [DST()], 60),
    ("destination", [], [DST()], 60),
    ("routing", [RH(addresses=[SERVER6])], [], 17),
    ("all of RFC 8200 4.1", [HBH(), DST(), RH(addresses=[SERVER6])], [DST()], 60),
]


@pytest.mark.parametrize(
    ("before", "after", "nh"), [r[1:] for r in UNFRAGMENTABLE], ids=[r[0] for r in UNFRAGMENTABLE]
)
def test_v6_per_fragment_headers(before: list[Any], after: list[Any], nh: int) -> None:
    packet, per_fragment = V6, V6
    for header in before:
        packet, per_fragment = packet / header, per_fragment / header
    for header in after:
        packet = packet / header
    packet = packet / UDP(sport=1, dport=2) / DATA[:1500]
    part = len(bytes(per_fragment))
    body, room = bytes(packet)[part:], (1280 - part - 8) // 8 * 8
    check(
        cut(packet, 1280),
        [per_fragment / v6(0, 1, nh) / body[:room], per_fragment / v6(room // 8, 0, nh) / body[room:]],
    )


@pytest.mark.parametrize(
    ("packet", "mtu"),
    [
        (V6 / IPv6ExtHdrFragment(m=1) / UDP() / DATA[:2000], 1280),
        (V6 / IPv6ExtHdrFragment(offset=9, nh=17) / DATA[:2000], 1280),
        (V6 / IPv6ExtHdrFragment() / UDP() / DATA[:2000], 1280),
        (V6 / DST() / IPv6ExtHdrFragment() / UDP() / DATA[:2000], 1280),
        (V6 / UDP() / DATA, 55),
        (V6 / IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(244))]) / UDP() / DATA, 300),
        (V6 / IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(44))]) / TCP() / DATA, 112),
        (v4(0, "") / DATA, 27),
        (v4(0, "") / DATA, 0),
        (v4(0, "", options=[IPOption_NOP()] * 40) / DATA, 67),
        (v4(8100) / DATA, 1280),
    ],
    ids=["v6 fragment", "v6 later", "v6 atomic", "v6 atomic behind options", "v6 mtu", "v6 header chain longer than a fragment",
         "v6 TCP header longer than a fragment's rest (found by fuzzing)",
         "v4 mtu", "mtu 0",
         "v4 options, mtu", "v4 offset beyond 65535"],
)  # fmt: skip
def test_not_to_be_cut(packet: Any, mtu: int) -> None:
    assert loaded(packet).fragments(mtu, 1) is None


def test_v6_longest_header_chain() -> None:
    """Found by fuzzing: sixteen extension headers parse, and so do fragments of such a packet."""
    chain = b"\x3c\0\1\4\0\0\0\0" * 15 + b"\x11\0\1\4\0\0\0\0"
    packet = IPv6(src=CLIENT6, dst=VIP6, nh=60) / (chain + bytes(UDP(sport=1, dport=2) / DATA[:200]))
    for part in cut(packet, 240):
        loaded(part)


def test_largest() -> None:
    packet = IP(src=CLIENT, dst=VIP, id=7, proto=17) / bytes(65515)
    parts = cut(packet, 68)
    assert sum(len(p) - 20 for p in parts) == 65515
    body = bytes(V6 / UDP() / bytes(65527))
    parts = cut(body, 1280)
    assert b"".join(p[48:] for p in parts) == body[40:]
