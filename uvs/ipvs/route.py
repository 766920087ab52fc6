"""What the hook path needs to know of the host's routes. `uvs.egress` answers; tests use a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Route:
    """The way to one address: a row of the next-hop table.

    `index` names the row (a connection keeps it); `local`: the address is this host's own; `mtu` in
    bytes; `saddr` the preferred source address, packed (the outer source of a tunnel); `learned`: a router
    told this MTU (a nexthop exception).
    """

    index: int
    local: bool
    mtu: int
    saddr: bytes = b""
    learned: bool = False


class Routes(Protocol):
    """Routing decisions, answered at once (the answer may come from a cache)."""

    def find(self, af: int, addr: bytes) -> Route | None:
        """Route to an address; None: there is none.

        For direct routing too: frames go to this address, or to the gateway of the route to it, whatever
        the packet's own destination is (FLOWI_FLAG_KNOWN_NH; rt_set_nexthop keeps a gateway).
        """

    @property
    def policy(self) -> bool:
        """Does a route depend on more than the destination: are there rules of routing policy?"""

    def find_from(self, af: int, addr: bytes, saddr: bytes, mark: int) -> Route | None:
        """Route for a packet that this host sends from `saddr`, an address of its own, with a mark."""

    def at(self, index: int) -> Route | None:
        """The row that `find` gave, as it is now; None if it is no longer valid."""

    def update_pmtu(self, af: int, addr: bytes, mtu: int) -> None:
        """A router told that only `mtu` bytes reach that address: rows to it obey from now on."""

    def describe(self, index: int) -> str:
        """A row for people: next hop, device, link-layer address; for walks."""

    def is_local(self, af: int, addr: bytes) -> bool:
        """Is it an address of this host?"""

    def is_unicast(self, af: int, addr: bytes) -> bool:
        """May it be a real server: unicast by the routing table (IPv6: not link-local unless local)?"""
