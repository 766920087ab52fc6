"""Hashes that schedulers share, bit for bit the kernel's, and what hashing by client has in common."""

from __future__ import annotations

from uvs.engine.core import Header
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.scheduling import Scheduler
from uvs.ipvs.services import Dest
from uvs.ipvs.spec import SVC_F_SCHED1, SVC_F_SCHED2

GOLDEN_RATIO_32 = 0x61C88647  # include/linux/hash.h
_U32 = 0xFFFFFFFF
WITH_PORTS = (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP)


def fold(addr: bytes) -> int:
    """An address as 32 bits: IPv4 as it is, IPv6 its four words in host order, xor-ed (ip_vs_*_hashkey)."""
    folded = 0
    for at in range(0, len(addr), 4):
        folded ^= int.from_bytes(addr[at : at + 4], "big")
    return folded


def hash_32(value: int, bits: int) -> int:
    """hash_32 (include/linux/hash.h): the upper `bits` bits of a multiplication."""
    return (value * GOLDEN_RATIO_32 & _U32) >> (32 - bits)


def hsiphash_u32(value: int, key: int) -> int:
    """hsiphash of one 32-bit word on a 64-bit kernel: SipHash-1-3 over its four bytes, the lower 32 bits.

    Both key words are `key` (lib/siphash.c, __hsiphash_aligned; RFC-less: Aumasson and Bernstein, 2012).
    """
    mask = 0xFFFFFFFFFFFFFFFF

    def rotl(x: int, n: int) -> int:
        return (x << n | x >> (64 - n)) & mask

    v0, v1 = 0x736F6D6570736575 ^ key, 0x646F72616E646F6D ^ key
    v2, v3 = 0x6C7967656E657261 ^ key, 0x7465646279746573 ^ key

    def rounds(n: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(n):
            v0 = (v0 + v1) & mask
            v1 = rotl(v1, 13) ^ v0
            v0 = rotl(v0, 32)
            v2 = (v2 + v3) & mask
            v3 = rotl(v3, 16) ^ v2
            v0 = (v0 + v3) & mask
            v3 = rotl(v3, 21) ^ v0
            v2 = (v2 + v1) & mask
            v1 = rotl(v1, 17) ^ v2
            v2 = rotl(v2, 32)

    block = 4 << 56 | value  # length, and what is left over of whole 64-bit words
    v3 ^= block
    rounds(1)
    v0 ^= block
    v2 ^= 0xFF
    rounds(3)
    return (v0 ^ v1 ^ v2 ^ v3) & _U32


class TableScheduler(Scheduler):
    """A table of destinations, filled anew when they have changed: at its next use, once for many changes.

    The engine has a copy; without one it leaves new connections to this one.
    """

    def init_service(self) -> None:
        """ip_vs_dh_init_svc, ip_vs_sh_init_svc, ip_vs_mh_init_svc."""
        self._table: list[Dest] = []
        self.stale = True

    @property
    def table(self) -> list[Dest]:
        """The destination of each slot."""
        if self.stale:
            self.stale = False
            self._table = self.reassign(self.svc.dests)
            place = {id(dest): at for at, dest in enumerate(self.svc.dests)}
            self.sched.fill([place[id(dest)] for dest in self._table])
        return self._table

    def reassign(self, dests: list[Dest]) -> list[Dest]:
        """A table filled with these destinations."""
        raise NotImplementedError

    def changed(self) -> None:
        """ip_vs_*_dest_changed."""
        self.stale = True
        self.sched.fill([])

    def add_dest(self, dest: Dest) -> None:
        """A destination was linked."""
        super().add_dest(dest)
        self.changed()

    def del_dest(self, dest: Dest, index: int) -> None:
        """A destination was unlinked."""
        super().del_dest(dest, index)
        self.changed()

    def upd_dest(self, dest: Dest) -> None:
        """A destination was edited."""
        self.changed()


class ClientHashing(TableScheduler):
    """By the client's address: `sh` and `mh`, which differ in table and hash.

    Flags of the service: SCHED1 (fallback) looks further when the slot's server cannot take it, SCHED2
    (port) counts the client's port too.
    """

    size: int

    def slot(self, addr: bytes, port: int, offset: int = 0) -> int:
        """The slot of a client; other offsets give others."""
        raise NotImplementedError

    def schedule(self, iph: Header) -> Dest | None:
        """ip_vs_sh_schedule and ip_vs_mh_schedule, with their fallbacks."""
        table = self.table
        if not table:
            return None
        flags = self.svc.spec.flags
        addr, port = (iph.daddr, iph.dport) if iph.inverse else (iph.saddr, iph.sport)
        if not flags & SVC_F_SCHED2 or iph.protocol not in WITH_PORTS:
            port = 0
        first = self.slot(addr, port)
        dest = table[first]
        if dest.usable or not flags & SVC_F_SCHED1:
            return dest if dest.usable else None
        if not any(d.usable for d in self.svc.dests):
            return None
        # Every offset once, beginning with the first slot's own number.
        for i in range(self.size):
            dest = table[self.slot(addr, port, (i + first) % self.size)]
            if dest.usable:
                return dest
        return None
