"""SCTP's states: every cell of IPVS's tables, time-outs, events (ip_vs_proto_sctp.c)."""

from __future__ import annotations

import pytest
from support.table import MASQ, ROUTE, World

from uvs.engine.core import ConnFlag, Dir, sctp_next, state_name

SCTP = 132
ABBREVIATED = ["NO", "I1", "IN", "CS", "CR", "CW", "CO", "CE", "ES", "SS", "SR", "SA", "RJ", "CL"]

# The columns of the tables below, in this order, and a chunk type for each.
EVENTS = ["data", "init", "init-ack", "ck-echo", "ck-ack", "shut", "shut-ack", "shut-comp", "error", "abort"]
CHUNK = dict(zip(EVENTS, [0, 1, 2, 10, 11, 7, 8, 14, 9, 6], strict=True))

TABLES = {
    Dir.INPUT: """
NO ES I1 CW CR ES SR CL CL CL CL
I1 I1 IN CW IN I1 I1 IN CL I1 CL
IN IN IN CW IN IN IN IN CL IN CL
CS CS CS CS CR CS CS CS CS CS CL
CR CR CR CR CR CR CR CR CR CR CL
CW CW CW CO CW CW CW CW CW CW RJ
CO CO CO CO CO CO CO CO CO CO CL
CE CE CE CE CE ES CE CE CE CL CL
ES ES ES ES ES ES SR ES ES ES CL
SS SS SS SS SS SS SS CL SS SS CL
SR SR SR SR SR SR SR SR SR SR CL
SA SA SA SA SA SA SA CL CL SA CL
RJ RJ IN RJ RJ RJ RJ RJ RJ RJ CL
CL CL IN CL CL CL CL CL CL CL CL
""",
    Dir.OUTPUT: """
NO ES CW CS CE ES SS SA CL CL CL
I1 I1 CW CS CE ES SS SA I1 CL RJ
IN IN CW CS CE ES SS SA IN CL CL
CS CS CW CS CE ES SS SA CS CL CL
CR CR CW CR CE ES SS SA CR CL CL
CW CW CW CW CE ES SS CW CW CW CL
CO CO CW CO CE ES SS CO CO CO CL
CE CE CW CE CE ES SS CE CE CE CL
ES ES ES ES ES ES SS ES ES ES CL
SS SS CW SS SS SS SS SA SS SS CL
SR SR CW SR SR SR SR SA SR SR CL
SA SA CW SA SA SA SA SA SA SA CL
RJ RJ CW RJ RJ RJ RJ RJ RJ RJ CL
CL CL CW CL CL CL CL CL CL CL CL
""",
    Dir.INPUT_ONLY: """
NO ES I1 CE ES ES SR CL CL CL CL
I1 I1 IN CE ES I1 I1 IN CL I1 CL
IN IN IN CE ES IN IN IN CL IN CL
CS CS IN CE ES ES CS CS CL CS CL
CR CR IN CE ES ES CR CR CL CR CL
CW ES IN CE ES CW CW CW CW CW RJ
CO CO CO CO CO ES CO CO CO CO CL
CE CE CE CE CE ES CE CE CE CE CL
ES ES ES ES ES ES SR CL ES ES CL
SS SS SS SS SS SS SS CL SS SS CL
SR SR SR SR SR SR SR SR CL SR CL
SA SA SA SA SA SA SA CL CL SA CL
RJ RJ IN RJ RJ RJ RJ RJ RJ RJ CL
CL CL IN CL CL CL CL CL CL CL CL
""",
}

# number, name, seconds
STATES = """
0 NONE 2
1 INIT1 4
2 INIT 61
3 C-SENT 61
4 C-REPLIED 61
5 C-WAIT 61
6 COOKIE 61
7 C-ECHOED 61
8 ESTABLISHED 900
9 S-SENT 61
10 S-RECEIVED 61
11 S-ACK-SENT 61
12 REJECTED 4
13 CLOSED 61
"""


