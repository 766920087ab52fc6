"""Services as packets find them, and what their schedulers keep (`csrc/service.c`, `sched.c`).

Which real server a new connection gets is said by `uvs.ipvs.scheduling`; what it needs to remember stands in
the engine, so that a connection that never enters Python takes its turn among those that do.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from uvs.engine.binding import ffi, lib
from uvs.engine.names import Choose
from uvs.engine.table import DestRecord, ServiceRecord


class Kind(enum.IntEnum):
    """Schedulers that the engine has too: `UVS_SCHED_*`."""

    NONE = lib.UVS_SCHED_NONE
    RR = lib.UVS_SCHED_RR
    WRR = lib.UVS_SCHED_WRR
    COMPARE = lib.UVS_SCHED_COMPARE
    DH = lib.UVS_SCHED_DH
    SH = lib.UVS_SCHED_SH
    MH = lib.UVS_SCHED_MH


class Sched:
    """What a scheduler keeps of its service (`struct uvs_sched`).

    Places are those in the list of destinations.
    """

    __slots__ = ("_c", "_table")

    def __init__(self, service: ServiceRecord, kind: Kind, rule: Choose = Choose.LC) -> None:
        self._table = service.table
        raw = lib.uvs_sched_new(kind, rule)
        if raw == ffi.NULL:
            raise MemoryError("no memory for a scheduler")
        self._c = ffi.gc(raw, lib.uvs_sched_free)

    def insert(self, dest: DestRecord) -> None:
        """A destination came, at the list's head. MemoryError."""
        if lib.uvs_sched_insert(self._table._t, self._c, dest.index):
            raise MemoryError("no memory for a list of destinations")

    def remove(self, place: int) -> None:
        """The destination that stood there went; the turn stays, if it was its own at the predecessor."""
        lib.uvs_sched_remove(self._table._t, self._c, place)

    @property
    def records(self) -> list[int]:
        """The destinations' records, in list order."""
        return list(self._c.dests[0 : self._c.n])

    @property
    def last(self) -> int:
        """rr, wrr: the place of the one chosen last, from 1; 0: the list's head."""
        return self._c.turn.last  # type: ignore[no-any-return]

    @last.setter
    def last(self, place: int) -> None:
        self._c.turn.last = place

    @property
    def cw(self) -> int:
        """wrr: the current weight."""
        return self._c.turn.cw  # type: ignore[no-any-return]

    @cw.setter
    def cw(self, weight: int) -> None:
        self._c.turn.cw = weight

    @property
    def mw(self) -> int:
        """wrr: the maximum weight."""
        return self._c.mw  # type: ignore[no-any-return]

    @property
    def di(self) -> int:
        """wrr: the step from pass to pass."""
        return self._c.di  # type: ignore[no-any-return]

    def weigh(self, cw: int, mw: int, di: int) -> None:
        """wrr: begin at the list's head, with these."""
        lib.uvs_sched_weigh(self._table._t, self._c, cw, mw, di)

    def fill(self, places: Sequence[int]) -> None:
        """dh, sh, mh: the table of slots; an empty one leaves new connections to the hook path."""
        lib.uvs_sched_fill(self._table._t, self._c, places, len(places))

    @property
    def slots(self) -> int:
        """How many slots the engine knows; 0: none, the hook path's."""
        return self._c.slots  # type: ignore[no-any-return]

    def schedule(self) -> int:
        """rr, wrr, a comparison: the place of the next connection's destination; -1: none will do."""
        return lib.uvs_sched_turn(self._table._t, self._c)  # type: ignore[no-any-return]

    def choose(self, rule: Choose) -> int:
        """The place of the one that a rule prefers, or -1."""
        return lib.uvs_sched_choose(self._table._t, self._c, rule)  # type: ignore[no-any-return]

    def nexthop(self, dest: DestRecord, index: int) -> None:
        """Connections to that destination go by row `index` of the next-hop table."""
        lib.uvs_sched_nexthop(self._table._t, self._c, dest.index, index)


def publish(service: ServiceRecord, sched: Sched | None) -> None:
    """Packets find the service from now on, and are scheduled so; None: by the hook path.

    `sched` must live until another was published, or the service withdrawn.
    """
    lib.uvs_service_put(service.table._t, service.index, sched._c if sched else ffi.NULL)


def withdraw(service: ServiceRecord) -> None:
    """Packets do not find it any more; before its record is freed."""
    lib.uvs_service_remove(service.table._t, service.index)
