"""Least connection (ip_vs_lc.c)."""

from __future__ import annotations

from uvs.engine.core import Choose
from uvs.ipvs.scheduling import Comparing, overhead
from uvs.ipvs.services import Dest


class LeastConnection(Comparing):
    """The usable destination with the fewest connections; weights do not count."""

    name = "lc"
    rule = Choose.LC

    def choose(self) -> Dest | None:
        """ip_vs_lc_schedule: the first of equals."""
        return min((d for d in self.svc.dests if d.usable), key=overhead, default=None)


SCHEDULER = LeastConnection
