"""The parser: what it reads of a packet, and what it refuses."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP, IPOption_RR
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
)
from scapy.layers.ipsec import AH, ESP
from scapy.layers.sctp import SCTP, SCTPChunkAbort, SCTPChunkCookieAck, SCTPChunkCookieEcho, SCTPChunkInit
from scapy.packet import Raw
from support.packets import CLIENT, CLIENT6, CPORT, SERVER, SERVER6, VIP, VIP6, VPORT, flags, loaded, packed

from uvs.engine.core import AF_INET, AF_INET6, PACKET_MAX, Packet, Why

V4 = IP(src=CLIENT, dst=VIP, tos=0x2A, ttl=61)
V6 = IPv6(src=CLIENT6, dst=VIP6, tc=0x2A, hlim=61)
T = TCP(sport=CPORT, dport=VPORT, flags="SA")
U = UDP(sport=CPORT, dport=VPORT)
S = SCTP(sport=CPORT, dport=VPORT)
HBH, RH, DST = IPv6ExtHdrHopByHop(), IPv6ExtHdrRouting(addresses=[SERVER6]), IPv6ExtHdrDestOpt()
AH_HEADER = AH(nh=6, payloadlen=4, icv=bytes(12))
PORTS = {"sport": CPORT, "dport": VPORT}


def chain(nh: int, n: int, last: int) -> Any:
    """`n` smallest extension headers of type `nh`, then one of type `last`."""
    padding = b"\0\1\4\0\0\0\0"
    return IPv6(src=CLIENT6, dst=VIP6, nh=nh) / (bytes([nh, *padding]) * (n - 1) + bytes([last, *padding]))


# what it shows, packet, flags, fields
READ: list[tuple[str, Any, str, dict[str, Any]]] = [
    (
        "v4 tcp",
        V4 / T / b"hello",
        "PORTS L4",
        PORTS | {"tcp_flags": 0x12, "len": 20, "end": 45, "segment": 5},
    ),
    (
        "v4 address family, tos, ttl",
        V4 / T,
        "PORTS L4",
        {"af": AF_INET, "tos": 0x2A, "ttl": 61, "protocol": 6},
    ),
    ("v4 addresses", V4 / T, "PORTS L4", {"saddr": packed(CLIENT), "daddr": packed(VIP)}),
    ("v6 address family, class, hops", V6 / T, "PORTS L4", {"af": AF_INET6, "tos": 0x2A, "ttl": 61}),
    ("v6 addresses", V6 / T, "PORTS L4", {"saddr": packed(CLIENT6), "daddr": packed(VIP6), "len": 40}),
    (
        "v4 options",
        IP(src=CLIENT, dst=VIP, options=[IPOption_RR(routers=[SERVER] * 8), IPOption_NOP()]) / T,
        "PORTS L4",
        PORTS | {"len": 56},
    ),
    ("v4 udp", V4 / U / b"x", "PORTS L4", PORTS | {"protocol": 17, "end": 29, "segment": 0}),
    ("v4 don't fragment", IP(src=CLIENT, dst=VIP, flags="DF") / T, "PORTS L4 DF", PORTS),
    (
        "v4 first fragment",
        IP(src=CLIENT, dst=VIP, flags="MF") / U,
        "PORTS L4 FRAGMENT",
        PORTS | {"fragoffs": 0},
    ),
    (
        "v4 middle fragment",
        IP(src=CLIENT, dst=VIP, flags="MF", frag=3, proto=6) / bytes(40),
        "FRAGMENT LATER",
        {"fragoffs": 24, "sport": 0, "dport": 0},
    ),
    (
        "v4 last fragment",
        IP(src=CLIENT, dst=VIP, frag=3, proto=6) / bytes(40),
        "FRAGMENT LATER",
        {"fragoffs": 24},
    ),
    (
        "tcp cut after its ports",
        IP(src=CLIENT, dst=VIP, proto=6) / bytes(T)[:4],
        "PORTS",
        PORTS | {"tcp_flags": 0, "segment": 0},
    ),
    ("tcp cut in its ports", IP(src=CLIENT, dst=VIP, proto=6) / bytes(T)[:3], "", {"sport": 0, "dport": 0}),
    ("tcp, one byte short", IP(src=CLIENT, dst=VIP, proto=6) / bytes(T)[:19], "PORTS", PORTS),
    ("tcp options", V4 / TCP(options=[("MSS", 1460), ("NOP", None)]) / b"abc", "PORTS L4", {"segment": 3}),
    ("tcp data offset below 5", V4 / TCP(dataofs=3) / b"abc", "PORTS L4", {"segment": 0}),
    ("tcp data offset past the end", V4 / TCP(dataofs=15) / b"abc", "PORTS L4", {"segment": 0}),
    ("udp cut", IP(src=CLIENT, dst=VIP, proto=17) / bytes(U)[:7], "PORTS", PORTS),
    ("no transport header at all", IP(src=CLIENT, dst=VIP, proto=6), "", {"len": 20, "end": 20}),
    ("sctp init", V4 / S / SCTPChunkInit(), "PORTS L4", PORTS | {"chunk": 1, "next_chunk": 255}),
    (
        "sctp two chunks",
        V4 / S / SCTPChunkCookieAck() / SCTPChunkAbort(),
        "PORTS L4",
        {"chunk": 11, "next_chunk": 6},
    ),
    (
        "sctp second chunk after padding",
        V4 / S / SCTPChunkCookieEcho(cookie=b"12345") / SCTPChunkAbort(),
        "PORTS L4",
        {"chunk": 10, "next_chunk": 6},
    ),
    (
        "sctp chunk shorter than its header",
        IP(src=CLIENT, dst=VIP, proto=132) / bytes(S)[:12] / b"\x0b\0\0\3\6\0\0\4",
        "PORTS L4",
        {"chunk": 11, "next_chunk": 255},
    ),
    (
        "sctp chunk past the end",
        IP(src=CLIENT, dst=VIP, proto=132) / bytes(S)[:12] / b"\x0b\0\xff\xff\6\0\0\4",
        "PORTS L4",
        {"chunk": 11, "next_chunk": 255},
    ),
    ("sctp without a chunk", IP(src=CLIENT, dst=VIP, proto=132) / bytes(S)[:12], "PORTS", {"chunk": 255}),
    ("icmp", V4 / ICMP(type=3, code=4), "L4", {"icmp_type": 3, "icmp_code": 4, "sport": 0}),
    ("icmp cut", IP(src=CLIENT, dst=VIP, proto=1) / b"\3\4\0\0\0\0\0", "", {"icmp_type": 0}),
    ("icmpv6", V6 / ICMPv6EchoRequest(), "L4", {"icmp_type": 128, "protocol": 58}),
    (
        "icmp in ipv6 is no icmp",
        IPv6(src=CLIENT6, dst=VIP6, nh=1) / bytes(8),
        "",
        {"icmp_type": 0, "protocol": 1},
    ),
    ("icmpv6 in ipv4 is no icmp", IP(src=CLIENT, dst=VIP, proto=58) / bytes(8), "", {"icmp_type": 0}),
    ("v4 ah is a protocol", V4 / AH_HEADER / T, "", {"protocol": 51, "len": 20, "sport": 0}),
    ("v4 esp", V4 / ESP(data=bytes(32)), "", {"protocol": 50}),
    ("v6 esp", V6 / ESP(data=bytes(32)), "", {"protocol": 50, "len": 40}),
    ("v6 ah is stepped over", V6 / AH_HEADER / T, "PORTS L4", PORTS | {"protocol": 6, "len": 64}),
    ("v6 hop-by-hop", V6 / HBH / T, "PORTS L4", PORTS | {"protocol": 6, "len": 48}),
    ("v6 routing", V6 / RH / T, "PORTS L4", PORTS | {"len": 64, "daddr": packed(VIP6)}),
    (
        "v6 hop-by-hop, routing, destination",
        V6 / HBH / RH / IPv6ExtHdrDestOpt(options=[PadN(optdata=bytes(20))]) / U,
        "PORTS L4",
        PORTS | {"protocol": 17, "len": 96},
    ),
    (
        "v6 first fragment",
        V6 / IPv6ExtHdrFragment(m=1) / T,
        "PORTS L4 FRAGMENT",
        PORTS | {"len": 48, "fragoffs": 0},
    ),
    ("v6 atomic fragment", V6 / IPv6ExtHdrFragment() / T, "PORTS L4 ATOMIC", PORTS | {"len": 48}),
    (
        "v6 later fragment",
        V6 / IPv6ExtHdrFragment(offset=185, nh=6) / bytes(64),
        "FRAGMENT LATER",
        {"fragoffs": 1480, "protocol": 6, "len": 48, "sport": 0},
    ),
    (
        "v6 later fragment: what follows is no header",
        V6 / IPv6ExtHdrFragment(offset=1, nh=60) / (b"\xff" * 16),
        "FRAGMENT LATER",
        {"protocol": 60, "len": 48},
    ),
    ("v6 sixteen extension headers", chain(60, 16, 6) / T, "PORTS L4", {"len": 168}),
    ("v6 no next header", IPv6(src=CLIENT6, dst=VIP6, nh=59), "", {"protocol": 59, "len": 40}),
    ("v6 jumbo length 0", IPv6(src=CLIENT6, dst=VIP6, nh=6, plen=0) / T, "", {"end": 40}),
    (
        "v6 sixteen extension headers and a fragment header",
        chain(60, 16, 44) / IPv6ExtHdrFragment(nh=6) / T,
        "PORTS L4 ATOMIC",
        {"len": 176},
    ),
    ("bytes after the datagram", Raw(bytes(V4 / U) + b"trailer"), "PORTS L4", {"end": 28}),
    ("largest v4", V4 / U / bytes(PACKET_MAX - 28), "PORTS L4", {"end": 65535}),
    ("largest v6", V6 / U / bytes(PACKET_MAX - 8), "PORTS L4", {"end": 65575}),
]


@pytest.mark.parametrize(("packet", "names", "expected"), [r[1:] for r in READ], ids=[r[0] for r in READ])
def test_read(packet: Any, names: str, expected: dict[str, Any]) -> None:
    iph = loaded(packet).iph
    assert {name: getattr(iph, name) for name in expected} == expected
    assert iph.flags == flags(names)


def patched(packet: Any, at: int, value: bytes) -> bytes:
    data = bytearray(bytes(packet))
    data[at : at + len(value)] = value
    return bytes(data)


def cut(packet: Any, plen: int) -> bytes:
    """An IPv6 packet cut to `plen` bytes of payload, honestly."""
    data = bytes(packet)[: 40 + plen]
    return data[:4] + struct.pack("!H", plen) + data[6:]


REFUSED: list[tuple[str, bytes, Why]] = [
    ("nothing", b"", Why.SHORT),
    ("one byte of v4", b"\x45", Why.SHORT),
    ("19 bytes of v4", bytes(V4 / T)[:19], Why.SHORT),
    ("v4 header only, more announced", bytes(V4 / T)[:20], Why.SHORT),
    ("v4 last byte missing", bytes(V4 / T)[:-1], Why.SHORT),
    ("39 bytes of v6", bytes(V6 / T)[:39], Why.SHORT),
    ("v6 last byte missing", bytes(V6 / T)[:-1], Why.SHORT),
    ("version 0", patched(V4 / T, 0, b"\x05"), Why.MALFORMED),
    ("version 5", patched(V4 / T, 0, b"\x55"), Why.MALFORMED),
    ("v4 ihl 4", patched(V4 / T, 0, b"\x44"), Why.MALFORMED),
    ("v4 ihl 0", patched(V4 / T, 0, b"\x40"), Why.MALFORMED),
    ("v4 total length 0", patched(V4 / T, 2, b"\0\0"), Why.MALFORMED),
    ("v4 total length below its header", patched(V4 / T, 2, b"\0\x13"), Why.MALFORMED),
    ("v4 ihl past the total length", patched(V4 / U, 0, b"\x48"), Why.MALFORMED),
    ("v6 hop-by-hop without bytes", IPv6(src=CLIENT6, dst=VIP6, nh=0).build(), Why.MALFORMED),
    ("v6 hop-by-hop of 7 bytes", cut(V6 / HBH / T, 7), Why.MALFORMED),
    ("v6 hop-by-hop past the end", patched(V6 / HBH / T, 41, b"\xff"), Why.MALFORMED),
    ("v6 routing past the end", patched(V6 / RH, 41, b"\x03"), Why.MALFORMED),
    ("v6 destination past the end", patched(V6 / DST / U, 41, b"\2"), Why.MALFORMED),
    ("v6 ah past the end", patched(V6 / AH_HEADER, 41, b"\x05"), Why.MALFORMED),
    ("v6 fragment header of 7 bytes", cut(V6 / IPv6ExtHdrFragment(nh=6), 7), Why.MALFORMED),
    (
        "v6 seventeen extension headers",
        bytes(chain(60, 17, 6) / T),
        Why.MALFORMED,
    ),
]


@pytest.mark.parametrize(("data", "why"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED])
def test_refused(data: bytes, why: Why) -> None:
    pkt = Packet()
    assert pkt.load(data) == why
    assert pkt.data == data
    assert pkt.iph.flags == pkt.iph.len == 0


def test_trailer_is_dropped() -> None:
    pkt = loaded(bytes(V4 / U) + b"trailer", mark=7)
    assert (pkt.data, pkt.len, pkt.mark) == (bytes(V4 / U), 28, 7)


def test_longer_than_the_buffer() -> None:
    pkt = Packet()
    assert pkt.load(bytes(V4 / U) + bytes(100_000)) == 0
    assert pkt.data == bytes(V4 / U)


def test_reused_buffer_forgets() -> None:
    pkt = loaded(V6 / IPv6ExtHdrFragment(offset=185, nh=6) / bytes(64))
    assert pkt.load(bytes(V4 / T)) == 0
    assert (pkt.iph.fragoffs, pkt.iph.flags, pkt.iph.saddr) == (0, flags("PORTS L4"), packed(CLIENT))


def test_header_outlives_its_packet() -> None:
    iph = loaded(V4 / T).iph
    assert iph.sport == CPORT


# ---- quoted headers

REPLY4 = IP(src=SERVER, dst=CLIENT, len=1500, flags="DF")
REPLY6 = IPv6(src=SERVER6, dst=CLIENT6, plen=1460)
ERR4, ERR6 = IP(src=CLIENT, dst=VIP) / ICMP(type=3, code=4), IPv6(src=CLIENT6, dst=VIP6) / ICMPv6DestUnreach()

# what it shows, packet, flags (ICMP besides) or None, fields
QUOTED: list[tuple[str, Any, str | None, dict[str, Any]]] = [
    (
        "v4, whole tcp header",
        ERR4 / bytes(REPLY4 / T),
        "PORTS L4 DF",
        PORTS | {"off": 28, "len": 48, "tcp_flags": 0x12},
    ),
    ("v4, 8 bytes", ERR4 / bytes(REPLY4 / T)[:28], "PORTS DF", PORTS | {"tcp_flags": 0, "end": 56}),
    ("v4, 4 bytes", ERR4 / bytes(REPLY4 / U)[:24], "PORTS DF", PORTS | {"protocol": 17}),
    ("v4, 8 bytes of udp are all of it", ERR4 / bytes(REPLY4 / U), "PORTS L4 DF", PORTS),
    ("v4, 3 bytes", ERR4 / bytes(REPLY4 / T)[:23], "DF", {"sport": 0, "saddr": packed(SERVER)}),
    ("v4, header only", ERR4 / bytes(REPLY4 / T)[:20], "DF", {"len": 48, "end": 48}),
    ("v4, header cut", ERR4 / bytes(REPLY4 / T)[:19], None, {}),
    ("v4, nothing", ERR4, None, {}),
    (
        "v4, options",
        ERR4 / bytes(IP(src=SERVER, options=[IPOption_NOP()] * 4) / U),
        "PORTS L4",
        PORTS | {"len": 52},
    ),
    ("v4, options cut", ERR4 / bytes(IP(src=SERVER, options=[IPOption_NOP()] * 4) / U)[:23], None, {}),
    ("v4, ihl lies", ERR4 / patched(REPLY4 / T, 0, b"\x44"), None, {}),
    ("v4, not version 4", ERR4 / patched(REPLY4 / T, 0, b"\x65"), None, {}),
    ("v4, swapped total length", ERR4 / patched(REPLY4 / T, 2, b"\x15\0"[::-1]), "PORTS L4 DF", PORTS),
    ("v4, total length 0", ERR4 / patched(REPLY4 / T, 2, b"\0\0"), "PORTS L4 DF", PORTS),
    ("v4, later fragment", ERR4 / bytes(IP(src=SERVER, frag=2, proto=6) / T), "FRAGMENT LATER", {"sport": 0}),
    ("v6, whole tcp header", ERR6 / bytes(REPLY6 / T), "PORTS L4", PORTS | {"off": 48, "len": 88}),
    ("v6, 4 bytes", ERR6 / bytes(REPLY6 / T)[:44], "PORTS", PORTS | {"saddr": packed(SERVER6)}),
    ("v6, extension headers", ERR6 / bytes(REPLY6 / HBH / DST / U), "PORTS L4", PORTS | {"len": 104}),
    ("v6, extension header cut", ERR6 / bytes(REPLY6 / HBH / DST / U)[:55], None, {}),
    ("v6, header cut", ERR6 / bytes(REPLY6 / T)[:39], None, {}),
    ("v6, not version 6", ERR6 / bytes(IP(src=SERVER) / T / bytes(40)), None, {}),
    (
        "v6, later fragment",
        ERR6 / bytes(REPLY6 / IPv6ExtHdrFragment(offset=9, nh=17) / U),
        "FRAGMENT LATER",
        {"sport": 0},
    ),
    ("echo has the form of an error", V4 / ICMP(type=8) / bytes(REPLY4 / T), "PORTS L4 DF", PORTS),
    ("not icmp", V4 / T / bytes(REPLY4 / T), None, {}),
    ("icmp of the other family", IP(proto=58) / bytes(8) / bytes(REPLY4 / T), None, {}),
]


@pytest.mark.parametrize(("packet", "names", "expected"), [r[1:] for r in QUOTED], ids=[r[0] for r in QUOTED])
def test_quoted(packet: Any, names: str | None, expected: dict[str, Any]) -> None:
    quoted = loaded(packet).quoted()
    if names is None:
        assert quoted is None
        return
    assert quoted is not None
    assert {name: getattr(quoted, name) for name in expected} == expected
    assert quoted.flags == flags(names + " ICMP")


def test_quoted_at_reads_a_header_inside_a_quote() -> None:
    tunnelled = IP(src=VIP, dst=SERVER) / IP(src=CLIENT, dst=VIP) / T
    pkt = loaded(ERR4 / bytes(tunnelled))
    inner = pkt.quoted_at(48, AF_INET)
    assert inner is not None
    assert (inner.saddr, inner.daddr, inner.dport, inner.off) == (packed(CLIENT), packed(VIP), VPORT, 48)


@pytest.mark.parametrize("off", [69, 88, 89, 1 << 31, (1 << 32) - 1])
def test_quoted_at_past_the_end(off: int) -> None:
    assert loaded(ERR4 / bytes(REPLY4 / T) / bytes(20)).quoted_at(off, AF_INET) is None
