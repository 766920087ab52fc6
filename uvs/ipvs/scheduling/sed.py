"""Shortest expected delay (ip_vs_sed.c)."""

from __future__ import annotations

from uvs.engine.core import Choose
from uvs.ipvs.scheduling import Comparing, least_loaded
from uvs.ipvs.services import Dest


def sed_overhead(dest: Dest) -> int:
    """ip_vs_sed_dest_overhead: the connections that the new one would wait among, itself included."""
    return dest.rec.activeconns + 1


class ShortestExpectedDelay(Comparing):
    """The fewest active connections for its weight, counting the one to come."""

    name = "sed"
    rule = Choose.SED

    def choose(self) -> Dest | None:
        """ip_vs_sed_schedule."""
        return least_loaded((d for d in self.svc.dests if d.usable), sed_overhead)


SCHEDULER = ShortestExpectedDelay
