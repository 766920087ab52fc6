"""Weighted overflow (ip_vs_ovf.c)."""

from __future__ import annotations

from uvs.engine.core import Choose
from uvs.ipvs.scheduling import Comparing
from uvs.ipvs.services import Dest


class Overflow(Comparing):
    """The highest weight until it has more active connections than that, then the next lower one."""

    name = "ovf"
    rule = Choose.OVF

    def choose(self) -> Dest | None:
        """ip_vs_ovf_schedule: the first of equals."""
        fits = (d for d in self.svc.dests if d.usable and d.rec.activeconns <= d.weight)
        return max(fits, key=lambda d: d.weight, default=None)


SCHEDULER = Overflow
