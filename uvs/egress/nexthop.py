"""The next-hop table: rows that connections point to, and the neighbours that rows go by. No I/O."""

from __future__ import annotations

import socket
import struct
from collections import deque
from collections.abc import Iterable, Iterator

from uvs.egress.netlink import NUD_SURE, NUD_VALID, LinkAnswer, NeighbourAnswer
from uvs.engine.core import NextHop, NextHops
from uvs.ipvs.route import Route

ETH_ALEN = 6
ETHERTYPE: dict[int, bytes] = {
    socket.AF_INET: struct.pack("!H", 0x0800),
    socket.AF_INET6: struct.pack("!H", 0x86DD),
}

# linux/if_arp.h
ARPHRD_ETHER, ARPHRD_LOOPBACK, ARPHRD_NONE = 1, 772, 0xFFFE
# linux/if.h
IFF_LOOPBACK, IFF_POINTOPOINT, IFF_NOARP = 0x8, 0x10, 0x80

IP_MAX_MTU = 65535

SLOTS = 1 << 16
HERE = NextHop(0, 0, local=True)


class Neighbour:
    """A next hop's link-layer address as the kernel last told it, and the packets that wait for it.

    `sure`: nothing is to be asked; otherwise the address is used but the kernel is asked to confirm it,
    since packets sent through AF_PACKET do not touch the kernel's entry (it would go stale, and a server's
    new address unnoticed).
    """

    __slots__ = ("addr", "af", "asked", "deadline", "ifindex", "lladdr", "rows", "sure", "waiting")

    def __init__(self, ifindex: int, af: int, addr: bytes) -> None:
        self.ifindex, self.af, self.addr = ifindex, af, addr
        self.lladdr = b""  # empty: not resolved
        self.sure = False
        self.asked = False  # lately: not to be asked again at once
        self.deadline = 0  # of the waiting packets, ns; 0: from the next tick on
        self.rows: set[Row] = set()
        self.waiting: deque[tuple[Row, bytes, int]] = deque()

    def learn(self, answer: NeighbourAnswer | None, default: bytes = b"") -> None:
        """Take over what the kernel says; `default` is the address on devices that resolve nothing."""
        if answer is not None and answer.state & NUD_VALID and len(answer.lladdr) == ETH_ALEN:
            self.lladdr, self.sure = answer.lladdr, bool(answer.state & NUD_SURE)
        else:
            self.lladdr, self.sure = default, bool(default)
        for row in self.rows:
            row.aim()

    def ask(self, asked: bool) -> None:
        """Was the kernel asked lately? Until it answers the address is used, as the kernel does it."""
        self.asked = asked
        for row in self.rows:
            row.hasten()


def way(addr: bytes, saddr: bytes, mark: int) -> bytes:
    """The key of a way to an address from a source, under a mark."""
    return addr + saddr + mark.to_bytes(4, "big")


class Row:
    """The way to one address. `index` stays while the route changes under it.

    `quick`: a packet within `mtu` may be sent at once, nothing else is to be done. `key`: the address, or,
    of a way that was asked for by source and mark too, all three.
    """

    __slots__ = (
        "addr",
        "af",
        "hop",
        "index",
        "key",
        "link",
        "mark",
        "mtu",
        "neighbour",
        "quick",
        "route",
        "saddr",
        "table",
    )

    def __init__(
        self, index: int, af: int, addr: bytes, route: Route, saddr: bytes = b"", mark: int = 0
    ) -> None:
        self.index, self.af, self.addr, self.saddr, self.mark = index, af, addr, saddr, mark
        self.key = way(addr, saddr, mark) if saddr else addr
        self.route, self.mtu = route, route.mtu
        self.link: LinkAnswer | None = None
        self.hop: NextHop | None = None  # None: local, or not to be sent to yet
        self.neighbour: Neighbour | None = None  # None: local, or a device without a link layer
        self.quick = False
        self.table: Table | None = None  # that it is in

    def set(self, route: Route, link: LinkAnswer | None, neighbour: Neighbour | None) -> None:
        """Change where it leads. `link` None: to this host."""
        if self.neighbour is not neighbour:
            if self.neighbour is not None:
                self.neighbour.rows.discard(self)
            if neighbour is not None:
                neighbour.rows.add(self)
        self.route, self.mtu, self.link, self.neighbour = route, route.mtu, link, neighbour
        self.aim()

    def aim(self) -> None:
        """Make `hop` and `quick` true to device and neighbour."""
        link, neighbour = self.link, self.neighbour
        if link is None:
            self.hop, self.quick = None, False
        elif neighbour is None:
            self.hop, self.quick = self._hop(link, cooked=link.type != ARPHRD_NONE), True
        elif not neighbour.lladdr:
            self.hop, self.quick = None, False
        else:
            eth = neighbour.lladdr + link.lladdr + ETHERTYPE[self.af]
            self.hop, self.quick = self._hop(link, eth), neighbour.sure or neighbour.asked
        if self.table:
            self.table.hops.put(self.index, self.hop if link else HERE, self.quick)

    def _hop(self, link: LinkAnswer, eth: bytes = b"", cooked: bool = False) -> NextHop:
        return NextHop(link.ifindex, self.mtu, eth, cooked, self.route.saddr, self.route.learned)

    def hasten(self) -> None:
        """Make `quick` alone true to the neighbour."""
        neighbour = self.neighbour
        self.quick = self.hop is not None and (neighbour is None or neighbour.sure or neighbour.asked)
        if self.table:
            self.table.hops.hasten(self.index, self.quick)


