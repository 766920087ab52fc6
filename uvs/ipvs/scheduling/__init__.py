"""Schedulers: one small file each, found by name (`rr` is `uvs.ipvs.scheduling.rr`).

"In list order" means the order of `Service.dests`: the newest destination first.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from uvs.engine.core import Choose, Kind, Sched

if TYPE_CHECKING:
    from uvs.engine.core import Header
    from uvs.ipvs.services import Dest, Service
    from uvs.ipvs.sysctl import Sysctl


class Scheduler:
    """Chooses a real server for a new connection (struct ip_vs_scheduler).

    One object per service. `add_dest`, `del_dest` and `upd_dest` run after the list has changed. What a
    choice changes, and the list, stand in the engine (`sched`); a scheduler of a `kind` the engine can do
    alone, for packets that do not enter Python (csrc/sched.c).
    """

    name: ClassVar[str]
    kind: ClassVar[Kind] = Kind.NONE
    rule: ClassVar[Choose] = Choose.LC

    def __init__(self, svc: Service, clock: Callable[[], int], sysctl: Sysctl) -> None:
        """`clock`: monotonic ns."""
        self.svc, self.clock, self.sysctl = svc, clock, sysctl
        self.sched = Sched(svc.rec, self.kind, self.rule)
        for dest in reversed(svc.dests):
            self._insert(dest)
        self.init_service()

    def _insert(self, dest: Dest) -> None:
        dest.nexthop = 0
        self.sched.insert(dest.rec)

    def init_service(self) -> None:
        """Make what it keeps for its service, whose destinations are there already."""

    def add_dest(self, dest: Dest) -> None:
        """A destination was linked (at the head of the list)."""
        self._insert(dest)

    def del_dest(self, dest: Dest, index: int) -> None:
        """A destination was unlinked; it stood at `index`."""
        self.sched.remove(index)

    def upd_dest(self, dest: Dest) -> None:
        """A destination was edited."""

    def tick(self, now: int) -> None:
        """About once a second: a chance to forget what is old."""

    def schedule(self, iph: Header) -> Dest | None:
        """The destination for a packet; None: there is none."""
        raise NotImplementedError


class InEngine(Scheduler):
    """The engine chooses for each new connection, whichever way its first packet takes.

    `choose` is what it has to choose, to be read; that both do alike, and leave the same behind, is tested
    (tests/property/test_schedulers.py).
    """

    def choose(self) -> Dest | None:
        """The destination for the next connection."""
        raise NotImplementedError

    def schedule(self, iph: Header) -> Dest | None:
        """What `choose` would choose."""
        at = self.sched.schedule()
        return self.svc.dests[at] if at >= 0 else None


class Comparing(InEngine):
    """Compares all destinations for each new connection, by a rule.

    The engine takes 8 ns for each and not 3 µs.
    """

    kind = Kind.COMPARE

    def find(self, rule: Choose) -> Dest | None:
        """The destination that a rule prefers, by the engine."""
        at = self.sched.choose(rule)
        return self.svc.dests[at] if at >= 0 else None


_HELPERS = ("hashing", "locality")


@cache
def _found() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _HELPERS))


def names() -> list[str]:
    """The schedulers there are."""
    return list(_found())


def find(name: str) -> type[Scheduler] | None:
    """The scheduler of that name (ip_vs_scheduler_get), None if there is none."""
    if name not in _found():
        return None
    module = import_module(f"{__name__}.{name}")
    found: type[Scheduler] = module.SCHEDULER
    return found


def overhead(dest: Dest) -> int:
    """ip_vs_dest_conn_overhead (include/net/ip_vs.h): an active connection counts 256 inactive ones."""
    return (dest.rec.activeconns << 8) + dest.rec.inactconns


def least_loaded(dests: Iterable[Dest], load: Callable[[Dest], int]) -> Dest | None:
    """The lowest load for its weight, compared by cross-multiplication; the first of equals."""
    least: Dest | None = None
    lowest = 0
    for dest in dests:
        its = load(dest)
        if least is None or lowest * dest.weight > its * least.weight:
            least, lowest = dest, its
    return least
