"""What an operator sees of a director in a soak, by its control socket and /proc, and what must hold of it."""

from __future__ import annotations

import json
import os
import re
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from support.running import Running

from uvs.control.messages import DestEntry, ServiceEntry
from uvs.engine.core import RECORD_SIZE, ConnFlag
from uvs.ipvs.spec import IpvsError
from uvs.lab.namespaces import STATE_DIR

# Python's allocator and the kernel's pages move a little; a leak of 64 bytes a connection is more, in 15 minutes.
RSS_MAY_GROW = 4 << 20
SEGMENT = 2 << 20  # by which the arena grows (SEGMENT, csrc/table.h)
LOOKS = 6  # at counters and table, until they agree

# Family, protocol, virtual address, server's: enough in this lab, and neither FTP's data connections nor templates
# that were made invalid (ip_vs_check_template) have their service's ports.
Name = tuple[int, int, bytes, bytes]
Counts = tuple[int, int, int]  # active, inactive, persistent


@dataclass(slots=True)
class Figures:
    """At one time. Sizes in bytes; `lost`: packets that the kernel dropped before its queues."""

    at: float
    anon: int
    arena: int
    fds: int
    threads: int
    conns: int
    templates: int
    dests: int
    services: int
    packets: int
    lost: int
    waiting: int


