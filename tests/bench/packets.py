"""Small packets forwarded, as many as one sender sends, and what one costs at a rate that all but the slowest bear."""

from __future__ import annotations

from bench.peers import ACCEPT, ROUTING, Peer
from bench.results import Figure
from bench.stand import Stand
from bench.work import Pace, Work

FLOWS = 64
PACE = 20_000  # packets a second


def measure(stand: Stand, pace: Pace) -> dict[str, float]:
    """The sender sends all it can: what arrives, and the processor time of the director's processes for one."""
    rate, used = stand.packets(pace.packets, flows=FLOWS)
    return {
        "packets": rate / 1e3,
        "process": used.director / rate * 1e6,
        "machine": used.machine / rate * 1e6,
    }


def measure_paced(stand: Stand, pace: Pace) -> dict[str, float]:
    """At a fixed rate: the director's processes and the whole machine (sender, kernel, server's device) for one."""
    rate, used = stand.packets(pace.paced, flows=FLOWS, rate=PACE)
    return {
        "arrived": rate / PACE,
        "process": used.director / rate * 1e6,
        "machine": used.machine / rate * 1e6,
    }


def excuse(peer: Peer) -> str:
    """HAProxy forwards no UDP."""
    return "" if peer.udp else "forwards no UDP"


COST = [
    Figure("process", "µs of the director's processes a packet", more=False),
    Figure("machine", "µs of all processors a packet", more=False),
]
WORK = Work(
    "packets",
    f"small packets (UDP, 46 bytes, {FLOWS} flows), all that one sender sends",
    lambda pace: [Figure("packets", "1000/s at the server", 0), *COST],
    measure,
    excuse,
    lambda peer: True,
)
PACED = Work(
    "paced",
    f"the same at {PACE:,} packets a second: what one costs",
    lambda pace: [Figure("arrived", "share that arrived"), *COST],
    measure_paced,
    excuse,
    lambda peer: peer.name in (ROUTING, ACCEPT) or peer.driver == "native",
)
