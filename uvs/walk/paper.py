"""A director on paper: a table, services, routes and a clock; packets come in as a router takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from uvs.engine.core import AF_INET, AF_INET6, Packet, Table, Why, checksum
from uvs.ipvs import icmp, walk
from uvs.ipvs.hooks import nf_hook, own_packets
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import Hook, NetnsIpvs, Skb, Verdict
from uvs.ipvs.unreachable import no_neighbour
from uvs.ipvs.walk import Sent, Step, Walk
from uvs.walk import expressions
from uvs.walk.routes import PaperRoutes

START = 10**9  # of the clock, ns; 0 has a meaning of its own in places
SECOND = 10**9
CONN_MAX = 1 << 20
PLENTY_PAGES = 1 << 40  # of free memory: the defence sleeps unless it is told to be on
_CHORES_MAX = 10_000  # steps of a long wait


@dataclass
class Settings:
    """What is not in the table of services. Addresses are packed."""

    hook: Hook | None = None  # None: as a router would choose
    mark: int = 0
    local: list[bytes] = field(default_factory=list)  # the director's own addresses besides the virtual ones
    gone: set[bytes] = field(default_factory=set)  # who does not answer ARP or neighbour discovery


def ends(data: bytes) -> tuple[bytes, bytes]:
    """Source and destination of an IP datagram, packed."""
    return (data[12:16], data[16:20]) if data[0] >> 4 == 4 else (data[8:24], data[24:40])


def one_hop_less(packet: bytes) -> bytes:
    """An IP datagram with its TTL (and header checksum), or hop limit, as a router sends it on."""
    if packet[0] >> 4 == 6:
        return packet[:7] + bytes((packet[7] - 1,)) + packet[8:]
    size = (packet[0] & 15) * 4
    head = packet[:8] + bytes((packet[8] - 1, packet[9], 0, 0)) + packet[12:size]
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + packet[size:]


class Director:
    """One director. `take` hands it a packet; `wait` lets its clock run; `leaves`: what went, and when."""

    def __init__(self, settings: Settings | None = None, routes: PaperRoutes | None = None) -> None:
        self.settings = settings or Settings()
        self.routes = routes or PaperRoutes()
        self.now = START
        self.table = Table(None, CONN_MAX, now=self.now)
        self.ipvs = NetnsIpvs(self.table, self.routes, lambda: self.now)
        self.ipvs.services.observers.append(self._services_changed)
        self.skb = Skb()
        self.leaves: list[tuple[int, bytes]] = []
        self._addresses()

    def close(self) -> None:
        """Free the table."""
        self.table.close()

    # ---- whose addresses these are

    def _services_changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        if event.endswith("service"):
            self._addresses()

    def _addresses(self) -> None:
        """The director's: those it was told, and the virtual ones; the first of a family is its source."""
        virtual = [svc.key.addr for svc in self.ipvs.services if not svc.key.fwmark]
        every = [*self.settings.local, *virtual]
        self.routes.local = set(every)
        for af, size in ((AF_INET, 4), (AF_INET6, 16)):
            self.routes.source[af] = next((a for a in every if len(a) == size), bytes(size))

    def hook_for(self, data: bytes, mark: int) -> Hook:
        """Where a router would meet it: its own packets, packets for it (or taken in by a mark), others."""
        saddr, daddr = ends(data)
        if saddr in self.settings.local:
            return Hook.LOCAL_OUT
        af = AF_INET if data[0] >> 4 == 4 else AF_INET6
        marked = mark and any(svc.key.fwmark == mark and svc.key.af == af for svc in self.ipvs.services)
        return Hook.LOCAL_IN if daddr in self.routes.local or marked else Hook.FORWARD

    # ---- packets

    def take(
        self, packet: expressions.Packet, hook: Hook | None = None, mark: int | None = None
    ) -> dict[str, Any]:
        """One packet through the hook; its walk in the JSON form, without `changes`."""
        data = packet.data
        mark = self.settings.mark if mark is None else mark
        readable = len(data) >= (20 if data[:1] and data[0] >> 4 == 4 else 40)
        hook = hook or self.settings.hook or (self.hook_for(data, mark) if readable else Hook.LOCAL_IN)
        if packet.frame and readable:
            self.routes.macs[ends(data)[0]] = packet.frame["src"]
        told = (
            self._forward(data, mark) if hook == Hook.FORWARD and readable else self._hook(hook, data, mark)
        )
        told.frame = packet.frame
        return told.to_json()

    def _hook(self, hook: Hook, data: bytes, mark: int) -> Walk:
        ipvs, skb = self.ipvs, self.skb
        ipvs.recorder.want = 1
        indev = 0 if hook == Hook.LOCAL_OUT else 2
        verdict = nf_hook(ipvs, skb, hook, data, mark, indev)
        ipvs.recorder.want = 0
        told = ipvs.recorder.walks.pop()
        if verdict == Verdict.ACCEPT and hook != Hook.LOCAL_IN:
            self.leaves.append((self.now, skb.pkt.data if skb.modified else data))
        for index, sent in skb.sends:
            self._leave(told, self.routes.rows[index][1], sent)
        return told

    def _forward(self, data: bytes, mark: int) -> Walk:
        """ip_forward, ip6_forward: hop limit, route, size, then the hook."""
        v4 = data[0] >> 4 == 4
        route = self.routes.find(AF_INET if v4 else AF_INET6, ends(data)[1])
        if data[8 if v4 else 7] <= 1:
            return self._refused(data, mark, Why.TTL)
        if route is None:
            return self._refused(data, mark, Why.NO_ROUTE)
        if len(data) > route.mtu and (not v4 or data[6] & 0x40):
            return self._refused(data, mark, Why.TOO_BIG, route.mtu)
        told = self._hook(Hook.FORWARD, one_hop_less(data), mark)
        name, less = ("ip_forward", "TTL") if v4 else ("ip6_forward", "hop limit")
        told.steps.insert(0, Step(0, name, f"{less} less one, as a router does"))
        return told

    def _refused(self, data: bytes, mark: int, why: Why, mtu: int = 0) -> Walk:
        """The router gave a packet up before the hook; its sender is told."""
        ipvs, skb = self.ipvs, self.skb
        if refused := skb.begin(Hook.FORWARD, data, mark, 2, self.now):
            why = Why(refused)
        text = walk.describe(skb.iph) if not refused else f"{len(data)} bytes that cannot be read"
        ipvs.recorder.want = 1
        told = skb.walk = ipvs.recorder.begin(self.now, Hook.FORWARD.name, text, data, mark)
        told.step(0, "ip_forward", f"{why.label}: given up before the hook")
        if not refused:
            if why == Why.TTL:
                icmp.time_exceeded(ipvs, skb)
            elif why == Why.NO_ROUTE:
                icmp.host_unreachable(ipvs, skb)
            else:
                icmp.too_big(ipvs, skb, mtu)
            own_packets(ipvs, skb)
        ipvs.recorder.walks.pop()
        told.verdict, told.why = Verdict.DROP.name, why.label
        self._answers(told, skb.sends)
        return told

    def _answers(self, told: Walk, sends: list[tuple[int, bytes]]) -> None:
        """The director's own errors, on their way."""
        for index, data in sends:
            other = Skb()
            other.begin(Hook.LOCAL_OUT, data, 0, 0, self.now)
            told.sent.append(Sent(self.routes.describe(index), walk.describe(other.iph), data, own=True))
            self.leaves.append((self.now, data))

    # ---- what egress does

    def _leave(self, told: Walk, addr: bytes, data: bytes) -> None:
        """To a next hop: in pieces if it is too long, nowhere if nobody answers there."""
        if addr in self.settings.gone:
            asked = "arp" if len(addr) == 4 else "neighbour solicitation"
            said = f"nobody answers ({asked}): given up after 3 s, the packet's sender is told"
            told.steps.append(Step(0, "ipv4_link_failure" if len(addr) == 4 else "ip6_link_failure", said))
            told.why = Why.NO_NEIGHBOUR.label
            self._answers(told, no_neighbour(self.ipvs, data))
            return
        route = self.routes.find(AF_INET if len(addr) == 4 else AF_INET6, addr)
        pieces = [data]
        if route and len(data) > route.mtu:
            whole = Packet()
            if not whole.load(data, 0):
                pieces = whole.fragments(route.mtu, self.ipvs.next_ident()) or [data]
            sizes = ", ".join(str(len(piece)) for piece in pieces)
            told.steps.append(Step(0, "ip_fragment", f"leaves in {len(pieces)} pieces: {sizes} bytes"))
        self.leaves += [(self.now, piece) for piece in pieces]

    # ---- time

    def wait(self, seconds: float) -> int:
        """Let time pass, and chores with it; returns how many connections ended."""
        before = self.table.info()["conns"]
        end = self.now + int(seconds * SECOND)
        for now in self._ticks(end):
            self.now = now
            ipvs = self.ipvs
            ipvs.expire_nodest_conns()
            while self.table.expire(now, 10_000) == 10_000:
                pass
            ipvs.services.expire_trash(now)
            ipvs.services.tick_schedulers(now)
            ipvs.defence.run(now, PLENTY_PAGES)
        return before - self.table.info()["conns"]

    def _ticks(self, end: int) -> Iterator[int]:
        """A second apart, in a long time more; the end itself."""
        step = max(SECOND, (end - self.now) // _CHORES_MAX)
        now = self.now + step
        while now < end:
            yield now
            now += step
        yield end
