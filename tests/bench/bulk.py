"""Bulk TCP through the director: iperf3, up and down, one stream and many."""

from __future__ import annotations

import json
from typing import Any

from bench.results import Figure
from bench.stand import BULK_PORT, Stand
from bench.work import Pace, Work

WAYS = {"up": (), "down": ("-R",)}


def cells(pace: Pace) -> list[tuple[str, int, int, tuple[str, ...]]]:
    """Figure, family, streams, iperf3's words: many streams over IPv4 only."""
    return [
        (name(family, way, streams), family, streams, words)
        for family in pace.families
        for streams in (pace.streams if family == 4 else pace.streams[:1])
        for way, words in WAYS.items()
    ]


def name(family: int, way: str, streams: int = 1) -> str:
    """A figure's."""
    return f"IPv{family} {way}" + (f", {streams} streams" if streams > 1 else "")


def rate(report: dict[str, Any]) -> float:
    """Gbit/s received, of iperf3's report. RuntimeError with its words if it failed."""
    if "error" in report:
        raise RuntimeError(f"iperf3: {report['error']}")
    return float(report["end"]["sum_received"]["bits_per_second"]) / 1e9


def measure(stand: Stand, pace: Pace) -> dict[str, float]:
    """Gbit/s of each of `cells`."""
    found = {}
    for figure, family, streams, words in cells(pace):
        seconds = pace.bulk if streams == 1 else pace.many
        words = ("-p", str(BULK_PORT), "-t", str(seconds), "-P", str(streams), "-J", *words)
        report = stand.client("iperf3", "-c", stand.address[family], *words)
        found[figure] = rate(json.loads(report))
    return found


WORK = Work(
    "bulk",
    "bulk TCP (iperf3); replies of DR and TUN servers do not pass the director",
    lambda pace: [Figure(figure, "Gbit/s") for figure, *_ in cells(pace)],
    measure,
)
