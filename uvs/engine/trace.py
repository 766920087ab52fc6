"""Which packets' walks somebody wants to see (`csrc/trace.c`): filters as programs, rates, counts."""

from __future__ import annotations

import enum
import errno
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from uvs.engine.binding import ffi, lib, put_packed
from uvs.engine.names import AF_INET, AF_INET6

if TYPE_CHECKING:
    from uvs.engine.packet import Packet
    from uvs.engine.table import Conn, Table

TRACERS: int = lib.UVS_TRACERS
PROGRAM_MAX: int = lib.UVS_TRACE_PROGRAM
DEPTH_MAX: int = lib.UVS_TRACE_DEPTH
RATE_MAX: int = lib.UVS_TRACE_RATE
# A walk is recorded in a tenth of a millisecond: a twentieth of the time of a processor.
TRIES = 500


class Op(enum.IntEnum):
    """What a condition is about (`enum uvs_cond_op`); the first three combine those before them."""

    AND = lib.UVS_COND_AND
    OR = lib.UVS_COND_OR
    NOT = lib.UVS_COND_NOT
    CLIENT = lib.UVS_COND_CLIENT
    SERVICE = lib.UVS_COND_SERVICE
    SERVER = lib.UVS_COND_SERVER
    HOST = lib.UVS_COND_HOST
    PORT = lib.UVS_COND_PORT
    PROTO = lib.UVS_COND_PROTO
    FAMILY = lib.UVS_COND_FAMILY
    MARK = lib.UVS_COND_MARK
    HOOK = lib.UVS_COND_HOOK
    VERDICT = lib.UVS_COND_VERDICT
    WHY = lib.UVS_COND_WHY


class Want(enum.IntEnum):
    """What is to be done for those who trace (`UVS_TRACE_*`): nothing, `end`, or `end` with a walk."""

    NOBODY = lib.UVS_TRACE_NOBODY
    JUDGE = lib.UVS_TRACE_JUDGE
    WALK = lib.UVS_TRACE_WALK


class Cond(NamedTuple):
    """One condition (`struct uvs_cond`): `addr` packed, `bits` of it that count, `port` 0 for any."""

    op: Op
    number: int = 0
    addr: bytes = b""
    bits: int = 0
    port: int = 0


class Counts(NamedTuple):
    """Packets that a tracer's program took, and how many of them its rate kept from it."""

    matched: int
    suppressed: int


def _program(conds: Sequence[Cond]) -> Any:
    made = ffi.new("struct uvs_cond[]", len(conds))
    for c, cond in zip(made, conds, strict=True):
        c.op, c.number, c.bits, c.port = cond.op, cond.number, cond.bits, cond.port
        if cond.addr:
            c.af = AF_INET if len(cond.addr) == 4 else AF_INET6
            put_packed(c.addr, cond.addr)
    return made


class Trace:
    """`struct uvs_trace`: all tracers of a director, by number."""

    def __init__(self, table: Table, tries: int = TRIES) -> None:
        """`tries`: walks a second that may be recorded before it is known whether somebody wants them."""
        self._c = ffi.new("struct uvs_trace *")
        self._table = table
        lib.uvs_trace_init(self._c, table._t, tries)
        self._counts = ffi.new("uint64_t[2]")

    @property
    def on(self) -> int:
        """Is anybody tracing: a bit for each."""
        return self._c.on  # type: ignore[no-any-return]

    def add(self, program: Sequence[Cond], rate: int) -> int:
        """A tracer more, `rate` walks a second: its number. OSError: EBUSY no room, EINVAL no program."""
        which: int = lib.uvs_trace_add(self._c, _program(program), len(program), rate)
        if which < 0:
            raise OSError(-which, f"{TRACERS} run already" if -which == errno.EBUSY else "no program")
        return which

    def remove(self, which: int) -> None:
        """It has gone."""
        lib.uvs_trace_remove(self._c, which)

    def counts(self, which: int) -> Counts:
        """What it matched until now."""
        lib.uvs_trace_counts(self._c, which, self._counts, self._counts + 1)
        return Counts(*self._counts)

    def begin(self, packet: Packet | None, hook: int, mark: int, asked: int, now: int) -> Want:
        """A packet on the hook path (None: it could not be read): may somebody want its walk?

        `asked`: what the fast path was told of it, 0: it did not ask.
        """
        c = ffi.NULL if packet is None else packet._c
        return lib.uvs_trace_begin(self._c, c, hook, mark, asked, now)  # type: ignore[no-any-return]

    def found(self, conn: Conn) -> None:
        """The packet in hand belongs to that connection."""
        lib.uvs_trace_found(self._c, conn._c)

    def end(self, verdict: int, why: int, walked: bool, now: int) -> int:
        """What became of it, and whether it has a walk: who gets that, a bit for each."""
        return lib.uvs_trace_end(self._c, verdict, why, walked, now)  # type: ignore[no-any-return]

    def judge(self, program: Sequence[Cond], verdict: int = -1, why: int = -1) -> bool | None:
        """Does a program take the packet in hand? None: it is not known yet. ValueError: it is no program."""
        so = lib.uvs_trace_judge(self._c, _program(program), len(program), verdict, why)
        if so < 0:
            raise ValueError("no program")
        return None if so == 1 else bool(so)
