"""The arena's file: made, locked, taken over, grown; set aside with a reason when it is not ours."""

from __future__ import annotations

import errno
import os
import re
import resource
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from support.table import ROUTE, SECOND, START, World, verify

from uvs.engine.core import RECORD_SIZE, ConnFlag, Dir, Table, TableError

SEGMENT = 2 << 20
BOOT = bytes(range(16))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "connections"


def world(path: Path, **kwargs: object) -> World:
    return World(str(path), boot_id=BOOT, **kwargs)  # type: ignore[arg-type]


def filled(path: Path) -> None:
    """An arena with a connection, its template and statistics."""
    with world(path) as w:
        conn = w.new(method=ROUTE)
        w.table.control_add(conn, w.template())
        w.play(conn, "in syn SYN_RECV, in ack ESTABLISHED")
        w.table.conn_stats(conn)
        w.table.in_stats(conn, 1000)


def test_made(path: Path) -> None:
    """Only its owner may read it; whole segments; locked while it is open."""
    with world(path) as w:
        assert (w.table.message, w.table.info()["attached"]) == ("", 0)
        status = path.stat()
        assert (stat.S_IMODE(status.st_mode), status.st_size) == (0o600, SEGMENT)
        assert status.st_blocks * 512 >= SEGMENT
        with pytest.raises(
            TableError, match=r"^arena .*/connections is in use by another director$"
        ) as caught:
            world(path)
        assert caught.value.errno == errno.EWOULDBLOCK
    with world(path) as w:
        assert w.table.info()["attached"] == 1


def test_taken_over(path: Path) -> None:
    """Everything that a connection is survives; what belonged to the old process is made anew."""
    filled(path)
    with world(path) as w:
        assert (w.table.message, w.table.info()["attached"]) == ("", 1)
        assert verify(w.table) == 2
        conn = next(c for c in w.table.conns() if not c.flags & ConnFlag.TEMPLATE)
        template = w.table.conn_at(conn.control)
        assert template is not None
        assert (template.state_name, template.n_control, template.timeout) == ("ASSURED", 1, 360_000)
        assert (conn.state_name, conn.timeout, conn.remaining(w.now)) == ("ESTABLISHED", 900_000, 902_000)
        assert conn.flags == ConnFlag.HASHED | ConnFlag.DROUTE | ConnFlag.NOOUTPUT
        assert w.counters == (1, 0, 1)
        assert (w.dest.addr, w.dest.stats, w.table.total.raw) == (
            w.rip,
            (1, 1, 0, 1000, 0),
            (1, 1, 0, 1000, 0),
        )
        assert w.dest.service == next(w.table.services()).index
        w.now += 903 * SECOND
        w.table.expire(w.now)
        assert verify(w.table) == 1  # the template: it still controlled when its own time had come
        w.now += 61 * SECOND
        w.table.expire(w.now)
        assert verify(w.table) == 0


def test_next_hops_of_the_old_process_are_forgotten(path: Path) -> None:
    with world(path) as w:
        w.new().nexthop = 7
    with world(path) as w:
        assert [c.nexthop for c in w.table.conns()] == [0]


def test_one_packet_connections_do_not_outlive_the_process(path: Path) -> None:
    with world(path) as w:
        w.new(protocol=17, flags=ConnFlag.ONE_PACKET)
    with world(path) as w:
        assert (w.table.message, verify(w.table), w.dest.refcnt) == ("", 0, 0)


def test_the_newer_of_equals_still_wins(path: Path) -> None:
    """In whatever records they stand."""
    with world(path) as w:
        hole = w.new(cport=1)
        old = w.new(dport=1)
        w.table.conn_del(hole)
        w.now += SECOND
        assert w.table.index_of(w.new(dport=2)) < w.table.index_of(old)
    with world(path) as w:
        conn = next(w.table.conns())
        found = w.table.conn_in_get(w.header(conn, Dir.INPUT))
        assert found is not None
        assert found.dport == 2


