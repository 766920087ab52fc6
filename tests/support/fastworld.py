"""A director on paper whose packets go by the fast path where it takes them, to be held beside one without."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from scapy.layers.inet import IP
from scapy.layers.sctp import SCTP

from support.packets import halve
from support.world import Outcome, World, dissect
from uvs.engine.core import FastPath, Hdr, NextHop, NextHops, Packet, Step, Why
from uvs.ipvs.hooks import fast_flags
from uvs.ipvs.skb import Hook, Verdict


class FastWorld(World):
    """A director on paper whose packets go by the fast path where it takes them."""

    def __init__(self, world: World) -> None:
        self.__dict__ = world.__dict__
        self.hops = NextHops()
        self.fastpath = FastPath(self.table, self.hops)
        self.packet = Packet()
        self.fast = 0
        self.whole = 1 << 16  # no datagram comes in fragments
        self.half = False  # checksums come as a sender's stack hands them over

    def at(self, hook: Hook, packet: Any, mark: int = 0, indev: int = 2, gso: bool = False) -> Outcome:
        for index in list(self.routes.rows):
            route = self.routes.at(index)
            quick = route is not None and not route.local
            self.hops.put(index, NextHop(1, route.mtu) if route and quick else None, quick)
        self.fastpath.flags = fast_flags(self.ipvs)
        self.fastpath.whole = self.whole
        if gso or self.packet.load(bytes(packet), mark):
            return super().at(hook, packet, mark, indev, gso)
        if self.half and self.packet.iph.flags & Hdr.L4 and self.packet.l4_csum_ok():
            halve(self.packet)
        step, index, _ = self.fastpath.step(self.packet, hook, self.now, indev)
        self.packet.csum_finish()
        if step == Step.SLOW:
            assert self.packet.data == bytes(packet)[: self.packet.len], "nothing was touched"
            return super().at(hook, packet, mark, indev)
        self.fast += 1
        before = list(self.ipvs.why)
        self.fastpath.take_counts(self.ipvs.why)
        why = next(Why(i) for i, n in enumerate(self.ipvs.why) if n != before[i])
        out = Outcome(Verdict.STOLEN if step == Step.SEND else Verdict.ACCEPT, why, [], None)
        if step == Step.SEND:
            out.sent.append((self.routes.describe(index), dissect(self.packet.data)))
        if step == Step.REWRITTEN:
            out = replace(out, content=dissect(self.packet.data))
        return out


CONN = ("af", "daf", "protocol", "cport", "vport", "dport", "caddr", "vaddr", "daddr", "state", "flags", "timeout",
        "deadline", "dest", "n_control", "in_pkts", "fwmark", "mss", "nexthop")  # fmt: skip
DEST = ("activeconns", "inactconns", "persistconns", "refcnt", "flags", "stats")


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
