"""Answers of a director, made up, for `uvs top`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address

from uvs.control.messages import NO_STATS, DestEntry, ServiceEntry, Stats
from uvs.ipvs.spec import DestSpec, QueueRow, ServiceKey, ServiceSpec
from uvs.top.source import Snapshot

TABLE = {"conns": 0, "templates": 0, "dests": 0, "services": 0, "conn_max": 1024, "full": 0, "waiting": 0}


def family(addr: bytes) -> int:
    return 2 if len(addr) == 4 else 10


def service(address: str, port: int, protocol: int = 6, **stats: int) -> ServiceEntry:
    """A service of the scheduler rr."""
    addr = ip_address(address).packed
    key = ServiceKey(family(addr), protocol, addr, port)
    return ServiceEntry(ServiceSpec(key, "rr"), NO_STATS._replace(**stats))


def dest(
    address: str, port: int, weight: int = 1, active: int = 0, inactive: int = 0, **stats: int
) -> DestEntry:
    """A server by NAT."""
    addr = ip_address(address).packed
    spec = DestSpec(family(addr), addr, port, 0, weight)
    return DestEntry(spec, active, inactive, 0, NO_STATS._replace(**stats))


def snapshot(
    *services: tuple[ServiceEntry, list[DestEntry]],
    first: bool = True,
    at: float = 0.0,
    total: Mapping[str, int] | Stats = NO_STATS,
    reasons: dict[str, int] | None = None,
    queues: Sequence[QueueRow] = (),
    table: dict[str, int] | None = None,
) -> Snapshot:
    """An answer at the moment `at`."""
    whole = total if isinstance(total, Stats) else NO_STATS._replace(**total)
    return Snapshot(
        first,
        1_800_000_000.0 + at,
        at,
        0.01,
        list(services),
        whole,
        reasons or {},
        list(queues),
        table or TABLE,
    )
