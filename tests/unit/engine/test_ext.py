"""What does not fit into an entry: a template's persistence engine data, a helper's. It lives as long as the
entry, over a restart too."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.table import World, verify

from uvs.engine.core import PE_MAX, RECORD_SIZE, Conn, ConnFlag

BOOT = bytes(range(16))
KIND_FREE, KIND_CONN, KIND_PE, KIND_APP = 0, 1, 4, 5
LENGTHS = [1, 115, 116, 117, 232, 233, PE_MAX]


@pytest.fixture(params=[False, True], ids=["IPv4", "IPv6"])
def w(request: pytest.FixtureRequest) -> Iterator[World]:
    with World(v6=request.param) as made:
        yield made


def key(w: World, vport: int = 80) -> tuple[int, int, bytes, bytes, int]:
    return w.af, 17, w.client, w.vip, vport


def same(a: Conn | None, b: Conn | None) -> bool:
    return a is not None and b is not None and a._c == b._c


@pytest.mark.parametrize("size", LENGTHS)
def test_found_by_its_data(w: World, size: int) -> None:
    """By all of it, and by the rest of the key; without data another template is found, or none."""
    data = bytes(i % 251 for i in range(size))
    template = w.template(17, pe=data)
    assert w.table.pe_data(template) == data
    assert same(w.table.ct_in_get(*key(w), data), template)
    for other in (b"", data[:-1], data + b"x", b"\xff" + data[1:], data[:-1] + b"\xff"):
        if len(other) <= PE_MAX:
            assert w.table.ct_in_get(*key(w), other) is None, other
    assert w.table.ct_in_get(*key(w, 81), data) is None
    assert w.table.ct_in_get(w.af, 17, w.vip, w.vip, 80, data) is None
    plain = w.template(17)
    assert same(w.table.ct_in_get(*key(w)), plain)
    assert same(w.table.ct_in_get(*key(w), data), template)
    assert w.table.pe_data(plain) == b""
    assert verify(w.table) == 2


def test_set_aside(w: World) -> None:
    """A template that is no longer good is not found, but keeps what it is listed with."""
    template = w.template(17, pe=b"sip a")
    w.table.conn_rekey(template, 0, 0xFFFF, 0xFFFF)
    assert w.table.ct_in_get(*key(w), b"sip a") is None
    assert w.table.pe_data(template) == b"sip a"


def test_only_templates_have_it(w: World) -> None:
    conn = w.new(protocol=17, pe=b"sip a")
    assert w.table.pe_data(conn) == b""


def test_given_back(w: World) -> None:
    """A thousand records serve ten thousand templates and helpers, one after another."""
    for i in range(10_000):
        template = w.template(17, pe=b"%d" % i * (PE_MAX // 5))
        conn = w.new(cport=i + 1)
        assert w.table.app_data(conn, make=True)
        w.table.conn_del(conn)
        w.table.conn_del(template)
    assert verify(w.table) == 0
    assert w.table.info()["full"] == 0


def test_no_room_for_all_of_it() -> None:
    """The table is full: nothing half made, nothing lost."""
    with World(conn_max=1) as w:
        conns = []
        free = w.table.info()["records"] - 2
        for i in range(free - 3):
            conns.append(w.new(cport=i + 1))
        args = (w.af, 17, w.client, 0, w.vip, 80, w.af, w.rip, 80, 0, ConnFlag.TEMPLATE, w.dest.index, w.now)
        assert w.table.conn_new(*args, b"x" * PE_MAX) is None
        assert w.table.conn_new(*args, b"x" * 232) is not None
        assert w.table.app_data(conns[0]) is None
        assert w.table.app_data(conns[0], make=True) is None
        w.table.conn_del(conns[1])
        assert w.table.app_data(conns[0], make=True) is not None
        assert verify(w.table) == free - 3


def test_a_helper_s_data(w: World) -> None:
    """Made once, at first need; of connections only."""
    conn, other = w.new(), w.new(cport=1)
    assert w.table.app_data(conn) is None
    app = w.table.app_data(conn, make=True)
    assert app is not None
    app.mode = 2
    again = w.table.app_data(conn, make=True)
    assert again is not None
    assert (again.mode, again.delta, again.previous_delta) == (2, 0, 0)
    assert w.table.app_data(other) is None
    assert w.table.app_data(w.template(), make=True) is None


def world(path: Path) -> World:
    return World(str(path), boot_id=BOOT)


def filled(path: Path) -> None:
    with world(path) as w:
        for size in LENGTHS:
            w.template(17, pe=bytes([size & 255]) * size)
        app = w.table.app_data(w.new(flags=ConnFlag.OUT_SEQ), make=True)
        assert app is not None
        app.mode = 1
        app.resized(0xFFFFFFFF, -5)


def test_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "connections"
    filled(path)
    for _ in range(2):
        with world(path) as w:
            assert (w.table.message, verify(w.table)) == ("", len(LENGTHS) + 1)
            for size in LENGTHS:
                assert w.table.ct_in_get(*key(w), bytes([size & 255]) * size)
            (conn,) = (c for c in w.table.conns() if not c.flags & ConnFlag.TEMPLATE)
            app = w.table.app_data(conn)
            assert app is not None
            assert (app.mode, app.init_seq, app.delta, app.previous_delta) == (1, 0xFFFFFFFF, -5, 0)
            assert conn.flags & ConnFlag.OUT_SEQ


def records(data: bytes, kind: int) -> list[int]:
    return [i for i in range(32, len(data) // RECORD_SIZE) if data[i * RECORD_SIZE] == kind]


@pytest.mark.parametrize(
    ("kind", "offset", "value", "left", "message"),
    [
        (KIND_PE, 0, KIND_FREE, len(LENGTHS), "1 damaged"),  # a piece is missing
        (KIND_PE, 2, 0, len(LENGTHS), "2 damaged"),  # an empty piece, and who had it
        (KIND_PE, 2, 117, len(LENGTHS), "2 damaged"),
        (KIND_PE, 4, 3, len(LENGTHS), "1 damaged"),  # another owner
        (KIND_APP, 0, KIND_FREE, len(LENGTHS) + 1, ""),  # a connection can do without
        (KIND_APP, 4, 3, len(LENGTHS) + 1, ""),
    ],
)
def test_damaged(tmp_path: Path, kind: int, offset: int, value: int, left: int, message: str) -> None:
    """A template that lost its data is dropped: nobody would find it, or the wrong one would."""
    path = tmp_path / "connections"
    filled(path)
    data = bytearray(path.read_bytes())
    at = records(data, kind)[0] * RECORD_SIZE
    data[at + offset] = value
    path.write_bytes(data)
    with world(path) as w:
        assert message in w.table.message
        assert verify(w.table) == left
        assert not any(c.flags & ConnFlag.OUT_SEQ for c in w.table.conns()) or kind != KIND_APP


def test_pieces_that_nobody_claims_are_free_again(tmp_path: Path) -> None:
    """Killed between the pieces and the template, made or freed."""
    path = tmp_path / "connections"
    filled(path)
    data = bytearray(path.read_bytes())
    for i in records(data, KIND_CONN):
        struct.pack_into("B", data, i * RECORD_SIZE, KIND_FREE)
    path.write_bytes(data)
    with world(path) as w:
        assert (w.table.message, verify(w.table)) == ("", 0)
    left = path.read_bytes()
    assert records(left, KIND_PE) == records(left, KIND_APP) == []
