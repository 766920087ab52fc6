"""Weighted least connection (ip_vs_wlc.c)."""

from __future__ import annotations

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler, overhead
from uvs.ipvs.services import Dest


class WeightedLeastConnection(Scheduler):
    """The fewest connections for its weight."""

    name = "wlc"

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_wlc_schedule: load/weight compared by cross-multiplication, the first of equals."""
        least: Dest | None = None
        load = 0
        for dest in self.svc.dests:
            if not dest.usable:
                continue
            its = overhead(dest)
            if least is None or load * dest.weight > its * least.weight:
                least, load = dest, its
        return least


SCHEDULER = WeightedLeastConnection
