"""What a running director has counted: packets that its queues lost, a table that was full."""

from __future__ import annotations

from collections.abc import Iterator

from uvs.doctor.finding import Finding, Name
from uvs.doctor.host import Host
from uvs.ipvs.spec import QueueRow

# A counter of a queue that should be 0: what happened to so many packets, and what mends it.
_QUEUE_FAULTS = {
    "cut": ("handed over in part (more than 65531 bytes) and dropped", "send smaller datagrams"),
    "refused": ("not sent: the kernel refused them", "see the director's log: it names next hop and error"),
    "unsaid": (
        "dropped: the kernel did not take their verdict",
        "sysctl -w net.core.wmem_max=8388608, then start the director again",
    ),
    "errors": ("dropped: the director failed", "report what the director's log says of them"),
}


def check_director(host: Host) -> Iterator[Finding]:
    """A running director: packets that its queues lost, connections that its table had no room for."""
    counters = host.director()
    if isinstance(counters, str):
        yield Finding(Name.DIRECTOR, "note", f"none to ask for services, servers and counters: {counters}")
        return
    detail = f"it answers, and has {len(counters.services)} services"
    yield Finding(Name.DIRECTOR, "ok", detail)
    faults = [fault for row in counters.queues for fault in _queue_faults(row)]
    yield from faults or [Finding(Name.QUEUE, "ok", "the running director's queues have lost no packet")]
    yield _table(counters.table)


def _queue_faults(row: QueueRow) -> Iterator[Finding]:
    count = {name: value for name, value in row.items() if isinstance(value, int)}
    lost, dropped = count.get("lost", 0), count.get("dropped", 0)
    which = f"queue {row.get('queue')} ({row.get('class')})"
    of = f"of {count.get('packets', 0) + lost} packets"
    faster = "uvs run --driver native" if row.get("class") == "all" else "uvs run --queues N (more of them)"
    # A packet for which the socket has no room leaves a gap in the ids; one that finds a full queue has none.
    if lost:
        mend = f"sysctl -w net.core.rmem_max=33554432, then start the director again; or {faster}"
        detail = f"{which}: {lost} {of} found no room in the director's socket"
        yield Finding(Name.QUEUE, "warn", detail, mend)
    if dropped > lost:
        detail = f"{which}: {dropped - lost} packets found the queue full"
        yield Finding(Name.QUEUE, "warn", detail, faster)
    for name, (what, mend) in _QUEUE_FAULTS.items():
        if number := count.get(name):
            yield Finding(Name.QUEUE, "warn", f"{which}: {number} {of} {what}", mend)


def _table(table: dict[str, int]) -> Finding:
    used = sum(table.get(kind, 0) for kind in ("conns", "templates", "dests", "services"))
    most, full = table.get("conn_max", 0), table.get("full", 0)
    if full:
        detail = f"it was, {full} times: {used} of {most} records are in use now"
        return Finding(Name.TABLE, "warn", detail, f"uvs run --conn-max {2 * most}")
    return Finding(Name.TABLE, "ok", f"it never was: {used} of {most} records are in use")
