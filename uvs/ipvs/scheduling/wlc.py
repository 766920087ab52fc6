"""Weighted least connection (ip_vs_wlc.c)."""

from __future__ import annotations

from uvs.engine.core import Choose
from uvs.ipvs.scheduling import Comparing, least_loaded, overhead
from uvs.ipvs.services import Dest


class WeightedLeastConnection(Comparing):
    """The fewest connections for its weight."""

    name = "wlc"
    rule = Choose.WLC

    def choose(self) -> Dest | None:
        """ip_vs_wlc_schedule."""
        return least_loaded((d for d in self.svc.dests if d.usable), overhead)


SCHEDULER = WeightedLeastConnection
