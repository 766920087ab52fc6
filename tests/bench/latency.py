"""One request at a time on an idle machine: what the director adds is the difference from plain routing."""

from __future__ import annotations

from bench.results import Figure
from bench.stand import Stand
from bench.work import Pace, Work

KINDS = {"keep": "same connection", "new": "new connection"}


def measure(stand: Stand, pace: Pace) -> dict[str, float]:
    """Microseconds."""
    found = {}
    for kind, title in KINDS.items():
        _, found[f"{title}, median"], found[f"{title}, p99"] = stand.latency(kind, pace.latency)
    return found


WORK = Work(
    "latency",
    "one HTTP request at a time",
    lambda pace: [
        Figure(f"{t}, {w}", "µs", 1, more=False) for t in KINDS.values() for w in ("median", "p99")
    ],
    measure,
)
