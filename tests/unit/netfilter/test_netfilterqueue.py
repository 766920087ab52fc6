"""Packets that the queue cut are known by their own header."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6

from uvs.netfilter.driver import is_cut


@pytest.mark.parametrize("ip", [IP(dst="192.0.2.1"), IPv6(dst="2001:db8::1")], ids=["IPv4", "IPv6"])
def test_is_cut(ip: IP | IPv6) -> None:
    data = bytes(ip / UDP() / (b"x" * 100))
    assert not is_cut(data)
    assert not is_cut(data + b"padding of the link")
    for length in range(8, len(data)):
        assert is_cut(data[:length]), length
