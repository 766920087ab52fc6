"""Datagrams of any size through every mode: fragments, small MTUs, jumbo frames, segmentation offload."""

from __future__ import annotations

from support import clients

SIZES = [1, 1252, 1253, 1400, 1432, 1433, 1452, 1453, 1472, 1473, 2000, 4096, 8192, 20000, 60000]


def test_udp_of_every_size(running, family) -> None:
    """Datagrams up to 60000 bytes come back byte for byte: fragments both ways."""
    assert running.lab.call("client", clients.echo, running.vip(family), SIZES, 15) == [True] * len(SIZES)
