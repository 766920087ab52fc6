"""Round robin (ip_vs_rr.c)."""

from __future__ import annotations

from itertools import chain

from uvs.engine.core import Kind
from uvs.ipvs.scheduling import InEngine
from uvs.ipvs.services import Dest


class RoundRobin(InEngine):
    """The next usable destination after the one chosen last.

    `sched.last` is its place in the list, counted from 1; 0 is the list head. When it is deleted its
    predecessor takes its part (ip_vs_rr_del_dest): the engine sees to that with the list.
    """

    name = "rr"
    kind = Kind.RR

    def choose(self) -> Dest | None:
        """ip_vs_rr_schedule: from behind the last one to the end, then from the start up to the last one."""
        dests, last = self.svc.dests, self.sched.last
        for at in chain(range(last, len(dests)), range(last)):
            if dests[at].usable:
                self.sched.last = at + 1
                return dests[at]
        return None


SCHEDULER = RoundRobin