def static_lladdr(link: LinkAnswer) -> bytes | None:
    """Destination on an Ethernet device that resolves nothing: its own address, or broadcast between two.

    None: neighbours are resolved (the kernel's arp_constructor, ndisc_constructor).
    """
    if link.flags & (IFF_NOARP | IFF_LOOPBACK):
        return link.lladdr
    if link.flags & IFF_POINTOPOINT:
        return b"\xff" * ETH_ALEN
    return None


def has_ethernet_header(link: LinkAnswer) -> bool:
    """Do its frames begin with 14 bytes of Ethernet?"""
    return link.type in (ARPHRD_ETHER, ARPHRD_LOOPBACK) and len(link.lladdr) == ETH_ALEN


def has_no_neighbours(link: LinkAnswer) -> bool:
    """Is there nothing to resolve: tun, WireGuard, PPP, tunnels?"""
    return link.type == ARPHRD_NONE or bool(link.flags & (IFF_NOARP | IFF_POINTOPOINT)) or not link.lladdr


class Table:
    """Rows by index and by address.

    An index is a slot (its low 16 bits) and how often the slot was used before: no two rows ever have
    the same one, so that a connection that still holds the index of a row that went cannot be sent
    another's way; slots are small, for arrays. Index 0 is never given out.
    """

    def __init__(self, limit: int) -> None:
        if not 0 < limit < SLOTS:
            raise ValueError(f"limit {limit} is not within 1..{SLOTS - 1}")
        self.rows: dict[int, Row] = {}
        self.hops = NextHops()  # the same for the engine
        self._limit = limit
        self._free: deque[int] = deque()  # next index of each slot that was used and is free
        self._unused = 1  # first slot that was never used
        self._by_addr: dict[bytes, Row] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(tuple(self.rows.values()))

    def by_addr(self, addr: bytes) -> Row | None:
        """The row to an address (4 or 16 bytes say the family), whatever the source."""
        return self._by_addr.get(addr)

    def full(self) -> Row | None:
        """The oldest row if there is no room for another, else None."""
        return next(iter(self.rows.values())) if len(self.rows) >= self._limit else None

    def new_index(self) -> int:
        """An index that no row ever had."""
        if self._free:
            return self._free.popleft()
        self._unused += 1
        return self._unused - 1

    def add(self, row: Row) -> None:
        """Put in a row, whose index came from `new_index`."""
        row.table = self
        self.rows[row.index] = row
        self._by_addr[row.key] = row

    def discard(self, row: Row) -> None:
        """Take out a row; its index will not come again."""
        if self.rows.pop(row.index, None) is None:
            return
        row.table = None
        self.hops.remove(row.index)
        self._by_addr.pop(row.key, None)
        after = row.index + SLOTS
        self._free.append(after if after < 1 << 32 else after & (SLOTS - 1))

    def within(self, af: int, prefix: bytes, length: int) -> Iterable[Row]:
        """Rows whose address lies in a prefix of `length` bits."""
        if not length:
            return [row for row in self if row.af == af]
        shift = 8 * len(prefix) - length
        want = int.from_bytes(prefix, "big") >> shift
        return [row for row in self if row.af == af and int.from_bytes(row.addr, "big") >> shift == want]
