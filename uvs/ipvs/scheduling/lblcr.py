"""Locality-based least connection with replication (ip_vs_lblcr.c)."""

from __future__ import annotations

from dataclasses import dataclass

from uvs.engine.core import Header
from uvs.ipvs.scheduling import least_loaded, overhead
from uvs.ipvs.scheduling.locality import SECOND, Locality
from uvs.ipvs.services import Dest


@dataclass(slots=True)
class _Entry:
    members: list[Dest]  # newest first
    lastmod: int  # ns
    lastuse: int

    def insert(self, dest: Dest, now: int) -> None:
        """ip_vs_dest_set_insert."""
        if dest not in self.members:
            self.members.insert(0, dest)
            self.lastmod = now

    def least(self) -> Dest | None:
        """ip_vs_dest_set_min."""
        return least_loaded((d for d in self.members if d.usable and d.available), overhead)

    def drop_most(self) -> None:
        """ip_vs_dest_set_max: the most loaded member with weight leaves."""
        most: Dest | None = None
        load = 0
        for dest in self.members:
            if dest.weight <= 0:
                continue
            its = overhead(dest)
            if most is None or load * dest.weight < its * most.weight:
                most, load = dest, its
        if most:
            self.members.remove(most)


class LocalityBasedWithReplication(Locality[_Entry]):
    """One destination address stays with a set of servers, which grows under load and shrinks with time."""

    name = "lblcr"

    @property
    def expiration(self) -> int:
        """sysctl lblcr_expiration; also how long a set stays as it is before it shrinks."""
        return self.sysctl.lblcr_expiration * SECOND

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_lblcr_schedule."""
        addr, now = iph.daddr, self.clock()
        bucket = self.bucket(addr)
        entry = bucket.get(addr)
        if entry is None:
            chosen = self.least()
            if chosen:
                bucket[addr] = _Entry([chosen], now, now)
                self.entries += 1
            return chosen
        entry.lastuse = now
        member = entry.least()
        if len(entry.members) > 1 and now > entry.lastmod + self.expiration:
            entry.drop_most()
            entry.lastmod = now
        if member and not self.overloaded(member):
            return member
        chosen = self.least()
        if chosen:
            entry.insert(chosen, now)
        return chosen


SCHEDULER = LocalityBasedWithReplication
