"""Maglev hashing (ip_vs_mh.c; Eisenbud and others, NSDI 2016)."""

from __future__ import annotations

from math import gcd

from uvs.engine.core import Kind
from uvs.ipvs.scheduling.hashing import ClientHashing, fold, hsiphash_u32
from uvs.ipvs.services import Dest

TAB_INDEX = 12  # CONFIG_IP_VS_MH_TAB_INDEX
SIZE = 4093  # the prime below 2 ** TAB_INDEX
TURN_BITS = TAB_INDEX // 2  # IP_VS_MH_TAB_BITS
KEY_1, KEY_2 = 2654435761, 2654446892


def hash_of(addr: bytes, port: int, key: int, offset: int = 0) -> int:
    """ip_vs_mh_hashkey, before the remainder."""
    return hsiphash_u32(offset + port + fold(addr) & 0xFFFFFFFF, key)


class _Setup:
    """struct ip_vs_mh_dest_setup: a destination's permutation of the slots, and how far it has come."""

    def __init__(self, dest: Dest, turns: int) -> None:
        addr, port = dest.spec.addr, dest.spec.port
        self.dest, self.turns = dest, turns
        self.at = hash_of(addr, port, KEY_1) % SIZE
        self.skip = hash_of(addr, port, KEY_2) % (SIZE - 1) + 1


class Maglev(ClientHashing):
    """A table in which every destination fills slots in its own order, so that few move when one leaves.

    Turns follow the last weight that was not 0: a quiesced destination keeps its slots, unused.
    """

    name = "mh"
    kind = Kind.MH
    size = SIZE

    def changed(self) -> None:
        """ip_vs_mh_dest_changed. More destinations than slots: EINVAL in the kernel, the old table stays."""
        self.stale = self.stale or len(self.svc.dests) <= SIZE
        self.sched.fill([])

    def init_service(self) -> None:
        """ip_vs_mh_init_svc."""
        super().init_service()
        self.stale = len(self.svc.dests) <= SIZE

    def add_dest(self, dest: Dest) -> None:
        """A destination was linked."""
        if self.stale and len(self.svc.dests) > SIZE:
            self.stale, self._table = False, self.reassign(self.svc.dests[1:])
        super().add_dest(dest)

    def reassign(self, dests: list[Dest]) -> list[Dest]:
        """ip_vs_mh_reassign: permutations, then population."""
        turns = self._turns(dests)
        if not any(turns):
            return []
        setups = [_Setup(dest, turn) for dest, turn in zip(dests, turns, strict=True) if turn]
        slots: list[Dest | None] = [None] * SIZE
        left = SIZE
        while left:
            for setup in setups:
                for _ in range(min(setup.turns, left)):
                    while slots[setup.at] is not None:
                        setup.at = (setup.at + setup.skip) % SIZE
                    slots[setup.at] = setup.dest
                    left -= 1
        return [dest for dest in slots if dest is not None]

    @staticmethod
    def _turns(dests: list[Dest]) -> list[int]:
        """ip_vs_mh_gcd_weight, ip_vs_mh_shift_weight, ip_vs_mh_permutate: how often each has its turn."""
        weights = [d.rec.last_weight for d in dests]
        common = gcd(*weights)
        if not common:
            return [0] * len(weights)
        shift = max(0, (max(weights) // common).bit_length() - TURN_BITS)
        return [(w // common >> shift) or int(w != 0) for w in weights]

    def slot(self, addr: bytes, port: int, offset: int = 0) -> int:
        """ip_vs_mh_hashkey, the first hash."""
        return hash_of(addr, port, KEY_1, offset) % SIZE


SCHEDULER = Maglev
