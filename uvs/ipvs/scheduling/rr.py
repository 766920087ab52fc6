"""Round robin (ip_vs_rr.c)."""

from __future__ import annotations

from itertools import chain

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler, place
from uvs.ipvs.services import Dest


class RoundRobin(Scheduler):
    """The next usable destination after the one chosen last."""

    name = "rr"

    def init_service(self) -> None:
        """ip_vs_rr_init_svc."""
        self.last: Dest | None = None  # None: the list head
        self._at = 0  # where it stood when it was chosen

    def del_dest(self, dest: Dest, index: int) -> None:
        """ip_vs_rr_del_dest: fall back to the predecessor."""
        if dest is self.last:
            self.last = self.svc.dests[index - 1] if index else None

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_rr_schedule: from behind the last one to the end, then from the start up to the last one."""
        dests = self.svc.dests
        start = 0 if self.last is None else place(dests, self.last, self._at) + 1
        for at in chain(range(start, len(dests)), range(start)):
            if dests[at].usable:
                self.last, self._at = dests[at], at
                return self.last
        return None


SCHEDULER = RoundRobin