def test_grown(path: Path) -> None:
    """By segments, whose records are then there again; holes and the rest are filled first."""
    with world(path, conn_max=40_000) as w:
        conns = [w.new(cport=i) for i in range(1, 20_001)]
        assert path.stat().st_size == 2 * SEGMENT
        for conn in conns[::2]:
            w.table.conn_del(conn)
    with world(path, conn_max=1) as w:
        info = w.table.info()
        assert (info["conns"], info["records"], info["conn_max"]) == (10_000, 32_736, 32_736)
        for i in range(22_734):
            assert w.new(cport=20_001 + i) is not None
        assert w.table.dest_new() is None
        assert w.dest.inactconns == 32_734


def test_a_growth_cut_short(path: Path) -> None:
    """Killed between the allocation of a segment and its use: the rest of the file is nothing."""
    filled(path)
    with path.open("ab") as file:
        file.write(b"x" * 5000)
    with world(path) as w:
        assert (w.table.message, verify(w.table)) == ("", 2)
        assert path.stat().st_size == SEGMENT


def test_full_disk(path: Path) -> None:
    """No room to grow: refused and counted, asked again after a second; what is there works on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with world(path, conn_max=40_000) as w:
        args = (w.af, 6, w.client, 9, w.vip, 80, w.af, w.rip, 80, 0, 0, w.dest.index)
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (SEGMENT, hard))
            for i in range(16_350):
                w.new(cport=i)
            assert [w.table.conn_new(*args, w.now) for _ in range(3)] == [None] * 3
            assert (w.table.info()["full"], path.stat().st_size) == (3, SEGMENT)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert w.table.conn_new(*args, w.now) is None
        w.now += SECOND
        assert w.table.conn_new(*args, w.now) is not None


def poke(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


def owned_by_another(path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(path, 1, 1)


# what is wrong, how it comes about, the reason in the message
UNFIT: list[tuple[str, Callable[[Path], object], str]] = [
    ("another program's file", lambda p: p.write_bytes(b"#!/bin/sh\n" * 1000), "is not an arena"),
    ("zeros", lambda p: p.write_bytes(bytes(SEGMENT)), "is not an arena"),
    ("another layout", lambda p: poke(p, 8, struct.pack("=I", 99)), "has layout 99, not 4"),
    ("other records", lambda p: poke(p, 12, struct.pack("=I", 256)), "has records of 256 bytes, not 128"),
    ("another boot", lambda p: poke(p, 16, b"\xff"), "is of another boot"),
    ("one byte", lambda p: os.truncate(p, 1), r"is torn \(1 bytes\)"),
    ("the header alone", lambda p: os.truncate(p, 4096), r"is torn \(4096 bytes\)"),
    ("cut by a byte", lambda p: os.truncate(p, SEGMENT - 1), rf"is torn \({SEGMENT - 1} bytes\)"),
    ("no records", lambda p: poke(p, 32, struct.pack("=I", 0)), "is torn"),
    ("half a segment", lambda p: poke(p, 32, struct.pack("=I", 8192)), "is torn"),
    ("more records than bytes", lambda p: poke(p, 32, struct.pack("=I", 32768)), "is torn"),
    ("records without end", lambda p: poke(p, 32, struct.pack("=I", 1 << 31)), "is torn"),
    ("a symbolic link", lambda p: replace(p, lambda q: q.symlink_to("elsewhere")), "is a symbolic link"),
    ("a directory", lambda p: replace(p, Path.mkdir), "is not a regular file"),
    ("a fifo", lambda p: replace(p, os.mkfifo), "is not a regular file"),
    ("a second name", lambda p: os.link(p, p.with_name("second")), "can be written by others"),
    ("writable by the group", lambda p: p.chmod(0o620), "can be written by others"),
    ("somebody else's", owned_by_another, "belongs to another user"),
]


@pytest.mark.parametrize(("make", "reason"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT])
def test_unfit(path: Path, make: Callable[[Path], object], reason: str) -> None:
    """Set aside whole, said so, and a fresh one begun."""
    filled(path)
    make(path)
    before = path.lstat()
    content = path.read_bytes() if path.is_file() else b""
    with world(path) as w:
        assert re.search(
            rf"^arena {path} {reason}.*: set aside as {path}.aside, starting with an empty table$",
            w.table.message,
        )
        assert (w.table.info()["attached"], verify(w.table)) == (0, 0)
        assert stat.S_ISREG(path.lstat().st_mode)
        w.new()
        aside = path.with_name("connections.aside")
        assert aside.lstat().st_ino == before.st_ino
        assert not aside.is_file() or aside.read_bytes() == content
    with world(path) as w:
        assert (w.table.message, verify(w.table)) == ("", 1)


def test_a_symbolic_link_is_not_followed(path: Path) -> None:
    """Not even to an arena."""
    filled(path.with_name("elsewhere"))
    content = path.with_name("elsewhere").read_bytes()
    path.symlink_to("elsewhere")
    with world(path) as w:
        assert w.table.info()["attached"] == 0
        w.new()
    assert path.with_name("elsewhere").read_bytes() == content


@pytest.mark.parametrize(
    ("make", "message", "number"),
    [
        (
            lambda p: (p.parent / "connections.aside" / "x").mkdir(parents=True),
            "cannot be set aside as",
            errno.EISDIR,
        ),
        (lambda p: p.parent.rmdir(), "cannot open arena", errno.ENOENT),
    ],
    ids=["the name aside is taken", "no directory"],
)
def test_refused(tmp_path: Path, make: Callable[[Path], object], message: str, number: int) -> None:
    """Nothing is half done, and the message says what stands in the way."""
    path = tmp_path / "state" / "connections"
    path.parent.mkdir()
    if number == errno.EISDIR:
        path.write_text("foreign" * 10)
    make(path)
    with pytest.raises(TableError, match=message) as caught:
        world(path)
    assert caught.value.errno == number
    assert not path.exists() or path.read_text() == "foreign" * 10


# Offsets in struct uvs_conn (csrc/uvs.h).
CONN = {
    "kind": (0, "B"), "af": (1, "B"), "daf": (2, "B"), "protocol": (3, "B"), "cport": (4, "H"), "state": (10, "H"),
    "hnext": (12, "I"), "caddr": (16, "16s"), "vaddr": (32, "16s"), "daddr": (48, "16s"), "deadline": (64, "Q"),
    "flags": (72, "I"), "tnext": (80, "I"), "tprev": (84, "I"), "filed": (88, "I"), "dest": (92, "I"),
    "control": (96, "I"), "n_control": (100, "I"), "ext": (116, "I"),
}  # fmt: skip

# what is wrong with the connection's record: fields
DAMAGED: list[tuple[str, dict[str, object]]] = [
    ("kind", {"kind": 4}),
    ("kind of a service", {"kind": 3, "af": 3}),
    ("kind of a destination", {"kind": 2}),
    ("family", {"af": 3}),
    ("family of the real server", {"daf": 0}),
    ("protocol", {"protocol": 50}),
    ("protocol of a template", {"protocol": 50, "flags": 0x1000, "cport": 0, "state": 1}),
    ("protocol 0 and no template", {"protocol": 0}),
    ("TCP state", {"state": 11}),
    ("UDP state", {"protocol": 17, "state": 1}),
    ("SCTP state", {"protocol": 132, "state": 14}),
    ("state of a template", {"flags": 0x1000, "cport": 0, "state": 2}),
    ("a template with a client port", {"flags": 0x1000, "state": 1}),
    ("NO_CPORT and a client port", {"flags": 0x0800}),
    ("unknown flag", {"flags": 1 << 20}),
    ("a long IPv4 client", {"caddr": b"\1" * 16}),
    ("a long IPv4 service", {"vaddr": b"\1" * 16}),
    ("a long IPv4 server", {"daddr": b"\1" * 16}),
    ("deadline beyond any time-out", {"deadline": 1 << 62}),
]

# what is wrong, but leaves a connection: fields
MENDED: list[tuple[str, dict[str, object]]] = [
    ("links into nothing", {"hnext": 2**32 - 1, "tnext": 2**31, "tprev": 5, "filed": 2**32 - 1}),
    ("links to itself", {"hnext": 34, "tnext": 34, "tprev": 34}),
    ("controls many", {"n_control": 12345}),
    ("destination out of range", {"dest": 2**32 - 1}),
    ("destination in the header", {"dest": 1}),
    ("destination is a service", {"dest": 32}),
    ("destination is itself", {"dest": 34}),
    ("controller out of range", {"control": 2**32 - 1}),
    ("controller is a destination", {"control": 33}),
    ("controls itself", {"control": 34}),
    ("engine data", {"ext": 77}),
    ("active and counted as inactive", {"flags": 0x0183}),
]


def damage(path: Path, index: int, fields: dict[str, object]) -> None:
    for name, value in fields.items():
        offset, code = CONN[name]
        poke(path, index * RECORD_SIZE + offset, struct.pack("=" + code, value))


@pytest.mark.parametrize("fields", [row[1] for row in DAMAGED], ids=[row[0] for row in DAMAGED])
def test_damaged_record(path: Path, fields: dict[str, object]) -> None:
    """The connection (record 34; service 32, destination 33, template 35) is dropped, the rest kept."""
    filled(path)
    damage(path, 34, fields)
    with world(path) as w:
        assert w.table.message == f"arena {path}: 1 damaged records dropped"
        assert verify(w.table) == 1
        assert w.table.index_of(w.new()) == 34
        verify(w.table)


@pytest.mark.parametrize("fields", [row[1] for row in MENDED], ids=[row[0] for row in MENDED])
def test_mended_record(path: Path, fields: dict[str, object]) -> None:
    """Nothing in the file is followed that is not so."""
    filled(path)
    damage(path, 34, fields)
    with world(path) as w:
        assert w.table.message == ""
        assert verify(w.table) == 2
        for wait in 1300, 61:
            w.now += wait * SECOND
            w.table.expire(w.now)
        assert verify(w.table) == 0


@pytest.mark.parametrize("ring", [[34, 35], [34, 35, 36], list(range(34, 60))])
def test_a_ring_of_controllers(path: Path, ring: list[int]) -> None:
    """Broken somewhere, so that all of it expires."""
    with world(path) as w:
        for i in range(30):
            w.new(cport=1 + i)
    for this, that in zip(ring, ring[1:] + ring[:1], strict=True):
        damage(path, this, {"control": that})
    with world(path) as w:
        assert verify(w.table) == 30
        for _ in range(60):
            w.now += 61 * SECOND
            w.table.expire(w.now)
        assert verify(w.table) == 0


def test_killed_while_a_service_was_made(path: Path) -> None:
    """A service and a server without their families were never finished: not kept, and nothing to complain of."""
    filled(path)
    with Table(str(path), 1000, BOOT, START) as table:
        made = [table.service_new(), table.dest_new()]
        indexes = [record.index for record in made if record]
        assert len(indexes) == 2
    with Table(str(path), 1000, BOOT, START) as table:
        assert table.message == ""
        assert not {r.index for r in (*table.services(), *table.dests())} & set(indexes)
        verify(table)


@pytest.mark.parametrize(
    ("offset", "value", "left"),
    [(1, 3, 0), (2, 9, 0), (88, 1 << 15, 0), (90, 4, 0), (92, -1, 0), (96, -1, 0), (124, 99, 1)],
    ids=["family", "service's family", "flags of connections", "flags", "weight", "last weight", "service"],
)
def test_damaged_destination(path: Path, offset: int, value: int, left: int) -> None:
    """Dropped, and its connections have none; a service that is not there is none."""
    filled(path)
    code = "=b" if offset < 64 else "=H" if offset < 92 else "=i"
    poke(path, 33 * RECORD_SIZE + offset, struct.pack(code, value))
    with Table(str(path), 1000, BOOT, START) as table:
        assert [d.index for d in table.dests()] == [33][:left]
        assert [bool(c.dest) for c in table.conns()] == [bool(left)] * 2
        assert [d.service for d in table.dests()] == [0][:left]
        verify(table)
