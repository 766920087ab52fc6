"""Never queue (ip_vs_nq.c)."""

from __future__ import annotations

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler, least_loaded
from uvs.ipvs.scheduling.sed import sed_overhead
from uvs.ipvs.services import Dest


class NeverQueue(Scheduler):
    """An idle destination if there is one, whatever its weight; else the shortest expected delay."""

    name = "nq"

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_nq_schedule."""
        usable = [d for d in self.svc.dests if d.usable]
        idle = next((d for d in usable if not d.rec.activeconns), None)
        return idle or least_loaded(usable, sed_overhead)


SCHEDULER = NeverQueue
