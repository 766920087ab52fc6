"""Taking an arena over: after SIGKILL at any moment nothing is lost or damaged; whatever bytes a file
holds, the table that comes of it is sound."""

from __future__ import annotations

import os
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.churn import ALIVE, BOOT, VIP, client
from support.table import SECOND, START, World, header, verify

from uvs.engine.core import AF_INET, RECORD_SIZE, Table


@pytest.mark.parametrize("seed", range(8))
def test_sigkill(tmp_path: Path, seed: int) -> None:
    """A process inserts, refreshes, expires and deletes until it is killed, and again over what it left."""
    path = str(tmp_path / "connections")
    rnd = random.Random(seed)
    command = [sys.executable, "-m", "support.churn", path, str(seed)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        time.sleep(rnd.random() * 0.15)
        os.kill(child.pid, signal.SIGKILL)
        lines = [line, *child.stdout.read().splitlines(keepends=True)]
        assert child.wait() == -signal.SIGKILL
    last, now = map(int, [row for row in lines if row.endswith(b"\n")][-1].split())
    with Table(path, 200_000, BOOT, now) as table:
        assert (table.message, table.info()["attached"]) == ("", 1)
        assert verify(table) >= ALIVE // 2
        for n in range(max(1, last - 50), last + 1):
            assert table.conn_in_get(header(6, client(n), 1, VIP, 80)) is not None, n
        made = max(int.from_bytes(c.caddr[1:]) for c in table.conns())
        assert last <= made <= last + 100
        for _ in range(3):
            now += 901 * SECOND
            while table.expire(now, 1000) == 1000:
                pass
        assert verify(table) == 0
        assert [d.refcnt for d in table.dests()] == [0, 0, 0]


def sound(path: Path) -> None:
    """Attach, check, use, let everything expire."""
    now = START
    with Table(str(path), 1000, now=now) as table:
        verify_counters(table)
        for i in range(30):
            made = table.conn_new(AF_INET, 6, client(1), 4000 + i, VIP, 80, AF_INET, VIP, 80, 0, 0, 0, now)
            assert made is not None
        verify_counters(table)
        for _ in range(30):
            now += 5_000_000 * SECOND
            while table.expire(now, 1000) == 1000:
                pass
        assert list(table.conns()) == []


def verify_counters(table: Table) -> None:
    """As `verify`, without looking each entry up: equal keys may be told apart by what no lookup reads."""
    conns = list(table.conns())
    info = table.info()
    assert info["conns"] + info["templates"] == len(conns)
    for dest in table.dests():
        assert dest.refcnt == sum(c.dest == dest.index for c in conns)
        assert dest.activeconns + dest.inactconns + dest.persistconns == dest.refcnt
    assert sum(c.n_control for c in conns) == sum(bool(c.control) for c in conns)


def arena(path: Path) -> bytearray:
    """The file of a table with 20 connections and templates (records 34 on), and of what does not fit
    into them."""
    with World(str(path)) as w:
        for i in range(10):
            conn = w.new(cport=1 + i)
            w.table.control_add(
                conn, w.template(vport=1000 + i, pe=b"sip " + b"x" * min(100 * i, 268) if i % 3 else b"")
            )
            if i % 2:
                assert w.table.app_data(conn, make=True)
    return bytearray(path.read_bytes())


RECORDS = 44
small = st.sampled_from([0, 1, 2, 3, 4, 6, 10, 17, 32, 33, 34, 35, 40, 255, 256, 2**31, 2**32 - 1])


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.lists(
        st.tuples(st.integers(0, RECORDS * 32 - 1), small | st.integers(0, 2**32 - 1)), max_size=60
    ),
    stamps=st.lists(
        st.tuples(st.integers(0, RECORDS - 1), st.binary(min_size=128, max_size=128)), max_size=6
    ),
    copies=st.lists(st.tuples(st.integers(0, RECORDS - 1), st.integers(0, RECORDS - 1)), max_size=6),
)
def test_any_records(
    tmp_path: Path,
    words: list[tuple[int, int]],
    stamps: list[tuple[int, bytes]],
    copies: list[tuple[int, int]],
) -> None:
    """Words, whole records and copies of records written over a good arena."""
    path = tmp_path / "connections"
    path.unlink(missing_ok=True)
    data, first = arena(path), 32 * RECORD_SIZE
    for n, stamp in stamps:
        data[first + n * RECORD_SIZE : first + (n + 1) * RECORD_SIZE] = stamp
    for source, target in copies:
        record = data[first + source * RECORD_SIZE : first + (source + 1) * RECORD_SIZE]
        data[first + target * RECORD_SIZE : first + (target + 1) * RECORD_SIZE] = record
    for n, word in words:
        struct.pack_into("=I", data, first + 4 * n, word)
    with path.open("r+b") as file:
        file.write(data[: first + RECORDS * RECORD_SIZE])
    sound(path)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), max_size=8),
    size=st.sampled_from([None, 0, 1, 63, 64, 4096, 8192, (2 << 20) - 1, (2 << 20) + 1, 4 << 20]),
)
def test_any_header(tmp_path: Path, header: list[tuple[int, int]], size: int | None) -> None:
    """Bytes of the header page written over, the file cut or extended."""
    path = tmp_path / "connections"
    path.unlink(missing_ok=True)
    data = arena(path)
    for offset, value in header:
        data[offset] = value
    with path.open("r+b") as file:
        file.write(data[:4096])
    if size is not None:
        os.truncate(path, size)
    sound(path)
