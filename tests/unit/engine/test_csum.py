"""Checksums: known answers, and what counts as right, wrong and unknowable."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment
from scapy.layers.ipsec import ESP
from scapy.layers.sctp import SCTP, SCTPChunkData
from support.packets import CLIENT, CLIENT6, VIP, VIP6, dissect, loaded, rewritten, same

from uvs.engine.core import checksum, crc32c, ffi, lib

V4, V6 = IP(src=CLIENT, dst=VIP), IPv6(src=CLIENT6, dst=VIP6)
T, U = TCP(sport=1234, dport=80), UDP(sport=1234, dport=80)
S = SCTP(sport=1234, dport=80) / SCTPChunkData(data=b"chunk")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytes.fromhex("0001f203f4f5f6f7"), 0x220D),  # RFC 1071 section 3
        (b"", 0xFFFF),
        (b"\x12", 0xEDFF),  # an odd byte is the high half of a word
        (b"\xff" * 65534, 0),
        (bytes(65535), 0xFFFF),
    ],
)
def test_rfc_1071(data: bytes, expected: int) -> None:
    assert checksum(data) == expected


def test_rfc_1624_example() -> None:
    """Section 4: 0xdd2f with a word changed from 0x5555 to 0x3285 is 0x0000, not 0xffff."""
    check = ffi.cast("uint16_t *", ffi.new("uint8_t[2]", b"\xdd\x2f"))[0]
    assert lib.uvs_csum_replace(check, b"\x55\x55", b"\x32\x85", 2) == 0


@pytest.mark.parametrize(
    ("data", "expected"),
    [  # RFC 3720 appendix B.4
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_crc32c(data: bytes, expected: int) -> None:
    assert crc32c(data) == expected


def broken(packet: Any, at: int = -1) -> bytes:
    data = bytearray(bytes(packet))
    data[at] ^= 0x40
    return bytes(data)


# what it shows, packet, right?
RIGHT: list[tuple[str, Any, bool]] = [
    ("v4 tcp", V4 / T / b"abc", True),
    ("v4 tcp broken", broken(V4 / T / b"abc"), False),
    ("v4 address broken", broken(V4 / T / b"abc", 12), False),
    ("v4 udp", V4 / U / b"abc", True),
    ("v4 udp without checksum", V4 / UDP(chksum=0) / b"abc", True),
    ("v4 udp 0xffff where 0 was computed", V4 / UDP(sport=1, dport=2, chksum=0xFFFF) / b"\0\0", False),
    ("v4 udp with bytes after its length", V4 / UDP(len=10, chksum=0) / b"ab" / b"more", True),
    ("v6 tcp", V6 / T / b"abcd", True),
    ("v6 udp", V6 / U / b"abc", True),
    ("v6 udp without checksum", V6 / UDP(chksum=0) / b"abc", False),
    ("v6 behind extension headers", V6 / IPv6ExtHdrDestOpt() / IPv6ExtHdrDestOpt() / T / b"abc", True),
    ("v6 atomic fragment", V6 / IPv6ExtHdrFragment() / T / b"abc", True),
    ("icmp", V4 / ICMP() / b"abc", True),
    ("icmp broken", broken(V4 / ICMP() / b"abc"), False),
    ("icmpv6", V6 / ICMPv6EchoRequest(data=b"abc"), True),
    ("icmpv6 broken", broken(V6 / ICMPv6EchoRequest(data=b"abc")), False),
    ("v4 sctp", V4 / S, True),
    ("v4 sctp broken", broken(V4 / S), False),
    ("v6 sctp", V6 / S, True),
    ("no checksum that we know", V4 / ESP(data=bytes(16)), True),
    ("first fragment", IP(src=CLIENT, dst=VIP, flags="MF") / T / b"abc", False),
    ("later fragment", IP(src=CLIENT, dst=VIP, frag=5) / T / b"abc", False),
    ("cut tcp header", IP(src=CLIENT, dst=VIP, proto=6) / bytes(12), False),
]


@pytest.mark.parametrize(("packet", "right"), [r[1:] for r in RIGHT], ids=[r[0] for r in RIGHT])
def test_l4_csum_ok(packet: Any, right: bool) -> None:
    pkt = loaded(packet)
    before = pkt.data
    assert pkt.l4_csum_ok() == right
    assert pkt.data == before


FILLED = [r for r in RIGHT if "fragment" not in r[0] or "atomic" in r[0]]


@pytest.mark.parametrize("packet", [r[1] for r in FILLED if r[0] != "cut tcp header"])
def test_csum_fill_makes_it_right(packet: Any) -> None:
    data = bytearray(bytes(packet))
    if data[0] >> 4 == 4:
        data[10:12] = b"\xde\xad"
    pkt = loaded(bytes(data))
    pkt.csum_fill()
    assert pkt.l4_csum_ok()
    assert data[0] >> 4 == 6 or checksum(pkt.data[:20]) == 0


@pytest.mark.parametrize("packet", [V4 / T / b"abc", V4 / U / b"x", V6 / T / b"abc", V6 / U, V4 / S, V6 / S])
def test_csum_fill_is_what_scapy_computes(packet: Any) -> None:
    wrong = dissect(bytes(packet))
    for layer, field in (IP, "chksum"), (TCP, "chksum"), (UDP, "chksum"), (SCTP, "chksum"):
        if layer in wrong:
            setattr(wrong[layer], field, 0xBEEF)
    pkt = loaded(wrong)
    pkt.csum_fill()
    assert same(pkt.data, rewritten(packet))


@pytest.mark.parametrize("ip", [V4, V6], ids=["v4", "v6"])
def test_udp_never_sends_zero(ip: Any) -> None:
    """With its own checksum as payload the sum is 0xffff: the checksum would be 0, which means none."""
    probe = loaded(ip / UDP(sport=1, dport=2, chksum=0) / b"\0\0")
    probe.csum_fill()
    pkt = loaded(ip / UDP(sport=1, dport=2, chksum=0) / probe.data[probe.iph.len + 6 : probe.iph.len + 8])
    pkt.csum_fill()
    assert pkt.data[pkt.iph.len + 6 : pkt.iph.len + 8] == b"\xff\xff"
    assert pkt.l4_csum_ok()


def test_udp_checksum_ends_where_the_udp_length_says() -> None:
    """RFC 768: what follows in the IP datagram is not of the UDP one."""
    pkt = loaded(V4 / UDP(sport=1, dport=2, len=10) / b"ab" / b"more")
    pkt.csum_fill()
    assert pkt.data[26:28] == bytes(V4 / UDP(sport=1, dport=2) / b"ab")[26:28]
    assert pkt.l4_csum_ok()


def test_fragments_keep_their_transport_checksum() -> None:
    pkt = loaded(IP(src=CLIENT, dst=VIP, flags="MF", chksum=1) / TCP(chksum=0x1234) / b"abc")
    pkt.csum_fill()
    assert same(pkt.data, IP(src=CLIENT, dst=VIP, flags="MF") / TCP(chksum=0x1234) / b"abc")
