"""Which inner packets `uvs decap` takes for whole."""

from __future__ import annotations

import socket
import struct

import pytest

from uvs.decap import inner_packet

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
