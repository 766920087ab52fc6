"""Never queue (ip_vs_nq.c)."""

from __future__ import annotations

from uvs.engine.core import Choose
from uvs.ipvs.scheduling import Comparing, least_loaded
from uvs.ipvs.scheduling.sed import sed_overhead
from uvs.ipvs.services import Dest


class NeverQueue(Comparing):
    """An idle destination if there is one, whatever its weight; else the shortest expected delay."""

    name = "nq"
    rule = Choose.NQ

    def choose(self) -> Dest | None:
        """ip_vs_nq_schedule."""
        usable = [d for d in self.svc.dests if d.usable]
        idle = next((d for d in usable if not d.rec.activeconns), None)
        return idle or least_loaded(usable, sed_overhead)


SCHEDULER = NeverQueue
