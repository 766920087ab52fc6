"""Counters as they are shown: two-second snapshots, zero baseline, rates (ip_vs_est.c)."""

from __future__ import annotations

Stats = tuple[int, int, int, int, int]
ZERO: Stats = (0, 0, 0, 0, 0)

INTERVAL_S = 2
_PACKET_SHIFT, _BYTE_SHIFT = 9, 4  # fixed point of the difference over two seconds


class Estimator:
    """The view of one object's counters (conns, inpkts, outpkts, inbytes, outbytes)."""

    __slots__ = ("_avg", "_base", "_last", "_snap")

    def __init__(self, counted: Stats = ZERO) -> None:
        """`counted`: what a record of an earlier run holds already; it is no rate of this one."""
        self._snap = self._last = counted
        self._base: Stats = ZERO
        self._avg = [0, 0, 0, 0, 0]

    def sample(self, now: Stats) -> None:
        """ip_vs_estimation: take a snapshot, move each average a quarter of the way."""
        for i in range(5):
            rate = (now[i] - self._last[i]) << (_PACKET_SHIFT if i < 3 else _BYTE_SHIFT)
            self._avg[i] += (rate - self._avg[i]) >> 2
        self._snap = self._last = now

    def zero(self) -> None:
        """ip_vs_zero_stats: count from the snapshot."""
        self._base = self._snap
        self._last = self._snap
        self._avg = [0, 0, 0, 0, 0]

    @property
    def counters(self) -> Stats:
        """Totals since the last zeroing."""
        a, b = self._snap, self._base
        return a[0] - b[0], a[1] - b[1], a[2] - b[2], a[3] - b[3], a[4] - b[4]

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
