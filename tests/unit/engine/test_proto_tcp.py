"""TCP's states: every cell of IPVS's tables, time-outs, counters (ip_vs_proto_tcp.c)."""

from __future__ import annotations

import pytest
from support.table import MASQ, ROUTE, World

from uvs.engine.core import ConnFlag, Dir, state_name, tcp_next

ABBREVIATED = ["NO", "ES", "SS", "SR", "FW", "TW", "CL", "CW", "LA", "LI", "SA"]

# now | IN syn fin ack rst | OUT syn fin ack rst | INPUT-ONLY syn fin ack rst
NORMAL = """
NO  SR CL ES CL  SS TW ES CL  SR CL ES CL
ES  ES CW ES CL  ES FW ES CL  ES FW ES CL
SS  ES SS SS CL  SS SS SS SS  ES SS SS CL
SR  SR TW ES SR  SR TW ES CL  SR TW ES SR
FW  SR TW FW CL  SS FW FW CL  SR FW FW CL
TW  SR TW TW CL  SS TW TW TW  SR TW TW CL
CL  SR CL CL CL  SS CL CL CL  SR CL CL CL
CW  SR CW CW CL  SS TW CW CL  SR CW CW CL
LA  SR LA CL LA  SS LA LA CL  SR LA CL LA
LI  SR LI LI LI  LI LI ES CL  SR LI LI LI
SA  SR TW ES SR  SR TW ES CL  SR TW ES CL
"""
SECURE = """
NO  SR CL ES CL  SS TW ES CL  SA CL ES CL
ES  ES CW ES CL  ES FW ES CL  ES FW ES CL
SS  ES SS SS CL  SS SS SS SS  ES SS SS CL
SR  SR TW SR SR  SA TW ES CL  SR TW ES SR
FW  SR TW FW CL  SS FW FW CL  SA FW FW CL
TW  SR TW TW CL  SS TW TW TW  SA TW TW CL
CL  SR CL CL CL  SS CL CL CL  SA CL CL CL
CW  SR CW CW CL  SS TW CW CL  SA CW CW CL
LA  SR LA CL LA  SS LA LA CL  SA LA CL LA
LI  SR LI LI LI  LI LI ES CL  SA LI LI LI
SA  SA SA SA CL  SA TW ES CL  SA TW ES CL
"""

# number, name, seconds, counted as active
STATES = """
0 NONE 2 -
1 ESTABLISHED 900 active
2 SYN_SENT 120 active
3 SYN_RECV 60 active
4 FIN_WAIT 120 -
5 TIME_WAIT 120 -
6 CLOSE 10 -
7 CLOSE_WAIT 60 -
8 LAST_ACK 30 -
9 LISTEN 120 -
10 SYNACK 120 active
"""

EVENTS = ["syn", "fin", "ack", "rst"]


