"""A director on paper that outlives its process, and what an operator sees of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from support import invariants
from support.traffic import TCP, UDP
from support.world import World
from uvs.control.state import SavedTable

KNOBS = ("drop_entry", "drop_packet", "secure_tcp")


class Director(World):
    """One that outlives its process: the arena and the saved table are files."""

    def __init__(self, folder: str, now: int) -> None:
        super().__init__(100, folder + "/connections", now)
        self.saved = SavedTable(folder + "/table")
        assert self.table.message == ""
        assert self.saved.restore(self.ipvs) == []

    def listing(self) -> dict[str, Any]:
        """What an operator sees, and what stands behind it."""
        services = self.ipvs.services
        conns = [
            (c.af, c.protocol, c.caddr, c.cport, c.vaddr, c.vport, c.daf, c.daddr, c.dport, c.state, c.flags, c.timeout,
             c.deadline, c.dest, c.control, c.n_control, c.in_pkts, c.fwmark)
            for c in self.table.conns()
        ]  # fmt: skip
        return {
            "services": [
                (replace(svc.spec, key=svc.key.lookup), svc.rec.stats, [d.spec for d in svc.dests])  # type: ignore[arg-type]
                for svc in services
            ],
            "dests": sorted(
                (d.rec.index, d.rec.refcnt, d.rec.activeconns, d.rec.inactconns, d.rec.persistconns, d.rec.flags,
                 d.rec.weight, d.rec.last_weight, d.rec.stats)
                for d in invariants.dests(self)
                if d.available or d.rec.refcnt
            ),
            "entries": conns,
            "total": (self.table.total.raw, self.table.total.stats),
            # Automatic defence looks at the memory anew: 2 is 1 that found little.
            "sysctls": {
                name: "1" if name in KNOBS and value == "2" else value
                for name in self.ipvs.sysctl.names()
                for value in [self.ipvs.sysctl.get(name)]
            },
            "timeouts": [self.table.timeouts(p) for p in (TCP, UDP)],
        }  # fmt: skip
