"""Which packets `uvs decap` takes, and what it finds inside."""

from __future__ import annotations

import socket
import struct

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from uvs.decap import gre_packet, gue_packet, inner_packet
from uvs.engine.core import checksum

INET, INET6 = socket.AF_INET, socket.AF_INET6


def v4(length: int, ihl: int = 5, version: int = 4) -> bytes:
    """The first four bytes that count, and zeros up to 60."""
    return struct.pack("!BBH", version << 4 | ihl, 0, length) + bytes(56)


def v6(payload: int, version: int = 6) -> bytes:
    return struct.pack("!BBHH", version << 4, 0, 0, payload) + bytes(54)


@pytest.mark.parametrize(
    ("what", "af", "data", "length"),
    [
        ("whole", INET, v4(60), 60),
        ("with a trailer", INET, v4(40), 40),
        ("header only", INET, v4(20), 20),
        ("options", INET, v4(60, ihl=15), 60),
        ("longer than what came", INET, v4(61), None),
        ("shorter than its header", INET, v4(19), None),
        ("shorter than its options", INET, v4(24, ihl=7), None),
        ("header length below 20", INET, v4(60, ihl=4), None),
        ("IPv6 where IPv4 was said", INET, v6(20), None),
        ("cut header", INET, v4(60)[:19], None),
        ("nothing", INET, b"", None),
        ("whole", INET6, v6(20), 60),
        ("with a trailer", INET6, v6(10), 50),
        ("no payload", INET6, v6(0), 40),
        ("longer than what came", INET6, v6(21), None),
        ("IPv4 where IPv6 was said", INET6, v4(60), None),
        ("cut header", INET6, v6(20)[:39], None),
        ("nothing", INET6, b"", None),
    ],
)
def test_inner_packet(what: str, af: int, data: bytes, length: int | None) -> None:
    packet = inner_packet(memoryview(data), af)
    assert (None if packet is None else bytes(packet)) == (None if length is None else data[:length])


INNER = bytes(IP(src="10.0.0.1", dst="192.0.2.1") / UDP(sport=1, dport=2) / b"inner")
INNER6 = bytes(IPv6(src="fd00::1", dst="2001:db8::1") / UDP(sport=1, dport=2) / b"inner")


def unfinished(packet: bytes) -> bytes:
    """As an offloading sender leaves it: the UDP checksum is the sum of the pseudo header alone."""
    at = 40 if packet[0] >> 4 == 6 else 20
    data = bytearray(packet)
    length = len(packet) - at
    ends = packet[8:40] if at == 40 else packet[12:20]
    data[at + 6 : at + 8] = (checksum(ends + struct.pack("!HH", 17, length)) ^ 0xFFFF).to_bytes(2, "big")
    return bytes(data)


def remcsum(packet: bytes, start: int, at: int, private: int = 1 << 31) -> bytes:
    return struct.pack("!BBHIHH", 2, 41 if packet[0] >> 4 == 6 else 4, 1, private, start, at) + packet


@pytest.mark.parametrize(
    ("what", "data", "inside"),
    [
        ("IPv4", b"\0\4\0\0" + INNER, INNER),
        ("IPv6", b"\0\x29\0\0" + INNER6, INNER6),
        ("an option that no flag tells of", b"\1\4\0\0abcd" + INNER, INNER),
        ("the checksum left to us", remcsum(unfinished(INNER), 20, 26), INNER),
        ("the checksum left to us, IPv6", remcsum(unfinished(INNER6), 40, 46), INNER6),
        ("no private flag at all", b"\1\4\0\1\0\0\0\0" + INNER, INNER),
        ("a checksum before its start", remcsum(INNER, 20, 10), None),
        ("a checksum beyond the packet", remcsum(INNER, 20, len(INNER) - 1), None),
        ("another private flag", remcsum(INNER, 20, 26, 1 << 30), None),
        ("a private flag without its field", b"\1\4\0\1\x80\0\0\0" + INNER, None),
        ("a flag without its field", b"\0\4\0\1" + INNER, None),
        ("another flag", b"\1\4\0\2\0\0\0\0" + INNER, None),
        ("variant 1", b"\x40\4\0\0" + INNER, None),
        ("a control message", b"\x20\4\0\0" + INNER, None),
        ("another protocol inside", b"\0\6\0\0" + INNER, None),
        ("IPv6 that is IPv4", b"\0\x29\0\0" + INNER, None),
        ("options cut", b"\x1f\4\0\0" + INNER, None),
        ("cut", b"\0\4\0", None),
        ("nothing", b"", None),
    ],
)
def test_gue_packet(what: str, data: bytes, inside: bytes | None) -> None:
    packet = gue_packet(memoryview(bytearray(data)))
    assert (None if packet is None else bytes(packet)) == inside


def summed(flags: int, packet: bytes, wrong: int = 0) -> bytes:
    head = struct.pack("!HHHH", flags | 0x8000, 0x0800, 0, 0)
    return head[:4] + (checksum(head + packet) ^ wrong).to_bytes(2, "big") + head[6:] + packet


@pytest.mark.parametrize(
    ("what", "data", "inside"),
    [
        ("IPv4", b"\0\0\x08\0" + INNER, INNER),
        ("IPv6", b"\0\0\x86\xdd" + INNER6, INNER6),
        ("checksum", summed(0, INNER), INNER),
        ("wrong checksum", summed(0, INNER, 1), None),
        ("key", b"\x20\0\x08\0kkkk" + INNER, INNER),
        ("key and sequence number", b"\x30\0\x08\0kkkkssss" + INNER, INNER),
        ("routing", b"\x40\0\x08\0" + INNER, None),
        ("version 1", b"\0\1\x08\0" + INNER, None),
        ("Ethernet inside", b"\0\0\x65\x58" + INNER, None),
        ("IPv6 that is IPv4", b"\0\0\x86\xdd" + INNER, None),
        ("cut", b"\x80\0\x08\0\0\0", None),
        ("nothing", b"", None),
    ],
)
def test_gre_packet(what: str, data: bytes, inside: bytes | None) -> None:
    packet = gre_packet(memoryview(bytearray(data)))
    assert (None if packet is None else bytes(packet)) == inside
