"""Locality-based least connection (ip_vs_lblc.c)."""

from __future__ import annotations

from dataclasses import dataclass

from uvs.engine.core import Header
from uvs.ipvs.scheduling.locality import SECOND, Locality
from uvs.ipvs.services import Dest


@dataclass(slots=True)
class _Entry:
    dest: Dest
    lastuse: int


class LocalityBasedLeastConnection(Locality[_Entry]):
    """One destination address stays with one server as long as that can take it: for cache clusters."""

    name = "lblc"

    @property
    def expiration(self) -> int:
        """sysctl lblc_expiration."""
        return self.sysctl.lblc_expiration * SECOND

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_lblc_schedule. OVERLOAD is not asked of the server that is remembered."""
        addr, now = iph.daddr, self.clock()
        bucket = self.bucket(addr)
        entry = bucket.get(addr)
        if entry:
            entry.lastuse = now
            dest = entry.dest
            if dest.available and dest.weight > 0 and not self.overloaded(dest):
                return dest
        chosen = self.least()
        if chosen and (entry is None or entry.dest is not chosen):
            bucket[addr] = _Entry(chosen, now)
            self.entries += 1
        return chosen


SCHEDULER = LocalityBasedLeastConnection
