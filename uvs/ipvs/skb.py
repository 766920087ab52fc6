"""A packet on its way through the hooks, and the world it passes through (struct sk_buff, netns_ipvs)."""

from __future__ import annotations

import enum
from collections.abc import Callable
from functools import cached_property
from typing import Final

from uvs.engine.core import AF_INET, AF_INET6, Conn, Header, Packet, Reassembler, Table, Trace, Why
from uvs.ipvs.defence import Defence
from uvs.ipvs.icmp_limit import IcmpLimit
from uvs.ipvs.route import Route, Routes
from uvs.ipvs.services import Dest, Service, Services
from uvs.ipvs.spec import QueueRow
from uvs.ipvs.sysctl import Sysctl
from uvs.ipvs.tracing import Tracers
from uvs.ipvs.walk import Recorder, Walk


class Hook(enum.IntEnum):
    """Netfilter hooks by their numbers: NF_INET_* (include/uapi/linux/netfilter.h)."""

    LOCAL_IN = 1
    FORWARD = 2
    LOCAL_OUT = 3


class Verdict(enum.IntEnum):
    """NF_* verdicts. STOLEN: IPVS consumed the packet; what it became is in `Skb.sends`."""

    DROP = 0
    ACCEPT = 1
    STOLEN = 2


NF_DROP: Final = Verdict.DROP
NF_ACCEPT: Final = Verdict.ACCEPT
NF_STOLEN: Final = Verdict.STOLEN


class Skb:
    """One packet at one hook. The buffer is reused: `begin` starts the next packet."""

    __slots__ = (
        "found",
        "frag_max",
        "gso",
        "hook",
        "indev",
        "iph",
        "ipvs_property",
        "made",
        "mark",
        "modified",
        "now",
        "pkt",
        "sends",
        "trace",
        "walk",
        "why",
    )

    def __init__(self) -> None:
        self.pkt = Packet()
        self.iph: Header = self.pkt.iph
        self.hook = Hook.LOCAL_IN
        self.mark = 0
        self.indev = 0  # input interface; 0: none, 1: loopback
        self.now = 0
        self.found = 0  # record of the connection that is left for a new one; 0: there was none
        self.frag_max = 0  # the largest fragment that it was put together from; 0: it came whole
        self.gso = False  # a TCP packet that stands for several segments
        self.ipvs_property = False  # handled: later hooks let it pass
        self.modified = False  # an ACCEPTed packet has new content
        self.why = Why.NONE
        self.sends: list[tuple[int, bytes]] = []  # (next hop, packet) to be sent
        self.made: list[tuple[int, bytes]] = []  # the director's own packets, on their way to LOCAL_OUT
        self.walk: Walk | None = None
        self.trace: Trace | None = None  # somebody traces: to be told which connection it belongs to

    def begin(self, hook: Hook, data: bytes, mark: int, indev: int, now: int) -> int:
        """Load a packet; returns 0 or why it cannot be read."""
        self.hook, self.mark, self.indev, self.now = hook, mark, indev, now
        self.ipvs_property = self.modified = False
        self.why = Why.NONE
        self.found = 0
        self.frag_max = 0
        self.gso = False
        self.sends = []
        self.made = []
        self.walk = None
        self.trace = None
        return self.pkt.load(data, mark)

    def drop(self, why: Why) -> Verdict:
        """NF_DROP for a reason."""
        self.why = why
        return NF_DROP

    def accept(self, why: Why) -> Verdict:
        """NF_ACCEPT for a reason."""
        self.why = why
        return NF_ACCEPT

    def send(self, route: Route, cp: Conn) -> None:
        """To leave by a route; a packet that stands for many segments leaves as these (skb_gso_segment)."""
        packets = self.pkt.segments(cp, route.mtu) if self.gso else [self.pkt.data]
        self.sends += [(route.index, packet) for packet in packets]

    @property
    def loopback(self) -> bool:
        """Made on this host, or received from the loopback device."""
        return self.hook == Hook.LOCAL_OUT or self.indev <= 1


class NetnsIpvs:
    """One director's IPVS (struct netns_ipvs): table, services, routes, sysctls, clock, counts by reason."""

    def __init__(self, table: Table, routes: Routes, clock: Callable[[], int]) -> None:
        self.table = table
        self.routes = routes
        self.clock = clock
        self.sysctl = Sysctl()
        self.services = Services(table, routes, clock, self.sysctl)
        self.defence = Defence(table, self.sysctl)
        self.services.observers.append(self._services_changed)
        self._nodest = False  # a destination was deleted while expire_nodest_conn was set
        self.recorder = Recorder()
        self.tracers = Tracers(table)
        # Told of each new connection of a fwmark service whose server answers with the virtual address:
        # nothing else tells beforehand where its replies come from.
        self.answers_from: Callable[[Conn], None] = lambda cp: None
        self.largest_fragment: Callable[[bytes, int], int] = lambda head, indev: 0  # see `frag_max` of `Skb`
        self.why: list[int] = [0] * len(Why)
        self.settle: Callable[[], None] = lambda: None  # has what is counted elsewhere come into `why`
        self.queues: Callable[[], list[QueueRow]] = list  # what the queues have counted
        # Packets that wait for a next hop's link-layer address: now, and how many ever had to.
        self.unresolved: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.icmp_limit = {AF_INET: IcmpLimit(), AF_INET6: IcmpLimit()}
        self.unprivileged_port_start = 1024  # net.ipv4.ip_unprivileged_port_start of the host
        self.local_port_range = (32768, 60999)  # net.ipv4.ip_local_port_range: source ports of gue tunnels
        self.auto_flowlabels = True  # net.ipv6.auto_flowlabels: our own packets have one
        self.flow_seed = 0  # of the hash that flow labels and source ports of gue tunnels come from

    @cached_property
    def reassembler(self) -> Reassembler:
        """Fragments that wait for the rest of their datagram."""
        return Reassembler()

    @cached_property
    def spare(self) -> Packet:
        """A buffer to read a packet in, for a moment."""
        return Packet()

    def _services_changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        if event == "del_dest" and self.sysctl.expire_nodest_conn:
            self._nodest = True

    def expire_nodest_conns(self) -> None:
        """expire_nodest_conn_handler: end the connections of destinations deleted since the last call.

        To be called soon after a change of the services, once for a burst: it looks at the whole table.
        """
        if self._nodest:
            self._nodest = False
            self.table.expire_nodest()

    def next_ident(self) -> int:
        """An identification for a packet of our own (16 bits, never 0)."""
        return self.table.next_ident()
