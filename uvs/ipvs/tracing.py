"""Who traces a director: each with a filter, a rate, and the walks that wait to be fetched."""

from __future__ import annotations

import errno
from collections import deque

from uvs.engine.core import Packet, Table, Trace
from uvs.engine.trace import RATE_MAX, Want
from uvs.ipvs.spec import IpvsError
from uvs.ipvs.tracefilter import FilterError, parse, program
from uvs.ipvs.walk import Walk

KEPT = 256  # walks that wait for a tracer: what it does not fetch in time is counted, and forgotten


class Tracer:
    """One who traces: `filter` as it is written out, `rate` walks a second."""

    def __init__(self, which: int, text: str, rate: int) -> None:
        self.which, self.filter, self.rate = which, text, rate
        self.number = 0  # of the last walk
        self.missed = 0  # walks that were not fetched in time
        self.walks: deque[tuple[int, Walk]] = deque()  # with their numbers

    def add(self, walk: Walk) -> None:
        """A walk more."""
        self.number += 1
        if len(self.walks) == KEPT:
            self.walks.popleft()
            self.missed += 1
        self.walks.append((self.number, walk))


class Tracers:
    """All of a director."""

    def __init__(self, table: Table) -> None:
        self.trace = Trace(table)
        self._all: dict[int, Tracer] = {}
        self._ended = (0, 0)

    def __bool__(self) -> bool:
        """Does anybody trace?"""
        return bool(self._all)

    def add(self, text: str, rate: int) -> Tracer:
        """A tracer more. IpvsError: EINVAL no such filter or rate, EBUSY there is no room."""
        if not 1 <= rate <= RATE_MAX:
            raise IpvsError(errno.EINVAL, f"1..{RATE_MAX} walks a second")
        try:
            expr = parse(text)
            which = self.trace.add(program(expr), rate)
        except FilterError as error:
            raise IpvsError(errno.EINVAL, str(error)) from None
        except OSError as error:
            raise IpvsError(error.errno, error.strerror) from None
        tracer = self._all[which] = Tracer(which, str(expr or ""), rate)
        return tracer

    def remove(self, tracer: Tracer) -> None:
        """It has gone."""
        if self._all.get(tracer.which) is tracer:
            self._ended = self._sum(tracer)
            del self._all[tracer.which]
            self.trace.remove(tracer.which)

    def counts(self, tracer: Tracer) -> tuple[int, int]:
        """Packets that matched, and how many of them are not shown: for the rate, or fetched too late."""
        matched, suppressed = self.trace.counts(tracer.which)
        return matched, suppressed + tracer.missed

    def totals(self) -> dict[str, int]:
        """Traces that go on, and `counts` of all that there have been."""
        matched, suppressed = self._sum(*self._all.values())
        return {"traces": len(self._all), "traced": matched, "untold": suppressed}

    def _sum(self, *tracers: Tracer) -> tuple[int, int]:
        rows = [self._ended, *map(self.counts, tracers)]
        return sum(row[0] for row in rows), sum(row[1] for row in rows)

    def begin(self, packet: Packet | None, hook: int, mark: int, asked: int, now: int) -> Want:
        """As `Trace.begin`."""
        return self.trace.begin(packet, hook, mark, asked, now)

    def end(self, verdict: int, why: int, walk: Walk | None, now: int) -> None:
        """What became of the packet in hand: those who want its walk get it."""
        told = self.trace.end(verdict, why, walk is not None, now)
        if told and walk is not None:
            for which, tracer in self._all.items():
                if told >> which & 1:
                    tracer.add(walk)
