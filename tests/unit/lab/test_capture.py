"""A captured frame in a line, and filters."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.l2 import ARP, Ether

from uvs.lab.capture import compiled, line
from uvs.lab.enter import LabError
from uvs.lab.wires import Frame

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
SYN = IP(src="192.0.2.2", dst="192.0.2.100", ttl=63) / TCP(sport=1024, dport=80)


@pytest.mark.parametrize(
    ("frame", "out", "expected"),
    [
        (Ether(src=A, dst=B) / SYN, False, "in  client > 02:00:00:00:00:0b  IP / TCP 192.0.2.2:1024 > 192.0.2.100:80 S  ttl 63"),
        (Ether(src=A, dst="ff:ff:ff:ff:ff:ff") / ARP(hwsrc=A, psrc="192.0.2.2", pdst="192.0.2.100"), True,
         "out client > all  ARP who has 192.0.2.100 says 192.0.2.2"),
        (bytes(12) + b"\x08\x00" + bytes(SYN), False, "in  no MAC  IP / TCP 192.0.2.2:1024 > 192.0.2.100:80 S  ttl 63"),
        (b"\x02" * 12 + b"\x88\xb5", False, "in  02:02:02:02:02:02 > 02:02:02:02:02:02  02:02:02:02:02:02 > 02:02:02:02:02:02 (0x88b5)"),
    ],
)  # fmt: skip
def test_line(frame: Any, out: bool, expected: str) -> None:
    assert (
        line(Frame(0.25, "rs1", "eth0", out, bytes(frame)), {A: "client"})[8:] == f".250000 eth0  {expected}"
    )


def test_filters() -> None:
    """A program of whole instructions; a wrong filter is named."""
    assert len(compiled("tcp port 80")) % 8 == 0
    with pytest.raises(LabError, match=r"^no filter \(pcap-filter\(7\)\): tcq port$"):
        compiled("tcq port")
