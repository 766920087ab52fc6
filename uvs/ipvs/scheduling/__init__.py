"""Schedulers: one small file each, found by name (`rr` is `uvs.ipvs.scheduling.rr`).

"In list order" means the order of `Service.dests`: the newest destination first.
"""

from __future__ import annotations

import pkgutil
from array import array
from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

from uvs.engine.core import Choose

if TYPE_CHECKING:
    from uvs.engine.core import Header
    from uvs.ipvs.services import Dest, Service
    from uvs.ipvs.sysctl import Sysctl


class Scheduler:
    """Chooses a real server for a new connection (struct ip_vs_scheduler).

    One object per service. `add_dest`, `del_dest` and `upd_dest` run after the list has changed.
    """

    name: ClassVar[str]

    def __init__(self, svc: Service, clock: Callable[[], int], sysctl: Sysctl) -> None:
        """`clock`: monotonic ns."""
        self.svc, self.clock, self.sysctl = svc, clock, sysctl
        self.init_service()

    def init_service(self) -> None:
        """Make what it keeps for its service, whose destinations are there already."""

    def add_dest(self, dest: Dest) -> None:
        """A destination was linked (at the head of the list)."""

    def del_dest(self, dest: Dest, index: int) -> None:
        """A destination was unlinked; it stood at `index`."""

    def upd_dest(self, dest: Dest) -> None:
        """A destination was edited."""

    def tick(self, now: int) -> None:
        """About once a second: a chance to forget what is old."""

    def schedule(self, iph: Header) -> Dest | None:
        """The destination for a packet; None: there is none."""
        raise NotImplementedError


class Comparing(Scheduler):
    """Compares all destinations for each new connection.

    `choose` says by which rule; `schedule` has the engine look at them by that rule, which takes 8 ns for
    each and not 3 µs. That both choose alike is tested (tests/property/test_schedulers.py).
    """

    rule: ClassVar[Choose]

    def init_service(self) -> None:
        """The destinations' records, in list order."""
        self.records = array("I", (d.rec.index for d in self.svc.dests))

    def add_dest(self, dest: Dest) -> None:
        """At the head, as in the list."""
        self.records.insert(0, dest.rec.index)

    def del_dest(self, dest: Dest, index: int) -> None:
        """As in the list."""
        del self.records[index]

    def choose(self) -> Dest | None:
        """The destination that the rule prefers."""
        raise NotImplementedError

    def find(self, rule: Choose) -> Dest | None:
        """The same by the engine."""
        at = self.svc.rec.choose(self.records, rule)
        return self.svc.dests[at] if at >= 0 else None

    def schedule(self, iph: Header) -> Dest | None:
        """What `choose` would choose."""
        return self.find(self.rule)


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


def place(dests: list[Dest], dest: Dest, guess: int) -> int:
    """Where `dest` stands in a list that may be long; most often where it stood before."""
    return guess if guess < len(dests) and dests[guess] is dest else dests.index(dest)


def least_loaded(dests: Iterable[Dest], load: Callable[[Dest], int]) -> Dest | None:
    """The lowest load for its weight, compared by cross-multiplication; the first of equals."""
    least: Dest | None = None
    lowest = 0
    for dest in dests:
        its = load(dest)
        if least is None or lowest * dest.weight > its * least.weight:
            least, lowest = dest, its
    return least
