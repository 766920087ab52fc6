"""Which walks are those of the packets that were sent."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6

from uvs.lab.send import _seen
from uvs.walk.expressions import Packet

SYN = IP(src="192.0.2.2", dst="192.0.2.100", id=0) / TCP(sport=1024, dport=80, flags="S")
RESET = IP(src="192.0.2.2", dst="192.0.2.100") / TCP(sport=1024, dport=80, flags="R")
SIX = IPv6(src="2001:db8::1", dst="2001:db8::2") / TCP(sport=1, dport=2) / (b"x" * 100)
FILLED_IN = IP(src="192.0.2.2", dst="192.0.2.100", id=77) / TCP(sport=1024, dport=80, flags="S")


@pytest.mark.parametrize(
    ("what", "sent", "walked", "count"),
    [
        ("the packet itself", [SYN], [SYN], 1),
        ("the kernel gave it an id", [SYN], [FILLED_IN], 1),
        ("cut short", [SIX], [bytes(SIX)[:80]], 1),
        ("what the host's stack sent by itself", [SYN], [RESET], 0),
        ("two alike, one came", [SYN, SYN], [SYN], 1),
        ("none", [SYN], [], 0),
    ],
)
def test_seen(what: str, sent: list[object], walked: list[object], count: int) -> None:
    walks = [{"data": bytes(one).hex()} for one in walked]  # type: ignore[call-overload]
    assert _seen(walks, [Packet(bytes(one)) for one in sent]) == count, what  # type: ignore[call-overload]
