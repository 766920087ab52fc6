"""A kind of work that every peer does, and how long and how often things are done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.peers import ACCEPT, Peer
from bench.results import Figure
from bench.stand import Stand


@dataclass(frozen=True)
class Pace:
    """Of a run. Times in seconds; iperf3 and wrk take whole ones."""

    rounds: int = 3
    bulk: int = 2
    families: tuple[int, ...] = (4, 6)
    streams: tuple[int, ...] = (1, 16)
    many: int = 1  # `bulk` for many streams
    packets: float = 1.2
    paced: float = 1.2
    web: int = 2
    latency: float = 1.0
    connections: tuple[int, ...] = (10, 1_000, 10_000, 100_000, 1_000_000)
    idle: float = 5.0
    services: tuple[int, ...] = (1, 100, 10_000)
    servers: tuple[int, ...] = (1, 10, 100, 1_000)
    size_packets: float = 1.0
    size_warm_up: float = 1.0  # until all of those flows are known
    flood: float = 10.0
    flood_before: int = 4
    flood_rounds: int = 1
    sparing: bool = False  # leave out what `Work.sparing` and peers say


FULL = Pace()
QUICK = replace(
    FULL, rounds=1, bulk=1, families=(4,), streams=(1,), packets=0.4, paced=0.4, web=1, latency=0.2,
    connections=(10, 1_000_000), idle=1.0, services=(1, 1_000), servers=(1, 1_000), size_packets=0.4, size_warm_up=0.4,
    flood=2.0, flood_before=1, sparing=True,
)  # fmt: skip
# For tests of the harness: everything as short as it goes.
TINY = replace(
    QUICK, packets=0.1, paced=0.1, latency=0.05, connections=(1_000,), idle=0.1, services=(20,), servers=(5,),
    size_packets=0.1, size_warm_up=0.2, flood=1.0, sparing=False,
)  # fmt: skip


@dataclass(frozen=True)
class Work:
    """`measure` gives a value for each of `figures`; `excuse` says why a peer does not do it, or nothing.

    `sparing`: does a peer do it in a quick run?
    """

    name: str
    title: str
    figures: Callable[[Pace], list[Figure]]
    measure: Callable[[Stand, Pace], dict[str, float]]
    excuse: Callable[[Peer], str] = lambda peer: ""
    sparing: Callable[[Peer], bool] = lambda peer: peer.name != ACCEPT
