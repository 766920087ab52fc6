"""Source hashing (ip_vs_sh.c)."""

from __future__ import annotations

from uvs.engine.core import Kind
from uvs.ipvs.scheduling.hashing import ClientHashing, fold, hash_32
from uvs.ipvs.services import Dest

TAB_BITS = 8  # CONFIG_IP_VS_SH_TAB_BITS


class SourceHashing(ClientHashing):
    """Each destination holds as many buckets in a row as its weight."""

    name = "sh"
    kind = Kind.SH
    size = 1 << TAB_BITS

    def reassign(self, dests: list[Dest]) -> list[Dest]:
        """ip_vs_sh_reassign; weight 0 still holds one bucket in each round."""
        table: list[Dest] = []
        while dests and len(table) < self.size:
            for dest in dests[: self.size]:
                table += [dest] * min(max(1, dest.weight), self.size - len(table))
        return table

    def slot(self, addr: bytes, port: int, offset: int = 0) -> int:
        """ip_vs_sh_hashkey."""
        return (offset + hash_32(port + fold(addr) & 0xFFFFFFFF, TAB_BITS)) % self.size


SCHEDULER = SourceHashing
