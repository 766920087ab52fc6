"""Deleted destinations (dest_trash, ip_vs_ctl.c): kept while connections point to them, and a while after."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from uvs.ipvs.spec import ServiceKey

if TYPE_CHECKING:
    from uvs.ipvs.services import Dest, Service

PERIOD_NS = 60 * 10**9  # IP_VS_DEST_TRASH_PERIOD: looked through this often
IDLE_NS = 120 * 10**9  # an unused destination idle for so long is freed

Id = tuple[int, bytes, int]


class Trash:
    """Found by what names them and their service, so that one more costs the same among thousands."""

    def __init__(self) -> None:
        self._of: dict[tuple[int, int, bytes, int, int], dict[Id, Dest]] = {}
        self._due = 0

    def __iter__(self) -> Iterator[Dest]:
        return (dest for dests in self._of.values() for dest in dests.values())

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, dest: Dest) -> None:
        """A destination that was just deleted; one that is still here is never made a second time."""
        self._of.setdefault(dest.svc.key.lookup, {})[dest.id] = dest

    def take(self, key: ServiceKey, identity: Id) -> Dest | None:
        """Take one out, to be revived or freed."""
        dests = self._of.get(key.lookup)
        if dests is None:
            return None
        dest = dests.pop(identity, None)
        if not dests:
            del self._of[key.lookup]
        return dest

    def of(self, svc: Service) -> list[Dest]:
        """Those of a service, not of another that came after it under the same key."""
        return [dest for dest in self._of.get(svc.key.lookup, {}).values() if dest.svc is svc]

    def expired(self, now: int) -> Iterator[Dest | None]:
        """Take out what nobody has used for long, if it is time to look again; None: it is still in use."""
        if now < self._due:
            return
        self._due = now + PERIOD_NS
        for dest in list(self):
            if dest.available or dest.rec.refcnt:  # revived meanwhile; in use
                yield None
            elif not dest.idle_since:
                dest.idle_since = now
                yield None
            elif now - dest.idle_since >= IDLE_NS:
                self.take(dest.svc.key, dest.id)
                yield dest
