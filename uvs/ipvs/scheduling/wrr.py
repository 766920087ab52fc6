"""Weighted round robin (ip_vs_wrr.c)."""

from __future__ import annotations

from math import gcd

from uvs.engine.core import Kind
from uvs.ipvs.scheduling import InEngine
from uvs.ipvs.services import Dest


class WeightedRoundRobin(InEngine):
    """Passes over the list; a pass serves the destinations of at least the current weight.

    `sched` has the place of the destination chosen last, from 1 (`last`, the kernel's cl; 0: the list head),
    the current weight `cw`, which a pass lowers by `di`, the common divisor of all weights, down from `mw`,
    the maximum.
    """

    name = "wrr"
    kind = Kind.WRR

    def init_service(self) -> None:
        """ip_vs_wrr_init_svc."""
        di = self._gcd()
        mw = self._max() - (di - 1)
        self.sched.weigh(mw, mw, di)

    def _gcd(self) -> int:
        return gcd(*(d.weight for d in self.svc.dests if d.weight > 0)) or 1

    def _max(self) -> int:
        return max((d.weight for d in self.svc.dests), default=0)

    def _changed(self) -> None:
        """ip_vs_wrr_dest_changed."""
        di = self._gcd()
        mw = self._max() - (di - 1)
        cw = self.sched.cw
        if cw > mw or not cw:
            cw = mw
        elif di > 1:
            cw = cw // di * di + 1
        self.sched.weigh(cw, mw, di)

    def add_dest(self, dest: Dest) -> None:
        """ip_vs_wrr_dest_changed."""
        super().add_dest(dest)
        self._changed()

    def del_dest(self, dest: Dest, index: int) -> None:
        """ip_vs_wrr_dest_changed."""
        super().del_dest(dest, index)
        self._changed()

    def upd_dest(self, dest: Dest) -> None:
        """ip_vs_wrr_dest_changed."""
        self._changed()

    def _skip_passes(self) -> None:
        """Passes that would find nobody, since all of so high a weight are overloaded, at once."""
        cw, di = self.sched.cw, self.sched.di
        if cw > di and (most := max((d.weight for d in self.svc.dests if not d.overloaded), default=0)) < cw:
            most = max(most, di)
            self.sched.cw = cw + (most - cw) // di * di

    def choose(self) -> Dest | None:
        """ip_vs_wrr_schedule."""
        dests, sched = self.svc.dests, self.sched
        if not sched.mw:
            return None
        start = sched.last
        stop_after = 0  # the pass just begun ends behind this place
        last_pass = restarted = False
        while True:
            for at in range(sched.last, len(dests)):
                sched.last = at + 1
                if not dests[at].overloaded and dests[at].weight >= sched.cw:
                    return dests[at]
                if sched.last == stop_after:
                    return None
            sched.last = 0
            last_pass = last_pass or sched.cw <= sched.di
            sched.cw -= sched.di
            if sched.cw <= 0:
                sched.cw = sched.mw
                if (restarted and last_pass) or not start:
                    return None
                restarted = True
                last_pass = False
            self._skip_passes()
            if restarted and sched.cw <= sched.di and start:
                stop_after, last_pass = start, True


SCHEDULER = WeightedRoundRobin