class Watch:
    """One director's figures, period after period, and what was wrong with them."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.client = running.client()
        self.began = time.monotonic()
        self.log = running.log()
        self.rows: list[Figures] = []
        self.faults: list[str] = []

    @property
    def proc(self) -> Path:
        """The director's folder in /proc."""
        return Path(f"/proc/{self.running.director.pid}")

    def table(self) -> dict[str, int]:
        """The table's own figures."""
        found: dict[str, int] = json.loads(self.client.total()[1])
        return found

    def queues(self) -> list[list[int]]:
        """Rows of the director's queues, as of uvs.netfilter.nfnetlink.queue_row()."""
        text = (self.proc / "net/netfilter/nfnetlink_queue").read_text()
        return [[int(word) for word in line.split()] for line in text.splitlines()]

    def figures(self) -> Figures:
        """As they are now."""
        status = (self.proc / "status").read_text()
        table, queues = self.table(), self.queues()
        return Figures(
            at=time.monotonic() - self.began,
            anon=int(re.findall(r"RssAnon:\s*(\d+) kB", status)[0]) * 1024,
            arena=self.running.lab.path(f"{STATE_DIR}/connections").stat().st_size,
            fds=len(os.listdir(self.proc / "fd")),
            threads=int(re.findall(r"Threads:\s*(\d+)", status)[0]),
            packets=sum(row[7] for row in queues),
            lost=sum(row[5] + row[6] for row in queues),
            waiting=sum(row[2] for row in queues),
            **{name: table[name] for name in ("conns", "templates", "dests", "services")},
        )

    def look(self) -> str:
        """A period's figures as a line; faults are noted."""
        now = self.figures()
        self.rows.append(now)
        self.expect(self.running.director.running, "the director ended")
        said = self.running.log()
        self.expect(said == self.log, f"the director said: {said[len(self.log) :].strip()[:2000]}")
        self.log = said
        self.counters_equal_the_table()
        return (
            f"{now.at:5.0f} s  conns {now.conns:5}  templates {now.templates:3}  services {now.services:2}  "
            f"servers {now.dests:3}  packets {now.packets:8}  lost {now.lost}  rss {now.anon / 2**20:5.1f} MiB  "
            f"arena {now.arena / 2**20:3.0f} MiB  fds {now.fds}  threads {now.threads}"
        )

    def expect(self, true: object, what: str) -> None:
        """Else that is a fault."""
        if not true:
            self.faults.append(f"at {time.monotonic() - self.began:.0f} s: {what}")

    # ---- counters and the table

    def listing(self) -> list[tuple[ServiceEntry, list[DestEntry]]]:
        """Services with their servers."""
        services = self.client.services()
        return [(svc, self.client.dests(svc.spec.key)) for svc in services]

    def counted(self) -> dict[Name, Counts]:
        """What each server's counters say."""
        found = {}
        for svc, dests in self.listing():
            of = svc.spec.key
            for d in dests:
                name = (of.af, of.protocol, of.addr, d.spec.addr)
                found[name] = d.activeconns, d.inactconns, d.persistconns
        return found

    def held(self) -> dict[Name, Counts]:
        """What the table holds."""
        found: dict[Name, list[int]] = defaultdict(lambda: [0, 0, 0])
        for c in self.client.conns():
            template, inactive = c.flags & ConnFlag.TEMPLATE, c.flags & ConnFlag.INACTIVE
            name = (c.af, c.protocol, c.vaddr, c.daddr)
            found[name][2 if template else 1 if inactive else 0] += 1
        return {name: (a, b, c) for name, (a, b, c) in found.items()}

    def counters_equal_the_table(self) -> None:
        """Of a server whose counters do not change meanwhile; what differs every time is a fault."""
        wrong: dict[Name, str] | None = None
        for _ in range(LOOKS):
            try:
                before, held, after = self.counted(), self.held(), self.counted()
            except IpvsError:  # a service was deleted between its listing and its servers'
                continue
            differ = {
                name: f"{name}: {counts} counted, {held.get(name, (0, 0, 0))} in the table"
                for name, counts in before.items()
                if after.get(name) == counts != held.get(name, (0, 0, 0))
            }
            wrong = {n: text for n, text in differ.items() if wrong is None or n in wrong}
            if not wrong:
                return
        self.expect(not wrong, "; ".join((wrong or {}).values()))

    # ---- at the end

    def flat(self, warm: float) -> None:
        """Memory and descriptors are, from `warm` (seconds) on, what they were."""
        rows = [row for row in self.rows if row.at >= warm]
        if len(rows) < 4:
            self.expect(False, f"only {len(rows)} periods to compare")
            return
        half = len(rows) // 2
        first, last = (statistics.median(row.anon for row in part) for part in (rows[:half], rows[half:]))
        self.expect(
            last - first <= RSS_MAY_GROW or sanitized(), f"memory grew by {(last - first) / 2**20:.1f} MiB"
        )
        peak = max(row.conns + row.templates + row.dests + row.services for row in self.rows)
        bound = 2 * peak * RECORD_SIZE + 2 * SEGMENT  # what does not fit a record has another
        self.expect(
            rows[-1].arena <= bound, f"the arena has {rows[-1].arena} bytes for {peak} entries at most"
        )
        for what in ("fds", "threads"):  # the fewest: a program that changes rules has some for a moment
            before, after = (min(getattr(row, what) for row in part) for part in (rows[:half], rows[half:]))
            self.expect(after <= before, f"{what}: {before}, then {after}")

    def empty(self) -> None:
        """Nobody is connected: no entry, no counter, no server that was deleted; every packet had its verdict."""
        table = self.table()
        for name in ("conns", "templates", "no_cport"):
            self.expect(table[name] == 0, f"{name}: {table[name]} are left: {self.leftovers()}")
        listing = self.listing()
        for svc, dests in listing:
            for d in dests:
                counts = d.activeconns, d.inactconns, d.persistconns
                self.expect(counts == (0, 0, 0), f"{svc.spec.key}, {d.spec.addr!r}: {counts} of none")
        self.expect(table["services"] == len(listing), f"{table['services']} services, {len(listing)} listed")
        dests = sum(len(dests) for _, dests in listing)
        self.expect(
            table["dests"] == dests, f"{table['dests']} servers, {dests} listed: deleted ones are held"
        )
        now = self.figures()
        self.expect(now.waiting == 0, f"{now.waiting} packets wait for their verdict")

    def leftovers(self) -> str:
        """Some of the entries."""
        return str([c for c, _ in zip(self.client.conns(), range(5), strict=False)])

    def totals(self, made: dict[tuple[int, int, bytes, int], int]) -> None:
        """Counters of services that were left alone equal their servers' and what was made of each.

        `made`: connections, by family, protocol, address, port. No service counts more than the total.
        """
        total, _ = self.client.total()
        sums = [0] * 5
        for svc, dests in self.listing():
            of, stats = svc.spec.key, svc.stats[:5]
            sums = [a + b for a, b in zip(sums, stats, strict=True)]
            if (count := made.get((of.af, of.protocol, of.addr, of.port))) is None:
                continue
            below = tuple(map(sum, zip(*(d.stats[:5] for d in dests), strict=True)))
            self.expect(below == stats, f"{of}: {stats}, its servers {below}")
            self.expect(stats[0] == count, f"{of}: {count} connections were made, {stats[0]} counted")
        self.expect(
            all(a <= b for a, b in zip(sums, total[:5], strict=True)), f"services {sums}, in all {total[:5]}"
        )

    def verdicts(self) -> None:
        """As many reasons as packets. Some have two: sent on, and then refused by the kernel or not answered."""
        counters = self.client.counters()
        given = sum(counters.values())
        again = sum(counters[name] for name in ("send", "no_neighbour"))
        packets = self.figures().packets
        self.expect(given - again <= packets <= given, f"{packets} packets, {given} reasons: {counters}")


def sanitized() -> bool:
    """Is this a build whose memory is no measure (support.sanitized)?"""
    return "UVS_SANITIZED_PYTHON" in os.environ
