"""Weighted least connection (ip_vs_wlc.c)."""

from __future__ import annotations

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler, least_loaded, overhead
from uvs.ipvs.services import Dest


class WeightedLeastConnection(Scheduler):
    """The fewest connections for its weight."""

    name = "wlc"

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_wlc_schedule."""
        return least_loaded((d for d in self.svc.dests if d.usable), overhead)


SCHEDULER = WeightedLeastConnection
