"""What connections cost: UDP packets of 10 ... 1,000,000 known connections by NAT, memory, and idling with them.

The table is filled in the director's own file while the director is down: killed, it comes back with what stands there.
Such connections have not been sent anywhere since, so each would find its next hop by its first packet; all get it from
one that has, as if every one had had a packet before.
"""

from __future__ import annotations

import mmap
import os
import socket
import time
from collections.abc import Mapping

from bench.results import Figure
from bench.stand import UDP_PORT, Stand
from bench.work import Pace
from uvs import host
from uvs.engine.binding import ffi, lib, put_packed
from uvs.engine.core import AF_INET, Table
from uvs.lab import processes
from uvs.lab.topology import VIP

UDP = 17
TIMEOUT_MS = 3_600_000  # longer than a run
ROOM = 1 << 16  # entries more than connections: services, servers
ARENA = "/run/uvs/connections"
FIRST = 32  # record after the header (csrc/table.h)
TRIES = 50

FIGURES = [
    Figure("packets", "1000/s", 0),
    Figure("process", "µs of the director's processes a packet", more=False),
    Figure("resident", "MB resident", 1, more=False),
    Figure("arena", "MB of table", 1, more=False),
    Figure("idle", "% of a processor, idle", more=False),
]


def options(words: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Of `uvs run`."""
    return (*words, "--conn-max", str(max(count + ROOM, 1 << 20)))


def source(n: int) -> tuple[bytes, int]:
    """Address and port of flow n, as sender.c makes them."""
    return (0x0A000001 + (n & 0xFFFF)).to_bytes(4, "big"), 1024 + (n >> 16) % 60000


def fill(count: int, conn_max: int) -> int:
    """Put connections of flows 0 ... count-1 into the table of a director that is down; how many there are.

    By the engine's functions themselves: a million takes seconds.
    """
    now = time.monotonic_ns()
    with Table(ARENA, conn_max, host.boot_id(), now) as table:
        dest = next(d for d in table.dests() if d.protocol == UDP and d.port == UDP_PORT and d.af == AF_INET)
        param = ffi.new(
            "struct uvs_conn_param *",
            {"af": AF_INET, "daf": AF_INET, "protocol": UDP, "vport": UDP_PORT, "dport": UDP_PORT},
        )
        put_packed(ffi.addressof(param, "vaddr"), socket.inet_aton(VIP[4]))
        put_packed(ffi.addressof(param, "daddr"), dest.addr)
        client, arena, flags, index = (
            ffi.buffer(ffi.addressof(param, "caddr")),
            table._t,
            dest.conn_flags,
            dest.index,
        )
        for n in range(count):
            client[:4], param.cport = source(n)
            conn = lib.uvs_conn_new(arena, param, flags, index, now)
            if not conn:
                raise RuntimeError(f"the table is full after {n} connections")
            conn.timeout = TIMEOUT_MS
            lib.uvs_conn_put(arena, conn, now)
        return table.info()["conns"]


def fill_stand(stand: Stand, count: int, words: tuple[str, ...]) -> None:
    """Start its director again with that many connections."""
    processes.uvsadm(stand.lab, "--set", "0", "0", str(TIMEOUT_MS // 1000))
    stand.kill()
    conn_max = int(options(words, count)[-1])
    there = stand.lab.call("director", fill, count, conn_max, timeout=300)
    if there < count:
        raise RuntimeError(f"{there} connections instead of {count}")
    processes.start_director(stand.lab, options(words, count))
    for _ in range(TRIES):
        stand.packets(0.1, flows=10)
        if stand.lab.call("director", bind, count) >= count:
            return
    raise RuntimeError("no connection has got a next hop")


def bind(count: int) -> int:
    """Give all connections the next hop that one of them has; how many have it now (fewer than `count`: none has)."""
    kind, size, offset = lib.UVS_KIND_CONN, lib.UVS_RECORD_SIZE, ffi.offsetof("struct uvs_conn", "nexthop")
    with open(ARENA, "r+b") as file, mmap.mmap(file.fileno(), 0) as arena:
        conns = [at for at in range(FIRST * size, len(arena), size) if arena[at] == kind]
        known = (arena[at + offset : at + offset + 4] for at in conns)
        hop = next((each for each in known if any(each)), None)
        if hop is None:
            return 0
        for at in conns:
            arena[at + offset : at + offset + 4] = hop
        return len(conns)


def allocated(stand: Stand) -> int:
    """Bytes of memory that the table's file takes."""
    return os.stat(stand.lab.path(ARENA)).st_blocks * 512


def idle(stands: Mapping[str, Stand], seconds: float) -> dict[str, float]:
    """Percent of a processor that each director takes when there is nothing to do."""
    before = {count: (stand.used(), time.perf_counter()) for count, stand in stands.items()}
    time.sleep(seconds)
    return {
        count: (stand.used() - before[count][0]).director / (time.perf_counter() - before[count][1]) * 100
        for count, stand in stands.items()
    }


def measure(stand: Stand, count: int, pace: Pace) -> dict[str, float]:
    """Packets of random ones of them."""
    rate, used = stand.packets(pace.packets, flows=count)
    return {
        "packets": rate / 1e3,
        "process": used.director / rate * 1e6,
        "resident": stand.memory() / 1e6,
        "arena": allocated(stand) / 1e6,
    }
