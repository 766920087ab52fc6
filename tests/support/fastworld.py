"""A director on paper whose packets go by the fast path where it takes them, to be held beside one without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scapy.layers.inet import IP
from scapy.layers.sctp import SCTP

from support.packets import halve
from support.world import Outcome, World, dissect
from uvs.engine.core import FastPath, Hdr, NextHop, NextHops, Packet, Step, Why
from uvs.ipvs.hooks import set_fast
from uvs.ipvs.skb import Hook, Verdict


class FastWorld(World):
    """A director on paper whose packets go by the fast path where it takes them."""

    def __init__(self, world: World) -> None:
        self.__dict__ = world.__dict__
        self.hops = NextHops()
        self.fastpath = FastPath(self.table, self.hops, trace=self.ipvs.tracers.trace)
        self.packet = Packet()
        self.fast = 0
        self.whole = 1 << 16  # no datagram comes in fragments
        self.half = False  # checksums come as a sender's stack hands them over

    def at(
        self, hook: Hook, packet: Any, mark: int = 0, indev: int = 2, gso: bool = False, traced: int = 0
    ) -> Outcome:
        for index in list(self.routes.rows):
            route = self.routes.at(index)
            hop = route and NextHop(1, route.mtu, b"", False, route.saddr, route.learned, route.local)
            self.hops.put(index, hop, route is not None and not route.local)
        set_fast(self.ipvs, self.fastpath, self.whole)
        if self.packet.load(bytes(packet), mark):
            return super().at(hook, packet, mark, indev, gso)
        self.packet.gso = gso
        if self.half and self.packet.iph.flags & Hdr.L4 and self.packet.l4_csum_ok():
            halve(self.packet)
        outdev = 1 if self.routes.is_local(self.packet.iph.af, self.packet.iph.daddr) else 3
        devices = (0, outdev) if hook == Hook.LOCAL_OUT else (indev, 0)
        step, index, _ = self.fastpath.step(self.packet, hook, self.now, *devices)
        if step == Step.SLOW:
            self.packet.csum_finish()
            assert self.packet.data == bytes(packet)[: self.packet.len], "nothing was touched"
            return super().at(hook, packet, mark, indev, gso, self.packet.traced)
        self.fast += 1
        assert hook != Hook.LOCAL_OUT or outdev != 1, "its mark says to LOCAL_IN that it was handled"
        before = list(self.ipvs.why)
        self.fastpath.take_counts(self.ipvs.why)
        why = next(Why(i) for i, n in enumerate(self.ipvs.why) if n != before[i])
        out = Outcome(Verdict.STOLEN if step == Step.SEND else Verdict.ACCEPT, why, [], None)
        if step == Step.SEND:
            to = self.routes.describe(index)
            out.sent.extend((to, dissect(data)) for data in self.fastpath.leaving(self.packet))
        self.packet.csum_finish()
        if step == Step.REWRITTEN:
            out = replace(out, content=dissect(self.packet.data))
        return out


CONN = ("af", "daf", "protocol", "cport", "vport", "dport", "caddr", "vaddr", "daddr", "state", "flags", "timeout",
        "deadline", "dest", "n_control", "in_pkts", "fwmark", "mss", "nexthop")  # fmt: skip
DEST = ("activeconns", "inactconns", "persistconns", "refcnt", "route", "flags", "stats")


def everything(world: World) -> list[Any]:
    """What the packets left behind."""
    return [
        sorted(tuple(getattr(c, name) for name in CONN) for c in world.table.conns()),
        [tuple(getattr(d, name) for name in DEST) for d in world.table.dests()],
        world.table.total.stats,
        world.ipvs.why,
    ]


def told(out: Outcome) -> tuple[Any, ...]:
    sent = [(to, bytes(packet)) for to, packet in out.sent]
    return out.verdict, out.why, sent, out.content and bytes(out.content)


def sctp(src: str, sport: int, dst: str, dport: int, *chunks: Any) -> Any:
    packet = IP(src=src, dst=dst, id=1) / SCTP(sport=sport, dport=dport)
    for chunk in chunks:
        packet = packet / chunk
    return packet
