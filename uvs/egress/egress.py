"""Routes to real servers, followed as the kernel changes them, and packets sent that way."""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable

from uvs.egress import netlink
from uvs.egress.loopback import Loopback
from uvs.egress.netlink import LinkAnswer, NeighbourAnswer
from uvs.egress.nexthop import (
    IP_MAX_MTU,
    Neighbour,
    Row,
    Table,
    has_ethernet_header,
    has_no_neighbours,
    static_lladdr,
    way,
)
from uvs.engine.core import NextHops, Packet, Why
from uvs.engine.io import Injector
from uvs.ipvs.route import Route

log = logging.getLogger(__name__)

SECOND = 1_000_000_000

ROWS = 1 << 14  # addresses known at once; beyond, the oldest row goes
WAIT_EACH, WAIT_ALL = 16, 256  # packets that wait for one neighbour, and in all
WAIT_TIME = 3 * SECOND  # as long as the kernel tries (3 solicitations, one a second)
ASK_AGAIN = SECOND  # a neighbour; and for a route where there was none, without news
REFRESH_BUDGET = 0.01  # seconds of re-reading routes at a time
MIN_PMTU: dict[int, int] = {socket.AF_INET: 552, socket.AF_INET6: 1280}  # net.ipv4.route.min_pmtu; RFC 8200
PMTU_TIME = 600 * SECOND  # net.ipv4.route.mtu_expires

_DEVICE_GONE = {errno.ENETDOWN, errno.ENXIO, errno.ENODEV}


