"""Weighted fail-over (ip_vs_fo.c)."""

from __future__ import annotations

from uvs.engine.core import Choose
from uvs.ipvs.scheduling import Comparing
from uvs.ipvs.services import Dest


class FailOver(Comparing):
    """The usable destination of the highest weight gets everything."""

    name = "fo"
    rule = Choose.FO

    def choose(self) -> Dest | None:
        """ip_vs_fo_schedule: the first of equals."""
        return max((d for d in self.svc.dests if d.usable), key=lambda d: d.weight, default=None)


SCHEDULER = FailOver
