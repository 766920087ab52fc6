"""What `uvs top` shows: rows, sorted, filtered and folded; totals, rates, the health of queues. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import NamedTuple

from uvs.adm.listing import METHODS, server_text, service_text
from uvs.adm.names import Names
from uvs.control.messages import DestEntry, ServiceEntry, Stats
from uvs.ipvs.spec import QueueRow, ServiceKey
from uvs.top.source import Snapshot

# Reasons by the headings of docs/reference/reasons.md; packets of any other were dropped.
HANDLED = frozenset(("none", "forwarded", "local", "reply", "icmp_in", "icmp_out", "bypass"))
NOT_OURS = frozenset(
    (
        "not_for_host", "backup_only", "protocol", "no_service", "not_syn", "no_conn", "client_port",
        "own_reply", "fragment", "icmp_type", "ftp_data",
    )
)  # fmt: skip
# Counters of a queue that should stay 0.
LOSSES = ("lost", "cut", "refused", "unsaid", "errors", "dropped")


class Sort(Enum):
    """What rows are sorted by: the largest first, but names."""

    NAME = "name"
    ACTIVE = "active connections"
    CONNS = "connections a second"
    PACKETS = "packets a second"
    BYTES = "bytes a second"


class Kind(Enum):
    """What a row is."""

    SERVICE = "a service"
    UNSERVED = "a service without a server that has weight"
    SERVER = "a server"
    QUIESCED = "a server without weight"


class RowKey(NamedTuple):
    """What names a row while others come and go: a service, or the server of one (family, address, port)."""

    service: ServiceKey
    server: tuple[int, bytes, int] | None


class _Service(NamedTuple):
    entry: ServiceEntry
    servers: list[DestEntry]
    weight: int  # of all servers together, as what follows
    active: int
    inactive: int


COLUMNS: tuple[tuple[str, int, Sort | None], ...] = (
    ("Forward", 8, None),
    ("Weight", 7, None),
    ("Active", 7, Sort.ACTIVE),
    ("InAct", 6, None),
    ("Conn/s", 7, Sort.CONNS),
    ("In p/s", 7, Sort.PACKETS),
    ("Out p/s", 8, Sort.PACKETS),
    ("In B/s", 7, Sort.BYTES),
    ("Out B/s", 8, Sort.BYTES),
)
NARROW = 92  # columns of a terminal; below, the method of forwarding is left out
NAME_MIN = 16
_NUMERIC = Names(plain=True)


def short(number: float) -> str:
    """A number in at most five columns: 9.5, 99999, 100k, 1.2M."""
    if number < 10 and number != int(number):
        return f"{number:.1f}"
    if number < 99_999.5:
        return f"{number:.0f}"
    for letter in "kMGTP":
        number /= 1000
        if number < 9.95:
            return f"{number:.1f}{letter}"
        if number < 999.5:
            return f"{number:.0f}{letter}"
    return f"{number / 1000:.0f}E"


class Model:
    """The latest answer of a director and how it is looked at."""

    def __init__(self) -> None:
        self.sort = Sort.NAME
        self.reverse = False
        self.words: list[str] = []  # of the filter, lower case
        self.snapshot: Snapshot | None = None
        self._before: Snapshot | None = None
        self._services: list[_Service] = []
        self._rows: list[tuple[int, int]] = []  # service, server (-1: the service itself)
        self._searched: dict[int, list[str]] = {}  # by the filter, since the latest answer
        self._folded: set[ServiceKey] = set()
        self._fold_new = False

    def take(self, snapshot: Snapshot) -> None:
        """A new answer."""
        known = {each.entry.spec.key for each in self._services}
        self._before, self.snapshot = None if snapshot.first else self.snapshot, snapshot
        self._searched = {}
        self._services = [
            _Service(
                entry,
                servers,
                sum(d.spec.weight for d in servers),
                sum(d.activeconns for d in servers),
                sum(d.inactconns for d in servers),
            )
            for entry, servers in snapshot.services
        ]
        if self._fold_new:
            self._folded |= {each.entry.spec.key for each in self._services} - known
        self._arrange()

    # ---- how it is looked at

    def sort_by(self, sort: Sort) -> None:
        """Sort by a column; by the same once more: the other way round."""
        self.reverse = sort == self.sort and not self.reverse
        self.sort = sort
        self._arrange()

    def filter(self, text: str) -> None:
        """Show what has all words of `text` in its name, which is for a server its service's too."""
        self.words = text.lower().split()
        self._arrange()

    def fold(self, row: int, folded: bool | None = None) -> None:
        """Hide or show the servers of a row's service (None: the other way)."""
        key = self.key(row).service
        if folded is None:
            folded = key not in self._folded
        (self._folded.add if folded else self._folded.discard)(key)
        self._arrange()

    def fold_all(self) -> None:
        """Hide the servers of all services, of later ones too; if they are hidden, show them."""
        self._fold_new = not self._fold_new
        self._folded = {each.entry.spec.key for each in self._services} if self._fold_new else set()
        self._arrange()

    # ---- rows

    def __len__(self) -> int:
        """Rows."""
        return len(self._rows)

    def key(self, row: int) -> RowKey:
        """What a row is about."""
        service, server = self._rows[row]
        found = self._services[service]
        if server < 0:
            return RowKey(found.entry.spec.key, None)
        spec = found.servers[server].spec
        return RowKey(found.entry.spec.key, (spec.af, spec.addr, spec.port))

    def find(self, key: RowKey) -> int | None:
        """The row about it now; that of its service, if it is not to be seen itself; None."""
        found = None
        for row, (service, server) in enumerate(self._rows):
            if self._services[service].entry.spec.key != key.service:
                continue
            if server < 0:
                found = row
            if self.key(row) == key:
                return row
        return found

    def kind(self, row: int) -> Kind:
        """What a row is."""
        service, server = self._rows[row]
        found = self._services[service]
        if server >= 0:
            return Kind.SERVER if found.servers[server].spec.weight else Kind.QUIESCED
        return Kind.SERVICE if found.weight else Kind.UNSERVED

    def line(self, row: int, width: int, marks: bool = True) -> str:
        """A row in `width` columns; `marks`: whether its servers are hidden."""
        service, server = self._rows[row]
        found = self._services[service]
        if server < 0:
            key = found.entry.spec.key
            mark = ("▸ " if key in self._folded else "▾ ") if marks else ""
            name = f"{mark}{_name(key)} {found.entry.spec.sched_name or 'none'}"
            cells = ["", short(found.weight), *_figures(found.active, found.inactive, found.entry.stats)]
        else:
            dest = found.servers[server]
            spec = dest.spec
            name = f"  -> {server_text(spec, found.entry.spec.key, _NUMERIC)}"
            method = METHODS.get(spec.fwd, "")
            cells = [method, short(spec.weight), *_figures(dest.activeconns, dest.inactconns, dest.stats)]
        return _joined(name, cells, width)

    def head(self, width: int) -> list[tuple[str, bool]]:
        """The heading in `width` columns, in pieces: text, are the rows sorted by it."""
        columns = _columns(width)
        name = f"{'Service, scheduler':{_name_width(width)}}"[: _name_width(width)]
        pieces = [(name, self.sort == Sort.NAME)]
        return pieces + [(f"{title:>{size}}", sort == self.sort) for title, size, sort in columns]

    def longest(self) -> int:
        """Columns that the longest name needs, beside those of the figures."""
        names = [len(self.line(row, 1 << 10, False)[:-_FIGURES].rstrip()) for row in range(len(self))]
        return max(names, default=0) + _FIGURES + 1

    def _arrange(self) -> None:
        chosen = [(i, self._shown(i)) for i in range(len(self._services))]
        order = _ORDERS.get(self.sort)
        if order is not None:
            chosen.sort(key=lambda c: order(self._services[c[0]]), reverse=not self.reverse)
        elif self.reverse:
            chosen.reverse()
        self._rows = [
            (i, at) for i, rows in chosen if rows is not None for at in (-1, *self._sorted(i, rows))
        ]

    def _shown(self, i: int) -> list[int] | None:
        """The servers of a service that are to be seen; None: not even the service."""
        service = self._services[i]
        found = list(range(len(service.servers)))
        if self.words:
            name, *servers = self._texts(i)
            found = [at for at in found if all(word in servers[at] for word in self.words)]
            if not found and not all(word in name for word in self.words):
                return None
        return [] if service.entry.spec.key in self._folded else found

    def _texts(self, i: int) -> list[str]:
        """What words are looked for in: of a service, then of each of its servers."""
        if i not in self._searched:
            entry, servers = self._services[i][:2]
            name = f"{_name(entry.spec.key)} {entry.spec.sched_name}".lower()
            own = (f"{name} {server_text(d.spec, entry.spec.key, _NUMERIC)}" for d in servers)
            self._searched[i] = [name, *own]
        return self._searched[i]

    def _sorted(self, service: int, servers: list[int]) -> list[int]:
        own = self._services[service].servers
        order = _SERVER_ORDERS.get(self.sort)
        if order is None:
            return servers[::-1] if self.reverse else servers
        return sorted(servers, key=lambda at: order(own[at]), reverse=not self.reverse)

    # ---- totals

    def totals(self) -> list[str]:
        """Two lines: what there is, and what passes."""
        if self.snapshot is None:
            return ["", ""]
        table, total = self.snapshot.table, self.snapshot.total
        used = sum(table.get(kind, 0) for kind in ("conns", "templates", "dests", "services"))
        parts = [
            f"{len(self._services)} services",
            f"{sum(len(each.servers) for each in self._services)} servers",
            f"{table.get('conns', 0)} connections",
            f"{table.get('templates', 0)} templates",
            f"{used} of {table.get('conn_max', 0)} records",
        ]
        if table.get("full"):
            parts.append(f"TABLE FULL {table['full']} times")
        if table.get("waiting"):
            parts.append(f"{table['waiting']} packets wait for a neighbour")
        ways = (("in", total.inpps, total.inbps), ("out", total.outpps, total.outbps))
        passing = [f"{way} {short(packets)} packets/s, {short(size)} bytes/s" for way, packets, size in ways]
        return [", ".join(parts), "; ".join((f"{short(total.cps)} connections/s", *passing))]

    def queues(self) -> list[str]:
        """A line for each class of queues."""
        rows = self.snapshot.queues if self.snapshot else []
        before = {row.get("queue"): row for row in self._before.queues} if self._before else {}
        classes: dict[str, list[QueueRow]] = {}
        for row in rows:
            classes.setdefault(str(row.get("class")), []).append(row)
        return [
            self._queue(name, own, [before.get(row["queue"], {}) for row in own])
            for name, own in classes.items()
        ]

    def _queue(self, name: str, rows: list[QueueRow], before: list[QueueRow]) -> str:
        numbers = ",".join(str(row.get("queue")) for row in rows)
        parts = []
        rate = self._rate(_sum(rows, "packets"), _sum(before, "packets"))
        if rate is not None:
            parts.append(f"{short(rate)} packets/s")
        begin = before if rate else []  # if nothing came: since the director's start
        fast, packets = (_sum(rows, counter) - _sum(begin, counter) for counter in ("fast", "packets"))
        if packets > 0:
            parts.append(f"{fast / packets:.0%} fast")
        parts.append(
            f"{short(_sum(rows, 'waiting'))} waiting" if _known(rows, "waiting") else "waiting unknown"
        )
        losses = [
            f"{_sum(rows, loss)} {loss}{_per_second(self._rate(_sum(rows, loss), _sum(before, loss)))}"
            for loss in LOSSES
            if _sum(rows, loss)
        ]
        return f"queue {numbers} ({name}): " + ", ".join(parts + (losses or ["nothing lost"]))

    def dropped(self) -> list[str]:
        """Reasons of dropped packets, the most frequent first: `no_dest 340 (12/s)`."""
        return self._reasons(lambda reason: reason not in HANDLED and reason not in NOT_OURS)

    def ignored(self) -> list[str]:
        """Reasons of packets that are not ours."""
        return self._reasons(NOT_OURS.__contains__)

    def _reasons(self, meant: Callable[[str], bool]) -> list[str]:
        if self.snapshot is None:
            return []
        before = self._before.reasons if self._before else {}
        found = [
            (self._rate(count, before.get(reason, 0)) or 0, count, reason)
            for reason, count in self.snapshot.reasons.items()
            if count and meant(reason)
        ]
        return [f"{reason} {count}{_per_second(rate)}" for rate, count, reason in sorted(found, reverse=True)]

    def _rate(self, now: int, before: int) -> float | None:
        """A second; None if it cannot be told: the first answer, or that of a director which began anew."""
        if self.snapshot is None or self._before is None or now < before:
            return None
        seconds = self.snapshot.at - self._before.at
        return (now - before) / seconds if seconds > 0 else None


