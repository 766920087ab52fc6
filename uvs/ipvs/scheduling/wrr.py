"""Weighted round robin (ip_vs_wrr.c)."""

from __future__ import annotations

from math import gcd

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler, place
from uvs.ipvs.services import Dest


class WeightedRoundRobin(Scheduler):
    """Passes over the list; a pass serves the destinations of at least the current weight.

    `cl` is the destination chosen last (None: the list head), `cw` the current weight, which a pass
    lowers by `di`, the common divisor of all weights, down from `mw`, the maximum.
    """

    name = "wrr"

    def init_service(self) -> None:
        """ip_vs_wrr_init_svc."""
        self.cl: Dest | None = None
        self._at = 0  # where it stood when it was chosen
        self.di = self._gcd()
        self.mw = self._max() - (self.di - 1)
        self.cw = self.mw

    def _gcd(self) -> int:
        return gcd(*(d.weight for d in self.svc.dests if d.weight > 0)) or 1

    def _max(self) -> int:
        return max((d.weight for d in self.svc.dests), default=0)

    def _changed(self) -> None:
        """ip_vs_wrr_dest_changed."""
        self.cl = None
        self.di = self._gcd()
        self.mw = self._max() - (self.di - 1)
        if self.cw > self.mw or not self.cw:
            self.cw = self.mw
        elif self.di > 1:
            self.cw = self.cw // self.di * self.di + 1

    def add_dest(self, dest: Dest) -> None:
        """ip_vs_wrr_dest_changed."""
        self._changed()

    def del_dest(self, dest: Dest, index: int) -> None:
        """ip_vs_wrr_dest_changed."""
        self._changed()

    def upd_dest(self, dest: Dest) -> None:
        """ip_vs_wrr_dest_changed."""
        self._changed()

    def _skip_passes(self) -> None:
        """Passes that would find nobody, since all of so high a weight are overloaded, at once."""
        lowest = self.cw - self.di
        if (
            lowest > 0
            and (most := max((d.weight for d in self.svc.dests if not d.overloaded), default=0)) < self.cw
        ):
            most = max(most, self.di)
            self.cw -= -((most - self.cw) // self.di) * self.di

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_wrr_schedule."""
        if not self.mw:
            return None
        dests = self.svc.dests
        start = self.cl
        at = 0 if start is None else place(dests, start, self._at) + 1
        stop_after: Dest | None = None  # the pass just begun ends behind this one
        last_pass = restarted = False
        while True:
            for now, dest in enumerate(dests[at:], at):
                if not dest.overloaded and dest.weight >= self.cw:
                    self.cl, self._at = dest, now
                    return dest
                self.cl = dest
                if dest is stop_after:
                    return None
            at, self.cl = 0, None
            last_pass = last_pass or self.cw <= self.di
            self.cw -= self.di
            if self.cw <= 0:
                self.cw = self.mw
                if (restarted and last_pass) or start is None:
                    return None
                restarted = True
                last_pass = False
            self._skip_passes()
            if restarted and self.cw <= self.di and start is not None:
                stop_after, last_pass = start, True


SCHEDULER = WeightedRoundRobin
