"""The numbers that the project wants to reach, as ratios within one run (driver native)."""

from __future__ import annotations

from dataclasses import dataclass

from bench import bulk, flood
from bench.peers import ACCEPT, ACCEPT_GSO, HAPROXY, ROUTING, uvs_name
from bench.results import Results

NAT, DR, TUN = (uvs_name(mode, "native") for mode in ("nat", "dr", "tun"))
MILLION, TEN = "1000000", "10"
CONN_MAX = 1 << 20  # of `uvs run`: what bounds its memory in a flood
ENTRY = 160  # bytes of one connection at most


@dataclass(frozen=True)
class Bound:
    """A value, what it is of, and where it should be. `value` None: not measured. `least`: no less; else no more."""

    value: float | None
    of: str
    bound: float
    least: bool = True

    @property
    def met(self) -> bool | None:
        """None: not measured."""
        if self.value is None:
            return None
        return self.value >= self.bound if self.least else self.value <= self.bound


@dataclass(frozen=True)
class Row:
    """A row of "Numbers to reach": every bound of `limits` has to hold, those of `aims` would be good."""

    work: str
    limits: tuple[Bound, ...]
    aims: tuple[Bound, ...]


def ratio(a: float | None, b: float | None) -> float | None:
    """a / b; None where one was not measured, or b is nothing."""
    return None if a is None or not b else a / b


def rows(results: Results) -> list[Row]:
    """All of them, whether measured or not."""

    def of(work: str, figure: str, peer: str, base: str) -> float | None:
        return ratio(results.median(work, figure, peer), results.median(work, figure, base))

    def compared(work: str, figure: str, peer: str, base: str, bound: float) -> Bound:
        return Bound(of(work, figure, peer, base), f"x {base}", bound)

    made = []
    for title, peer, way in (
        ("bulk TCP by NAT, up", NAT, "up"), ("bulk TCP by NAT, down", NAT, "down"), ("bulk TCP by DR, up", DR, "up"),
    ):  # fmt: skip
        figure = bulk.name(4, way)
        limits = (compared("bulk", figure, peer, HAPROXY, 1.0),)
        made.append(Row(title, limits, (compared("bulk", figure, peer, ACCEPT_GSO, 0.85),)))
    made += [
        Row("bulk TCP by TUN, up", (), (compared("bulk", bulk.name(4, "up"), TUN, HAPROXY, 0.3),)),
        Row(
            "small packets by NAT",
            (compared("packets", "packets", NAT, ACCEPT, 0.6),),
            (compared("packets", "packets", NAT, ACCEPT, 0.8),),
        ),
        Row(
            "connections a second by NAT",
            (compared("close", "connections", NAT, HAPROXY, 0.85),),
            (compared("close", "connections", NAT, HAPROXY, 1.0),),
        ),
        Row(
            "keep-alive requests a second by NAT",
            (
                compared("keep", "requests", NAT, HAPROXY, 0.8),
                compared("keep", "requests", NAT, ACCEPT_GSO, 0.85),
            ),
            (compared("keep", "requests", NAT, ACCEPT_GSO, 0.95),),
        ),
    ]
    for kind in ("same connection", "new connection"):
        figure = f"{kind}, median"
        added = ratio(added_latency(results, figure, NAT), added_latency(results, figure, HAPROXY))
        of_haproxy = f"x what {HAPROXY} adds"
        made.append(
            Row(
                f"latency added to a request, {kind}",
                (Bound(added, of_haproxy, 1.0, least=False),),
                (Bound(added, of_haproxy, 0.5, least=False),),
            )
        )
    return [*made, *size_rows(results), *flood_rows(results)]


def added_latency(results: Results, figure: str, peer: str) -> float | None:
    """Microseconds more than plain routing takes."""
    mine, routed = results.median("latency", figure, peer), results.median("latency", figure, ROUTING)
    return None if mine is None or routed is None else mine - routed


def size_rows(results: Results) -> list[Row]:
    """A million idle connections."""

    def at(figure: str, count: str) -> float | None:
        return results.median("connections", figure, count)

    arena = at("arena", MILLION)
    more = at("resident", MILLION), at("resident", TEN)
    grown = None if None in more else more[0] - more[1]  # type: ignore[operator]
    each = None if arena is None or grown is None else max(arena, grown)  # MB of a million: bytes of one
    cost = ratio(at("process", MILLION), at("process", TEN))
    idle = at("idle", MILLION), at("idle", TEN)
    busier = None if None in idle else idle[0] - idle[1]  # type: ignore[operator]
    return [
        Row(
            "a million connections, each",
            (Bound(each, "bytes", ENTRY, False),),
            (Bound(each, "bytes", 128, False),),
        ),
        Row("a million idle, processor", (Bound(busier, "% more than ten", 1.0, False),), ()),
        Row("a packet among a million", (Bound(cost, "x among ten", 1.5, False),), ()),
    ]


def flood_rows(results: Results) -> list[Row]:
    """A flood of SYNs, drop_entry=3."""

    def at(figure: str) -> float | None:
        return results.median("flood", figure, NAT)

    fixed = at(f"{flood.FLOWS['fixed']}: share kept")
    full = at(f"{flood.FLOWS['full']}: share kept")
    routed = results.median("flood", f"{flood.FLOWS['full']}: share kept", ROUTING)
    before, end = at("resident before"), at("resident at the end")
    grown = None if before is None or end is None else end - before
    most = CONN_MAX * ENTRY / 1e6
    return [
        Row(f"SYN flood: {flood.FLOWS['fixed']} keeps", (Bound(fixed, "x", 0.5),), (Bound(fixed, "x", 0.8),)),
        Row(
            f"SYN flood: {flood.FLOWS['full']} keeps",
            (Bound(full, "x", 0.5),),
            (Bound(full, "x", 0.8), Bound(ratio(full, routed), f"x what {ROUTING} keeps", 0.8)),
        ),
        Row("SYN flood: service whole again", (Bound(at("whole again"), "s", 2.0, False),), ()),
        Row("SYN flood: memory grown", (Bound(grown, "MB", most, False),), ()),
    ]