def _name(key: ServiceKey) -> str:
    protocol, _, address = service_text(key, _NUMERIC).partition(" ")
    return f"{protocol} {address.strip()}"


def _figures(active: int, inactive: int, stats: Stats) -> Iterator[str]:
    return map(short, (active, inactive, *stats[5:]))


def _per_second(rate: float | None) -> str:
    return f" ({short(rate)}/s)" if rate else ""


def _sum(rows: Iterable[QueueRow], counter: str) -> int:
    return sum(value for row in rows if isinstance(value := row.get(counter), int))


def _known(rows: Iterable[QueueRow], counter: str) -> bool:
    return all(isinstance(row.get(counter), int) for row in rows)


def _columns(width: int) -> tuple[tuple[str, int, Sort | None], ...]:
    return COLUMNS if width >= NARROW else COLUMNS[1:]


def _name_width(width: int) -> int:
    return max(width - sum(size for _, size, _ in _columns(width)), NAME_MIN)


def _joined(name: str, cells: list[str], width: int) -> str:
    columns, room = _columns(width), _name_width(width)
    if len(name) > room:
        name = name[: room - 1] + "…"
    return f"{name:{room}}" + "".join(
        f"{cell:>{size}}" for cell, (_, size, _) in zip(cells[-len(columns) :], columns, strict=True)
    )


_FIGURES = sum(size for _, size, _ in COLUMNS)
_ORDERS: dict[Sort, Callable[[_Service], int]] = {
    Sort.ACTIVE: lambda service: service.active,
    Sort.CONNS: lambda service: service.entry.stats.cps,
    Sort.PACKETS: lambda service: service.entry.stats.inpps + service.entry.stats.outpps,
    Sort.BYTES: lambda service: service.entry.stats.inbps + service.entry.stats.outbps,
}
_SERVER_ORDERS: dict[Sort, Callable[[DestEntry], int]] = {
    Sort.ACTIVE: lambda dest: dest.activeconns,
    Sort.CONNS: lambda dest: dest.stats.cps,
    Sort.PACKETS: lambda dest: dest.stats.inpps + dest.stats.outpps,
    Sort.BYTES: lambda dest: dest.stats.inbps + dest.stats.outbps,
}
