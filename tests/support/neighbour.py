"""A host beside a director:   the test, eth0 192.0.2.1 ─── v0 192.0.2.2 neighbour   (2001:db8:a::1, ::2)"""

from __future__ import annotations

import select
import socket
import time

from scapy.layers.inet6 import ICMPv6ND_NA
from scapy.layers.l2 import ARP, Ether

from support.sandbox import Host, addressed, ip, link_up

VIPS = ("192.0.2.100", "2001:db8:a::100")
ETH_P_ALL = 3


class Neighbour:
    """It writes down what it hears of VIPs; it is asked what it believes."""

    def __init__(self) -> None:
        self.host = Host()
        ip(f"link add eth0 type veth peer name v0 netns {self.host.netns}")
        addressed("eth0", {4: "192.0.2.1", 6: "2001:db8:a::1"})
        with self.host:
            addressed("v0", {4: "192.0.2.2", 6: "2001:db8:a::2"})
        link_up("eth0", "v0", self.host)
        with self.host:
            self._tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
            self._tap.bind(("v0", ETH_P_ALL))

    def heard(self, count: int, seconds: float = 30) -> list[Ether]:
        """Announcements of VIPs, until there are `count`."""
        found: list[Ether] = []
        end = time.monotonic() + seconds
        while len(found) < count and select.select([self._tap], [], [], max(0, end - time.monotonic()))[0]:
            frame = Ether(self._tap.recv(65536))
            if (ARP in frame and frame[ARP].psrc in VIPS) or (
                ICMPv6ND_NA in frame and frame[ICMPv6ND_NA].tgt in VIPS
            ):
                found.append(frame)
        return found