def cells(text: str) -> list[tuple[Dir, str, str, str]]:
    """(direction, event, state now, next state) of every cell."""
    out = []
    for row in text.strip().splitlines():
        now, *nexts = row.split()
        assert len(nexts) == 12
        for i, then in enumerate(nexts):
            out.append((Dir(i // 4), EVENTS[i % 4], now, then))
    return out


def table(text: str) -> dict[str, tuple[int, str, int, bool]]:
    """The rows of STATES by abbreviation."""
    rows = (line.split() for line in text.strip().splitlines())
    return {
        ABBREVIATED[int(n)]: (int(n), name, int(seconds) * 1000, active == "active")
        for n, name, seconds, active in rows
    }


@pytest.mark.parametrize(("secure", "text"), [(False, NORMAL), (True, SECURE)], ids=["normal", "secure_tcp"])
def test_every_cell(secure: bool, text: str) -> None:
    """uvs_tcp_next agrees with the tables."""
    want = cells(text)
    assert len(want) == 132
    number = ABBREVIATED.index
    got = [(d, e, now, ABBREVIATED[tcp_next(secure, d, e, number(now))]) for d, e, now, _ in want]
    assert got == want


@pytest.mark.parametrize("secure", [False, True], ids=["normal", "secure_tcp"])
def test_a_packet_goes_by_the_cell(secure: bool) -> None:
    """Every cell again, by a segment on a connection: next state, time-out, INACTIVE, counters, NOOUTPUT."""
    states = table(STATES)
    with World() as w:
        w.table.secure_tcp(secure)
        for direction, event, now, then in cells(SECURE if secure else NORMAL):
            conn = w.new(method=ROUTE if direction == Dir.INPUT_ONLY else MASQ)
            w.force(conn, *states[now][::3])
            w.packet(conn, Dir.OUTPUT if direction == Dir.OUTPUT else Dir.INPUT, event)
            state, _, timeout, active = states[then]
            assert (conn.state, conn.timeout) == (state, timeout), (direction, event, now)
            assert bool(conn.flags & ConnFlag.INACTIVE) is not active, (direction, event, now)
            assert w.counters == ((1, 0, 0) if active else (0, 1, 0)), (direction, event, now)
            w.table.conn_del(conn)
            assert w.counters == (0, 0, 0)


def test_names_and_time_outs() -> None:
    """Names as /proc prints them, time-outs as the kernel has them by default."""
    with World() as w:
        for number, name, ms, _ in table(STATES).values():
            assert (state_name(6, number), w.table.timeouts(6)[number]) == (name, ms)
    assert state_name(6, 11) == state_name(6, -1) == "ERR!"


@pytest.mark.parametrize(
    ("flags", "then"),
    [
        ("", "CLOSE"),
        ("P", "CLOSE"),
        ("SA", "SYN_RECV"),
        ("FA", "TIME_WAIT"),
        ("FS", "SYN_RECV"),
        ("RSFA", "SYN_RECV"),
        ("A", "ESTABLISHED"),
        ("PAU", "ESTABLISHED"),
    ],
)
def test_event_is_the_first_of_rst_syn_fin_ack(flags: str, then: str) -> None:
    """A segment of the client in SYN_RECV; without any of the four it closes."""
    with World() as w:
        conn = w.new()
        w.packet(conn, Dir.INPUT, "syn")
        w.packet(conn, Dir.INPUT, flags)
        assert conn.state_name == then


def test_header_unreadable_changes_nothing() -> None:
    """A segment cut after its ports."""
    with World() as w:
        conn = w.new(method=ROUTE)
        w.packet(conn, Dir.OUTPUT, "syn", readable=False)
        assert (conn.state, conn.timeout, bool(conn.flags & ConnFlag.NOOUTPUT)) == (0, 3000, True)


def test_a_reply_ends_input_only() -> None:
    """DR and TUN use the INPUT-ONLY columns until a reply passes by."""
    with World() as w:
        conn = w.new(method=ROUTE)
        w.play(conn, "in syn SYN_RECV, in ack ESTABLISHED, in fin FIN_WAIT")
        assert conn.flags & ConnFlag.NOOUTPUT
        w.play(conn, "out ack FIN_WAIT")
        assert not conn.flags & ConnFlag.NOOUTPUT
        w.play(conn, "out syn SYN_SENT, in fin SYN_SENT")


def test_established_assures_the_template() -> None:
    """Only entering ESTABLISHED does, and only a template is assured."""
    with World() as w:
        template, control, conn = w.template(), w.new(), w.new()
        w.table.control_add(control, template)
        w.table.control_add(conn, control)
        w.play(conn, "in syn SYN_RECV, in ack ESTABLISHED")
        assert (template.state_name, control.state) == ("NONE", 0)
        w.play(control, "in syn SYN_RECV")
        assert template.state_name == "NONE"
        w.play(control, "in ack ESTABLISHED")
        assert template.state_name == "ASSURED"


# The reference's worked examples: direction, event, state, active:inactive.
EXAMPLES = {
    "1 NAT, client closes first": (
        MASQ,
        "in syn SYN_RECV 60 1:0, out syn SYN_RECV 60 1:0, in ack ESTABLISHED 900 1:0, "
        "in fin CLOSE_WAIT 60 0:1, out ack CLOSE_WAIT 60 0:1, out fin TIME_WAIT 120 0:1, in ack TIME_WAIT 120 0:1",
    ),
    "2 NAT, server closes first": (
        MASQ,
        "in syn SYN_RECV 60 1:0, out syn SYN_RECV 60 1:0, in ack ESTABLISHED 900 1:0, "
        "out fin FIN_WAIT 120 0:1, in ack FIN_WAIT 120 0:1, in fin TIME_WAIT 120 0:1, out ack TIME_WAIT 120 0:1",
    ),
    "3 DR and TUN": (
        ROUTE,
        "in syn SYN_RECV 60 1:0, in ack ESTABLISHED 900 1:0, in fin FIN_WAIT 120 0:1, in ack FIN_WAIT 120 0:1, "
        "in syn SYN_RECV 60 1:0",
    ),
    "4 RST of the client": (MASQ, "in syn SYN_RECV 60 1:0, in ack ESTABLISHED 900 1:0, in rst CLOSE 10 0:1"),
    "4 RST of the server": (MASQ, "in syn SYN_RECV 60 1:0, in ack ESTABLISHED 900 1:0, out rst CLOSE 10 0:1"),
    "4 RST of the client, early": (
        MASQ,
        "in syn SYN_RECV 60 1:0, in rst SYN_RECV 60 1:0, out rst CLOSE 10 0:1",
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_example(name: str) -> None:
    """Whole connections; every packet restarts the timer with the state's time-out."""
    method, text = EXAMPLES[name]
    with World() as w:
        conn = w.new(method=method)
        assert (w.counters, conn.state_name, conn.timeout) == ((0, 1, 0), "NONE", 3000)
        w.play(conn, text)


def test_set_timeout() -> None:
    """SET_CONFIG: loaded by the next packet, running timers keep going."""
    with World() as w:
        conn = w.new()
        w.play(conn, "in syn SYN_RECV 60, in ack ESTABLISHED 900")
        deadline = conn.deadline
        w.table.set_timeout(6, 1, 7000)
        assert conn.deadline == deadline
        w.play(conn, "in ack ESTABLISHED 7")
        assert conn.remaining(w.now) == 7000