class Egress:
    """Where packets of connections leave (the hook path's `Routes`, and `send`).

    `mark` is put on every packet. `unreachable(data)` is called for each packet whose neighbour does not
    answer, after `count(Why.NO_NEIGHBOUR)`; `count` is told of every packet that does not leave. Both are
    called from `send`, `events` and `tick`, and may call `find` and `send` themselves.
    """

    def __init__(
        self,
        mark: int,
        unreachable: Callable[[bytes], None],
        count: Callable[[Why], None],
        *,
        kernel: netlink.Netlink | None = None,
        watch: netlink.Watch | None = None,
        injector: Injector | None = None,
        loopback: Loopback | None = None,
    ) -> None:
        """Open the sockets; OSError without the privilege for packet sockets. The rest is for tests."""
        self._unreachable, self._count = unreachable, count
        self._injector = injector or Injector(mark)
        self._loopback = loopback or Loopback(mark)
        try:
            # Watching starts before the first question, so that no change falls in between.
            self._watch = watch or netlink.Watch(netlink.ROUTES | netlink.NEIGHBOURS)
            self._kernel = kernel or netlink.Netlink()
        except OSError:
            self._injector.close()
            raise
        self._table = Table(ROWS)
        self._rows = self._table.rows
        self._found: dict[bytes, Route | None] = {}
        self._failures: list[bytes] = []  # addresses that `_found` has no route to
        self._neighbours: dict[tuple[int, bytes], Neighbour] = {}
        self._links: dict[int, LinkAnswer | None] = {}
        self._smallest_mtu: int | None = None  # of them; None: to be looked for
        self._types: dict[bytes, int] = {}
        self._pmtu: dict[bytes, tuple[int, int]] = {}
        self._stale: dict[Row, None] = {}
        self._asked: list[Neighbour] = []
        self._waiting = self._waited = 0
        self._given_up: deque[bytes] = deque()
        self._packet = Packet()
        self._ident = time.monotonic_ns() & 0xFFFFFFFF  # of IPv6 fragments; need not be secret, only differ
        self._next_second = 0
        self._policy: bool | None = None  # not asked yet
        self._unsupported: set[int] = set()

    # ---- Routes

    def find(self, af: int, addr: bytes) -> Route | None:
        """Route to an address by destination only (no source, mark, TOS); None: there is none.

        The row's next hop is the address itself, or the gateway if its route has one: what the kernel's
        FLOWI_FLAG_KNOWN_NH means (net/ipv4/route.c, rt_set_nexthop; net/ipv6/route.c, ip6_pol_route).
        """
        try:
            return self._found[addr]
        except KeyError:
            return self._look_up(af, addr)

    @property
    def policy(self) -> bool:
        """Is a route found by more than its destination (`ip rule`)?"""
        if self._policy is None:
            self._policy = self._kernel.has_policy()
        return self._policy

    def find_from(self, af: int, addr: bytes, saddr: bytes, mark: int) -> Route | None:
        """Route for a packet from an address of this host, with a mark (ip_route_me_harder)."""
        key = way(addr, saddr, mark)
        try:
            return self._found[key]
        except KeyError:
            return self._look_up(af, addr, saddr, mark)

    def at(self, index: int) -> Route | None:
        """The row `index` as it is now; None once it became invalid (or for 0)."""
        row = self._rows.get(index)
        return None if row is None else row.route

    def is_local(self, af: int, addr: bytes) -> bool:
        """Is it this host's own by the routing table (whole local prefixes included)?"""
        return self._type(af, addr) in (netlink.RTN_LOCAL, netlink.RTN_ANYCAST)

    def is_unicast(self, af: int, addr: bytes) -> bool:
        """May it be a real server (ip_vs_new_dest)?

        IPv4: its type by the routing table is unicast or local; an address without a route is unicast
        (inet_addr_type). IPv6: by the address alone (ipv6_addr_type), link-local only if it is local.
        """
        if af == socket.AF_INET:
            if addr[0] == 0 or addr == b"\xff\xff\xff\xff" or addr[0] >> 4 == 0xE:
                return False
            return self._type(af, addr) in (netlink.RTN_UNICAST, netlink.RTN_LOCAL)
        if addr[0] == 0xFF or addr == bytes(16) or addr[:12] == b"\0" * 10 + b"\xff\xff":
            return False
        link_local = addr[0] == 0xFE and addr[1] >> 6 == 2
        return not link_local or self.is_local(af, addr)

    def update_pmtu(self, af: int, addr: bytes, mtu: int) -> None:
        """A router told that `mtu` bytes is what reaches `addr` (ip_rt_update_pmtu); kept for ten minutes."""
        mtu = max(mtu, MIN_PMTU[af])
        row = self._table.by_addr(addr)
        if row is not None and (mtu < row.mtu or (mtu == row.mtu and addr in self._pmtu)):
            self._pmtu[addr] = mtu, 0
            self._read(row)

    def describe(self, index: int) -> str:
        """`198.51.100.11 dev eth1 lladdr 02:00:00:00:00:01`, as `ip neigh` writes it."""
        row = self._rows.get(index)
        if row is None:
            return "a next hop that is gone"
        if row.link is None:
            return f"{socket.inet_ntop(row.af, row.addr)} (this host)"
        neighbour = row.neighbour
        if neighbour is None:
            return f"{socket.inet_ntop(row.af, row.addr)} dev {row.link.name}"
        lladdr = f"lladdr {neighbour.lladdr.hex(':')}" if neighbour.lladdr else "unresolved"
        return f"{socket.inet_ntop(neighbour.af, neighbour.addr)} dev {row.link.name} {lladdr}"

    def link_mtu(self, ifindex: int) -> int:
        """MTU of a device, bytes; 0: there is no such device."""
        link = self._link(ifindex) if ifindex else None
        return link.mtu if link else 0

    @property
    def smallest_mtu(self) -> int:
        """Of the devices that packets are known to come or go by, bytes; 0: of none."""
        if self._smallest_mtu is None:
            self._smallest_mtu = min((link.mtu for link in self._links.values() if link), default=0)
        return self._smallest_mtu

    def unresolved(self) -> tuple[int, int]:
        """Packets that wait for a neighbour's address: now, and how many have begun to since the start."""
        return self._waiting, self._waited

    # ---- sending

    def send(self, index: int, data: bytes, largest: int = 0) -> None:
        """Send one IP packet by row `index`; never blocks. Larger than its MTU: in fragments, DF or not.

        `largest`: the largest fragment that it was put together from, 0 if none; none that leaves is larger
        (ip_fragment(), ip6_fragment(): what came is known to fit the path).
        """
        row = self._rows.get(index)
        if row is not None and row.quick and len(data) <= row.mtu and not largest:
            err = self._injector.send(row.hop, data)  # type: ignore[arg-type]
            if err:
                self._failed(row, err)
            return
        self._send_slowly(row, data, largest)
        self._report()

    def _send_slowly(self, row: Row | None, data: bytes, largest: int = 0) -> None:
        if row is None:
            self._count(Why.NO_ROUTE)
            return
        if row.link is None:
            if self._loopback.send(row.af, row.addr, data):
                self._count(Why.SEND)
            return
        neighbour = row.neighbour
        if neighbour is not None and not neighbour.sure and not neighbour.asked:
            self._ask(neighbour)
        if row.hop is None:
            assert neighbour is not None
            self._wait(neighbour, row, data, largest)
            return
        mtu = row.mtu
        if largest:
            mtu = min(mtu, largest)
        if len(data) <= mtu:
            self._transmit(row, data)
        elif self._packet.load(data):
            self._count(Why.MALFORMED)
        else:
            self._ident = (self._ident + 1) & 0xFFFFFFFF
            parts = self._packet.fragments(mtu, self._ident)
            if parts is None:
                self._count(Why.TOO_BIG)
            for part in parts or ():
                if not self._transmit(row, part):
                    break

    def _transmit(self, row: Row, data: bytes) -> bool:
        assert row.hop is not None
        err = self._injector.send(row.hop, data)
        if err:
            self._failed(row, err)
        return not err

    def _failed(self, row: Row, err: int) -> None:
        if err in _DEVICE_GONE:
            self._count(Why.NO_ROUTE)
        else:  # ENOBUFS, EAGAIN: a queue is full, and a dropped packet is the right answer
            self._count(Why.SEND)
        if err not in (errno.ENOBUFS, errno.EAGAIN):
            self._stale[row] = None  # the event that explains it is on its way, or was lost

    def _wait(self, neighbour: Neighbour, row: Row, data: bytes, largest: int) -> None:
        if len(neighbour.waiting) >= WAIT_EACH:  # the oldest gives way, as in __neigh_event_send
            neighbour.waiting.popleft()
            self._waiting -= 1
            self._count(Why.NO_NEIGHBOUR)
        if self._waiting >= WAIT_ALL:
            self._count(Why.NO_NEIGHBOUR)
            return
        if not neighbour.waiting:
            neighbour.deadline = 0
        neighbour.waiting.append((row, data, largest))
        self._waiting += 1
        self._waited += 1

    def _ask(self, neighbour: Neighbour) -> None:
        """NTF_USE: resolve or confirm. What comes of it is an event."""
        neighbour.ask(True)
        self._asked.append(neighbour)
        self._kernel.use(neighbour.ifindex, neighbour.af, neighbour.addr)

    def _send_waiting(self, neighbour: Neighbour) -> None:
        waiting, neighbour.waiting = neighbour.waiting, deque()
        self._waiting -= len(waiting)
        for row, data, largest in waiting:
            self._send_slowly(self._rows.get(row.index), data, largest)

    def _give_up(self, neighbour: Neighbour) -> None:
        self._waiting -= len(neighbour.waiting)
        self._given_up.extend(data for _, data, _ in neighbour.waiting)
        neighbour.waiting.clear()

    def _report(self) -> None:
        """Tell of packets given up; last of all, since what is called may call us."""
        while self._given_up:
            data = self._given_up.popleft()
            self._count(Why.NO_NEIGHBOUR)
            self._unreachable(data)

    @property
    def nexthops(self) -> NextHops:
        """The rows, for the engine's fast path."""
        return self._table.hops

    @property
    def injector(self) -> Injector:
        """The sockets that packets leave by, for the engine's fast path."""
        return self._injector

    def refused(self, index: int) -> None:
        """The fast path could not send by row `index`, and counted it: no queue was full."""
        if row := self._rows.get(index):
            self._stale[row] = None

    # ---- rows

    def _ask_route(self, af: int, addr: bytes, saddr: bytes, mark: int) -> netlink.RouteAnswer | None:
        return self._kernel.route_from(af, addr, saddr, mark) if saddr else self._kernel.route(af, addr)

    def _look_up(self, af: int, addr: bytes, saddr: bytes = b"", mark: int = 0) -> Route | None:
        answer = self._ask_route(af, addr, saddr, mark)
        if answer is not None:
            if oldest := self._table.full():
                self._invalidate(oldest)
            row = Row(self._table.new_index(), af, addr, Route(0, False, 0), saddr, mark)
            self._table.add(row)
            self._apply(row, answer)
            if row.index in self._rows:
                return row.route
        if len(self._failures) >= ROWS:
            self._forget_failures()
        key = way(addr, saddr, mark) if saddr else addr
        self._found[key] = None
        self._failures.append(key)
        return None

    def _read(self, row: Row) -> None:
        """Ask for its route again: changed in place, or invalid."""
        answer = self._ask_route(row.af, row.addr, row.saddr, row.mark)
        if answer is None:
            self._invalidate(row)
        else:
            self._apply(row, answer)

    def _apply(self, row: Row, answer: netlink.RouteAnswer) -> None:
        if answer.type in (netlink.RTN_LOCAL, netlink.RTN_ANYCAST):
            link = self._link(answer.ifindex)
            mtu = answer.mtu or (link.mtu if link else IP_MAX_MTU)
            route = Route(row.index, True, min(mtu, IP_MAX_MTU), answer.saddr or row.addr)
            before = row.neighbour
            row.set(route, None, None)
        else:
            link = self._link(answer.ifindex) if answer.type == netlink.RTN_UNICAST else None
            if link is None or not self._supported(link):
                self._invalidate(row)
                return
            before = row.neighbour
            af, addr = answer.gateway or (row.af, row.addr)
            saddr = answer.saddr or netlink.source_towards(row.af, row.addr)
            route = Route(row.index, False, self._mtu(row, link, answer), saddr, row.addr in self._pmtu)
            row.set(route, link, self._neighbour(link, af, addr) if has_ethernet_header(link) else None)
        self._found[row.key] = route
        if before is not None and before is not row.neighbour:
            self._send_waiting(before)  # by the new way, what waited for this one
            self._drop_if_unused(before)

    def _mtu(self, row: Row, link: LinkAnswer, answer: netlink.RouteAnswer) -> int:
        mtu = link.mtu
        if row.af == socket.AF_INET6 and link.mtu6:
            mtu = min(mtu, link.mtu6)
        learned, _ = self._pmtu.get(row.addr, (IP_MAX_MTU, 0))
        return min(mtu, answer.mtu or mtu, learned, IP_MAX_MTU)

    def _invalidate(self, row: Row) -> None:
        self._table.discard(row)
        self._found.pop(row.key, None)
        self._stale.pop(row, None)
        neighbour = row.neighbour
        row.set(row.route, None, None)
        if neighbour is not None:
            kept = deque(each for each in neighbour.waiting if each[0] is not row)
            for _ in range(len(neighbour.waiting) - len(kept)):
                self._waiting -= 1
                self._count(Why.NO_ROUTE)
            neighbour.waiting = kept
            self._drop_if_unused(neighbour)

    def _neighbour(self, link: LinkAnswer, af: int, addr: bytes) -> Neighbour:
        key = link.ifindex, addr
        neighbour = self._neighbours.get(key)
        if neighbour is None:
            neighbour = self._neighbours[key] = Neighbour(link.ifindex, af, addr)
            self._read_neighbour(neighbour)
        elif (default := static_lladdr(link)) is not None and default != neighbour.lladdr:
            self._read_neighbour(neighbour)
        return neighbour

    def _read_neighbour(self, neighbour: Neighbour) -> None:
        self._learn(neighbour, self._kernel.neighbour(neighbour.ifindex, neighbour.af, neighbour.addr))

    def _learn(self, neighbour: Neighbour, answer: NeighbourAnswer | None) -> None:
        link = self._link(neighbour.ifindex)
        neighbour.learn(answer, (static_lladdr(link) or b"") if link else b"")
        if neighbour.lladdr:
            self._send_waiting(neighbour)
        elif answer is not None and answer.state & netlink.NUD_FAILED:
            self._give_up(neighbour)
        elif neighbour.waiting and (answer is None or not answer.state):
            self._ask(neighbour)  # the entry was deleted while we waited for it

    def _drop_if_unused(self, neighbour: Neighbour) -> None:
        if not neighbour.rows and not neighbour.waiting:
            self._neighbours.pop((neighbour.ifindex, neighbour.addr), None)

    def _link(self, ifindex: int) -> LinkAnswer | None:
        if ifindex not in self._links:
            self._links[ifindex] = self._kernel.link(ifindex)
            self._smallest_mtu = None
        return self._links[ifindex]

    def _supported(self, link: LinkAnswer) -> bool:
        if has_ethernet_header(link) or has_no_neighbours(link):
            return True
        if link.ifindex not in self._unsupported:
            self._unsupported.add(link.ifindex)
            log.warning(
                "%s: link-layer type %d is not supported: nothing is sent there", link.name, link.type
            )
        return False

    def _type(self, af: int, addr: bytes) -> int:
        kind = self._types.get(addr)
        if kind is None:
            answer = self._kernel.route(af, addr)
            kind = netlink.RTN_UNICAST if answer is None else answer.type
            if len(self._types) >= ROWS:
                self._types.clear()
            self._types[addr] = kind
        return kind

    # ---- following the kernel

    def fileno(self) -> int:
        """Readable when `events` has something to do."""
        return self._watch.fileno()

    def events(self) -> None:
        """Take in what changed in routes, addresses, links and neighbours."""
        for event in self._watch.events():
            if isinstance(event, NeighbourAnswer):
                neighbour = self._neighbours.get((event.ifindex, event.addr))
                if neighbour is not None:
                    self._learn(neighbour, event)
            elif isinstance(event, netlink.PrefixChange):
                self._make_stale(self._table.within(event.af, event.prefix, event.length))
            elif isinstance(event, LinkAnswer | netlink.LinkChange):
                self._link_changed(event)
            else:
                if event is None:
                    log.warning("netlink events were lost: reading all next hops again")
                    self._links.clear()
                    self._smallest_mtu = None
                    for neighbour in tuple(self._neighbours.values()):
                        self._read_neighbour(neighbour)
                self._policy = None
                self._make_stale(self._table)
        self._refresh()
        self._report()

    def _link_changed(self, event: LinkAnswer | netlink.LinkChange) -> None:
        if self._links.get(event.ifindex, event) == event:
            return  # nothing new, or no row goes there (routes by a new device have events of their own)
        self._smallest_mtu = None
        if isinstance(event, LinkAnswer):
            self._links[event.ifindex] = event
        else:
            self._links.pop(event.ifindex, None)
        self._make_stale(self._table)

    def _make_stale(self, rows: Iterable[Row]) -> None:
        self._types.clear()
        self._forget_failures()
        self._stale.update(dict.fromkeys(rows))

    def _forget_failures(self) -> None:
        for addr in self._failures:
            if self._found.get(addr, self) is None:
                del self._found[addr]
        self._failures.clear()

    def _refresh(self) -> None:
        """Read again what may have changed, within the budget; the rest at the next tick."""
        if not self._stale:
            return
        end = time.monotonic() + REFRESH_BUDGET
        while self._stale:
            row = next(iter(self._stale))
            del self._stale[row]
            if row.index in self._rows:
                self._read(row)
            if time.monotonic() > end:
                return

    def tick(self, now_ns: int) -> None:
        """Age waiting packets, ask again, finish re-reading; about every 100 ms of a monotonic clock."""
        self._refresh()
        if self._waiting:
            for neighbour in tuple(self._neighbours.values()):
                if not neighbour.waiting:
                    continue
                if not neighbour.deadline:
                    neighbour.deadline = now_ns + WAIT_TIME
                elif now_ns >= neighbour.deadline:
                    self._give_up(neighbour)
        if now_ns >= self._next_second:
            self._each_second(now_ns)
            self._next_second = now_ns + ASK_AGAIN
        self._report()

    def _each_second(self, now_ns: int) -> None:
        asked, self._asked = self._asked, []
        for neighbour in asked:
            neighbour.ask(False)
            if neighbour.waiting:
                self._ask(neighbour)
        self._forget_failures()
        for addr, (mtu, until) in tuple(self._pmtu.items()):
            if not until:
                self._pmtu[addr] = mtu, now_ns + PMTU_TIME
            elif now_ns >= until:
                del self._pmtu[addr]
                if row := self._table.by_addr(addr):
                    self._read(row)

    def close(self) -> None:
        """Close the sockets; packets that wait are dropped."""
        self._injector.close()
        self._loopback.close()
        self._kernel.close()
        self._watch.close()
