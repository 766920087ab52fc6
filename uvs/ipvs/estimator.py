"""Counters as they are shown: two-second snapshots, counts since the last zeroing, rates (ip_vs_est.c)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

Stats = tuple[int, int, int, int, int]
ZERO: Stats = (0, 0, 0, 0, 0)

PERIOD_NS = 2 * 10**9
ROWS = 20
ROW_NS = PERIOD_NS // ROWS
AT_ONCE = 16  # estimators in a step: about a tenth of a millisecond
TOGETHER = 64  # so many stay in one row, so that a short listing adds up

_PACKET_SHIFT, _BYTE_SHIFT = 9, 4  # fixed point of the difference over two seconds


class Counted(Protocol):
    """What has counters: conns, inpkts, outpkts, inbytes, outbytes."""

    @property
    def stats(self) -> Stats:
        """As they are now, since the last zeroing."""


class Estimator:
    """The view of one object's counters (conns, inpkts, outpkts, inbytes, outbytes)."""

    __slots__ = ("_avg", "_snap")

    def __init__(self, counted: Stats = ZERO) -> None:
        """`counted`: what a record of an earlier run holds already; it is no rate of this one."""
        self._snap = counted
        self._avg = ZERO

    def sample(self, now: Stats) -> None:
        """ip_vs_estimation: take a snapshot, move each average a quarter of the way."""
        last, (a, b, c, d, e) = self._snap, self._avg
        if now == last and not (a or b or c or d or e):
            return  # most of many thousands
        self._avg = (
            a + (((now[0] - last[0] << _PACKET_SHIFT) - a) >> 2),
            b + (((now[1] - last[1] << _PACKET_SHIFT) - b) >> 2),
            c + (((now[2] - last[2] << _PACKET_SHIFT) - c) >> 2),
            d + (((now[3] - last[3] << _BYTE_SHIFT) - d) >> 2),
            e + (((now[4] - last[4] << _BYTE_SHIFT) - e) >> 2),
        )
        self._snap = now

    def zero(self) -> Stats:
        """ip_vs_zero_stats: count from the snapshot, which is returned, to be taken off what is counted."""
        snap, self._snap = self._snap, ZERO
        self._avg = ZERO
        return snap

    @property
    def counters(self) -> Stats:
        """Totals since the last zeroing."""
        return self._snap

    @property
    def rates(self) -> Stats:
        """cps, inpps, outpps, inbps, outbps (bytes)."""
        a = self._avg
        return (
            (a[0] + 0x1FF) >> 10,
            (a[1] + 0x1FF) >> 10,
            (a[2] + 0x1FF) >> 10,
            (a[3] + 0xF) >> 5,
            (a[4] + 0xF) >> 5,
        )


class Rows:
    """All estimators of a director: each has its turn every two seconds, and no turn of all is long.

    As the kernel's since 6.2 (ip_vs_est_kthread), in rows that follow each other by the clock.
    """

    def __init__(self, now: int) -> None:
        """`now`: ns of the clock that `due` is asked by."""
        self._rows: list[dict[Estimator, Counted]] = [{} for _ in range(ROWS)]
        self._row_of: dict[Estimator, dict[Estimator, Counted]] = {}
        self._filling = self._rows[0]
        self._turn, self._due = 0, now
        self._under_way = False

    def __len__(self) -> int:
        return len(self._row_of)

    def add(self, est: Estimator, counted: Counted) -> None:
        """ip_vs_start_estimator."""
        if len(self._filling) >= TOGETHER:
            self._filling = min(self._rows, key=len)
        self._filling[est] = counted
        self._row_of[est] = self._filling

    def remove(self, est: Estimator) -> None:
        """ip_vs_stop_estimator: what it shows stands."""
        del self._row_of.pop(est)[est]

    def due(self, now: int) -> Iterator[None]:
        """Sample the rows whose turn has come, in steps; those that were missed first, all once at most.

        While other steps are under way there are none: on a busy machine they would grow ever more.
        """
        if self._under_way:
            return
        self._under_way = True
        try:
            if now - self._due >= PERIOD_NS:
                self._due = now - PERIOD_NS + ROW_NS
            while self._due <= now:
                row = self._rows[self._turn]
                self._turn = (self._turn + 1) % ROWS
                self._due += ROW_NS
                yield from self._sample(row)
        finally:
            self._under_way = False

    def all(self) -> Iterator[None]:
        """Sample every row now."""
        for row in self._rows:
            yield from self._sample(row)

    @staticmethod
    def _sample(row: dict[Estimator, Counted]) -> Iterator[None]:
        for number, (est, counted) in enumerate(list(row.items()), 1):
            if est in row:  # else removed since the last step, its record perhaps another's
                est.sample(counted.stats)
            if not number % AT_ONCE:
                yield
