"""Destination hashing (ip_vs_dh.c)."""

from __future__ import annotations

from uvs.engine.core import Header, Kind
from uvs.ipvs.scheduling.hashing import TableScheduler, fold, hash_32
from uvs.ipvs.services import Dest

TAB_BITS = 8  # CONFIG_IP_VS_DH_TAB_BITS


class DestinationHashing(TableScheduler):
    """A table over the packet's destination address; the servers fill it in turn, whatever their weight."""

    name = "dh"
    kind = Kind.DH

    def reassign(self, dests: list[Dest]) -> list[Dest]:
        """ip_vs_dh_reassign."""
        return [dests[i % len(dests)] for i in range(1 << TAB_BITS)] if dests else []

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_dh_schedule: no second choice."""
        if not self.table:
            return None
        dest = self.table[hash_32(fold(iph.daddr), TAB_BITS)]
        return dest if dest.available and dest.usable else None


SCHEDULER = DestinationHashing
