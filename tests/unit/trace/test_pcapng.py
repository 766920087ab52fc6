"""The capture of both sides, as scapy reads it."""

from __future__ import annotations

import io
from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.utils import RawPcapNgReader

from uvs.trace import pcapng

TIME = 1_700_000_000_123_456_789
CAME = bytes(IP(src="192.0.2.2", dst="192.0.2.100") / TCP(sport=1024, dport=80))
LEFT = bytes(IP(src="192.0.2.2", dst="198.51.100.11") / TCP(sport=1024, dport=8080))


def walk(**different: Any) -> dict[str, Any]:
    bare = {"number": 7, "hook": "LOCAL_IN", "packet": "TCP a > b S", "length": len(CAME), "data": CAME.hex(),
            "verdict": "DROP", "why": "weight_0", "delivered": None, "sent": []}  # fmt: skip
    return bare | different


def written(*walks: dict[str, Any]) -> list[tuple[bytes, Any]]:
    file = io.BytesIO()
    writer = pcapng.Writer(file)
    for n, each in enumerate(walks):
        writer.add(TIME + n, each)
    file.seek(0)
    return list(RawPcapNgReader(file))


SENT = {"nexthop": "198.51.100.11", "packet": "", "length": len(LEFT), "data": LEFT.hex(), "own": False}


@pytest.mark.parametrize(
    ("different", "rows"),
    [
        ({}, [(1, CAME, "7 LOCAL_IN DROP weight_0: TCP a > b S")]),
        ({"verdict": "STOLEN", "why": "forwarded", "sent": [SENT]},
         [(1, CAME, "7 LOCAL_IN STOLEN forwarded: TCP a > b S"), (2, LEFT, "7 LOCAL_IN sent via 198.51.100.11")]),
        ({"sent": [SENT | {"own": True}]},
         [(1, CAME, "7 LOCAL_IN DROP weight_0: TCP a > b S"), (2, LEFT, "7 LOCAL_IN the director's own via 198.51.100.11")]),
        ({"verdict": "ACCEPT", "why": "no_conn", "hook": "FORWARD"},
         [(1, CAME, "7 FORWARD ACCEPT no_conn: TCP a > b S"), (2, CAME, "7 FORWARD accepted as it came")]),
        ({"verdict": "ACCEPT", "why": "reply", "hook": "FORWARD", "delivered": LEFT.hex()},
         [(1, CAME, "7 FORWARD ACCEPT reply: TCP a > b S"), (2, LEFT, "7 FORWARD accepted, rewritten")]),
    ],
    ids=["dropped", "sent", "answered", "accepted", "rewritten"],
)  # fmt: skip
def test_what_came_and_what_left(different: dict[str, Any], rows: list[tuple[int, bytes, str]]) -> None:
    found = written(walk(**different))
    assert [(meta.direction, data, meta.comments[0].decode()) for data, meta in found] == rows
    assert {(meta.tshigh << 32 | meta.tslow, meta.tsresol, meta.ifname) for _, meta in found} == {
        (TIME, 10**9, b"uvs")
    }


def test_only_the_beginning_is_known() -> None:
    """Of a long packet: its length is told all the same."""
    long = bytes(IP(dst="192.0.2.1") / UDP() / bytes(2000))
    six = bytes(IPv6(dst="::1") / UDP() / bytes(2001))
    different = {
        "length": len(long),
        "data": long[:1023].hex(),
        "verdict": "ACCEPT",
        "delivered": six[:1021].hex(),
    }
    found = written(walk(**different), walk())
    assert [(len(data), meta.wirelen) for data, meta in found] == [
        (1023, len(long)), (1021, len(six)), (len(CAME), len(CAME)),
    ]  # fmt: skip


def test_what_cannot_be_read_is_written_too() -> None:
    ((data, meta),) = written(walk(data="45", length=1))
    assert (data, meta.wirelen) == (b"\x45", 1)
