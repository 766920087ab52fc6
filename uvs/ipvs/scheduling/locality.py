"""What lblc and lblcr share: a table from destination address to what serves it, and how it forgets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from uvs.engine.core import Choose, Kind
from uvs.ipvs.scheduling import Comparing, least_loaded, overhead
from uvs.ipvs.scheduling.hashing import fold, hash_32
from uvs.ipvs.services import Dest

SECOND = 10**9
TAB_BITS = 10  # CONFIG_IP_VS_LBLC_TAB_BITS
SIZE = 1 << TAB_BITS
MAX_SIZE = SIZE * 16  # entries; more are worth a collection
CHECK_EXPIRE = 60 * SECOND  # CHECK_EXPIRE_INTERVAL
ENTRY_TIMEOUT = 360 * SECOND  # ENTRY_TIMEOUT: idle for so long may be collected
COUNT_FOR_FULL = 30  # COUNT_FOR_FULL_EXPIRATION: checks between two looks at everything


class Entry(Protocol):
    """What a table holds: when it was used last, ns."""

    lastuse: int


E = TypeVar("E", bound=Entry)


class Locality(Comparing, Generic[E]):
    """Remembers for each destination address where it was sent.

    `entries` counts as the kernel does: replacing an entry's server counts one more and takes none away.
    """

    kind = Kind.NONE  # what is remembered is here alone
    rule = Choose.WLC

    def init_service(self) -> None:
        """ip_vs_lblc_init_svc, ip_vs_lblcr_init_svc."""
        self.buckets: dict[int, dict[bytes, E]] = {}
        self.entries = 0
        self.rover = 0
        self.counter = 1
        self._due = self.clock() + CHECK_EXPIRE

    @property
    def expiration(self) -> int:
        """Idle time (ns) after which a full look removes an entry."""
        raise NotImplementedError

    def bucket(self, addr: bytes) -> dict[bytes, E]:
        """The bucket of an address."""
        return self.buckets.setdefault(hash_32(fold(addr), TAB_BITS), {})

    def choose(self) -> Dest | None:
        """By weighted least connection, of all."""
        return least_loaded((d for d in self.svc.dests if d.usable), overhead)

    def least(self) -> Dest | None:
        """What `choose` would choose."""
        return self.find(self.rule)

    def overloaded(self, dest: Dest) -> bool:
        """is_overloaded: more active connections than its weight, and another has less than half of its."""
        return dest.rec.activeconns > dest.weight and self.find(Choose.LIGHT) is not None

    def tick(self, now: int) -> None:
        """ip_vs_lblc_check_expire, ip_vs_lblcr_check_expire: every 60 s."""
        if now < self._due:
            return
        self._due = now + CHECK_EXPIRE
        if self.counter % COUNT_FOR_FULL == 0:
            self._full_check(now)
            self.counter = 1
            return
        if self.entries <= MAX_SIZE:
            self.counter += 1
            return
        goal = min((self.entries - MAX_SIZE) * 4 // 3, MAX_SIZE // 2)
        for bucket in self._round():
            goal -= self._forget(bucket, now - ENTRY_TIMEOUT)
            if goal <= 0:
                break

    def _full_check(self, now: int) -> None:
        for bucket in self._round():
            self._forget(bucket, now - self.expiration)

    def _round(self) -> Iterator[dict[bytes, E]]:
        """Every bucket once, from where the last collection stopped."""
        for _ in range(SIZE):
            self.rover = (self.rover + 1) % SIZE
            if self.rover in self.buckets:
                yield self.buckets[self.rover]

    def _forget(self, bucket: dict[bytes, E], before: int) -> int:
        old = [addr for addr, entry in bucket.items() if entry.lastuse < before]
        for addr in old:
            del bucket[addr]
        self.entries -= len(old)
        return len(old)
