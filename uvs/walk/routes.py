"""A routing table on paper: every address is a neighbour, but for those that are said to be none."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address

from uvs.engine.core import AF_INET
from uvs.ipvs.icmp import MIN_PMTU
from uvs.ipvs.route import Route


@dataclass
class PaperRoutes:
    """`uvs.ipvs.route.Routes` without a host. Addresses are packed, MTUs in bytes.

    `source`: per family, the director's own address, which its tunnels and errors come from.
    """

    local: set[bytes] = field(default_factory=set)
    unreachable: set[bytes] = field(default_factory=set)
    mtu: int = 1500
    mtus: dict[bytes, int] = field(default_factory=dict)
    pmtu: dict[bytes, int] = field(default_factory=dict)
    source: dict[int, bytes] = field(default_factory=dict)
    macs: dict[bytes, str] = field(default_factory=dict)
    rows: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    indexes: dict[tuple[int, bytes], int] = field(default_factory=dict)
    ways: dict[tuple[bytes, int], bytes] = field(default_factory=dict)  # gateways by source and mark

    @property
    def policy(self) -> bool:
        """Are there rules of routing policy?"""
        return bool(self.ways)

    def find(self, af: int, addr: bytes) -> Route | None:
        """Route to an address, a row of its own."""
        if addr in self.unreachable:
            return None
        index = self.indexes.setdefault((af, addr), len(self.rows) + 1)
        self.rows[index] = (af, addr)
        saddr = self.source.get(af, bytes(4 if af == AF_INET else 16))
        mtu = self.pmtu.get(addr, self._link_mtu(addr))
        return Route(index, addr in self.local, mtu, saddr, addr in self.pmtu)

    def find_from(self, af: int, addr: bytes, saddr: bytes, mark: int) -> Route | None:
        """Route of a packet from an own address."""
        return self.find(af, self.ways.get((saddr, mark), addr))

    def at(self, index: int) -> Route | None:
        """The row, as it is now."""
        row = self.rows.get(index)
        return self.find(*row) if row else None

    def update_pmtu(self, af: int, addr: bytes, mtu: int) -> None:
        """A router told of a path MTU."""
        mtu = max(mtu, MIN_PMTU[af])
        if mtu <= self.pmtu.get(addr, self._link_mtu(addr)):
            self.pmtu[addr] = mtu

    def describe(self, index: int) -> str:
        """Address, and MAC address if it is known."""
        addr = self.rows[index][1]
        mac = self.macs.get(addr)
        return f"{ip_address(addr)} lladdr {mac}" if mac else str(ip_address(addr))

    def is_local(self, af: int, addr: bytes) -> bool:
        """Is it the director's own?"""
        return addr in self.local

    def is_unicast(self, af: int, addr: bytes) -> bool:
        """Neither multicast nor link-local."""
        return addr[0] < 224 if af == AF_INET else addr[0] != 0xFF and addr[:2] != b"\xfe\x80"

    def _link_mtu(self, addr: bytes) -> int:
        return self.mtus.get(addr, self.mtu)
