"""Source hashing (ip_vs_sh.c)."""

from __future__ import annotations

from uvs.engine.core import Header
from uvs.ipvs.scheduling import Scheduler
from uvs.ipvs.scheduling.hashing import fold, hash_32
from uvs.ipvs.services import Dest
from uvs.ipvs.spec import SVC_F_SCHED1, SVC_F_SCHED2

TAB_BITS = 8  # CONFIG_IP_VS_SH_TAB_BITS
SIZE = 1 << TAB_BITS
FALLBACK, PORT = SVC_F_SCHED1, SVC_F_SCHED2


def source(iph: Header, with_port: bool) -> tuple[bytes, int]:
    """The client's address, and its port if that counts and the protocol has one (ip_vs_sh_get_port)."""
    addr, port = (iph.daddr, iph.dport) if iph.inverse else (iph.saddr, iph.sport)
    return addr, port if with_port and iph.protocol in (6, 17, 132) else 0


def bucket(addr: bytes, port: int, offset: int) -> int:
    """ip_vs_sh_hashkey."""
    return (offset + hash_32(port + fold(addr) & 0xFFFFFFFF, TAB_BITS)) % SIZE


class SourceHashing(Scheduler):
    """A table over the client's address: each destination holds as many buckets in a row as its weight."""

    name = "sh"

    def init_service(self) -> None:
        """ip_vs_sh_init_svc."""
        self.buckets: list[Dest] = []
        self._reassign()

    def _reassign(self) -> None:
        """ip_vs_sh_reassign; weight 0 still holds one bucket in each round."""
        dests = self.svc.dests
        self.buckets = []
        while dests and len(self.buckets) < SIZE:
            for dest in dests:
                self.buckets += [dest] * max(1, dest.weight)
        del self.buckets[SIZE:]

    def add_dest(self, dest: Dest) -> None:
        """ip_vs_sh_dest_changed."""
        self._reassign()

    def del_dest(self, dest: Dest, index: int) -> None:
        """ip_vs_sh_dest_changed."""
        self._reassign()

    def upd_dest(self, dest: Dest) -> None:
        """ip_vs_sh_dest_changed."""
        self._reassign()

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_sh_schedule: the bucket's destination; with sh-fallback the next that can take it."""
        if not self.buckets:
            return None
        flags = self.svc.spec.flags
        addr, port = source(iph, bool(flags & PORT))
        first = bucket(addr, port, 0)
        dest = self.buckets[first]
        if dest.usable:
            return dest
        if not flags & FALLBACK:
            return None
        # ip_vs_sh_get_fallback: every bucket once, at offsets that begin with the first one's number.
        for i in range(SIZE):
            dest = self.buckets[bucket(addr, port, (i + first) % SIZE)]
            if dest.usable:
                return dest
        return None


SCHEDULER = SourceHashing