def cells() -> list[tuple[Dir, str, str, str]]:
    """(direction, event, state now, next state) of every cell."""
    out = []
    for direction, text in TABLES.items():
        rows = text.strip().splitlines()
        assert [row.split()[0] for row in rows] == ABBREVIATED
        for row in rows:
            now, *nexts = row.split()
            out += [(direction, event, now, then) for event, then in zip(EVENTS, nexts, strict=True)]
    return out


def test_every_cell() -> None:
    """uvs_sctp_next agrees with the tables."""
    want = cells()
    assert len(want) == 420
    number = ABBREVIATED.index
    got = [(d, e, now, ABBREVIATED[sctp_next(d, EVENTS.index(e), number(now))]) for d, e, now, _ in want]
    assert got == want


def test_a_packet_goes_by_the_cell() -> None:
    """Every cell again, by a chunk on a connection: next state, time-out, active only in ESTABLISHED."""
    seconds = [int(line.split()[2]) for line in STATES.strip().splitlines()]
    with World() as w:
        for direction, event, now, then in cells():
            conn = w.new(method=ROUTE if direction == Dir.INPUT_ONLY else MASQ, protocol=SCTP)
            w.force(conn, ABBREVIATED.index(now), now == "ES")
            w.packet(conn, Dir.OUTPUT if direction == Dir.OUTPUT else Dir.INPUT, chunk=CHUNK[event])
            state = ABBREVIATED.index(then)
            assert (conn.state, conn.timeout) == (state, seconds[state] * 1000), (direction, event, now)
            assert w.counters == ((1, 0, 0) if then == "ES" else (0, 1, 0)), (direction, event, now)
            assert bool(conn.flags & ConnFlag.INACTIVE) is (then != "ES")
            w.table.conn_del(conn)


def test_names_and_time_outs() -> None:
    """Names as /proc prints them, time-outs as the kernel has them."""
    with World() as w:
        for line in STATES.strip().splitlines():
            number, name, seconds = line.split()
            assert state_name(SCTP, int(number)) == name
            assert w.table.timeouts(SCTP)[int(number)] == int(seconds) * 1000
    assert state_name(SCTP, 14) == state_name(SCTP, -1) == "ERR!"


# what it shows, first chunk, second chunk, event
CHUNKS = [
    *((f"type {t} counts as data", t, 255, "data") for t in (0, 3, 4, 5, 12, 13, 15, 63, 64, 192, 255)),
    *((event, chunk, 255, event) for event, chunk in CHUNK.items()),
    ("ABORT behind COOKIE ECHO", 10, 6, "abort"),
    ("ABORT behind COOKIE ACK", 11, 6, "abort"),
    ("DATA behind COOKIE ECHO", 10, 0, "ck-echo"),
    ("ABORT behind another chunk does not count", 0, 6, "data"),
]


@pytest.mark.parametrize(
    ("chunk", "second", "event"), [row[1:] for row in CHUNKS], ids=[row[0] for row in CHUNKS]
)
@pytest.mark.parametrize("now", ["NO", "CE"])
def test_event_of_a_packet(chunk: int, second: int, event: str, now: str) -> None:
    """Two states in which almost every event tells."""
    with World() as w:
        conn = w.new(protocol=SCTP)
        w.force(conn, ABBREVIATED.index(now), False)
        w.packet(conn, Dir.INPUT, chunk=chunk, next_chunk=second)
        assert conn.state == sctp_next(Dir.INPUT, EVENTS.index(event), ABBREVIATED.index(now))


def test_established_assures_the_template() -> None:
    """As TCP."""
    with World() as w:
        template, conn = w.template(protocol=SCTP), w.new(protocol=SCTP)
        w.table.control_add(conn, template)
        w.packet(conn, Dir.INPUT, chunk=1)
        assert template.state_name == "NONE"
        w.packet(conn, Dir.OUTPUT, chunk=11)
        assert (conn.state_name, template.state_name) == ("ESTABLISHED", "ASSURED")
