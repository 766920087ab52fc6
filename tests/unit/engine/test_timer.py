"""The timer wheel: never early, late by a tick at most, and lazy."""

from __future__ import annotations

import pytest
from support.table import SECOND, START, World

from uvs.engine.core import ConnFlag

TICK = SECOND // 8
DAY = 86_400 * SECOND


def gone_at(w: World, begin: int, end: int, step: int) -> int:
    """The first time, from `begin` in steps, at which the table is empty after a turn of the wheel."""
    for now in range(begin, end, step):
        w.table.expire(now)
        info = w.table.info()
        if info["conns"] + info["templates"] == 0:
            return now
    raise AssertionError("never expired")


@pytest.mark.parametrize("ms", [1, 124, 125, 126, 1000, 3000, 900_000, 1_024_000, 1_030_000, 31 * 86_400_000])
@pytest.mark.parametrize("offset", [0, 1, TICK - 1])
def test_when(ms: int, offset: int) -> None:
    """From below a tick to beyond one turn of the wheel and IPVS's longest persistence."""
    with World() as w:
        w.now = START + offset
        conn = w.new()
        conn.timeout = ms
        w.table.conn_put(conn, w.now)
        w.table.conn_expire_now(conn, w.now + ms * 1_000_000)  # as the wheel has filed it: not later
        due = w.now + ms * 1_000_000
        for now in range(w.now, due, max(SECOND, (due - w.now) // 50)):
            w.table.expire(now)
        w.table.expire(due - 1)
        assert w.table.info()["conns"] == 1
        assert due <= gone_at(w, due, due + SECOND, 1_000_000) <= due + TICK


def test_a_later_deadline_moves_nothing() -> None:
    """Refreshing 1000 times costs no turn of the wheel until the entry's old tick, and one then."""
    with World() as w:
        conn = w.new()
        for _ in range(1000):
            w.now += SECOND // 500
            w.table.conn_put(conn, w.now)
        assert w.table.expire(w.now) == 0
        assert w.table.expire(START + 3 * SECOND) == 1
        assert w.table.info()["conns"] == 1
        assert w.table.expire(w.now + 3 * SECOND) == 1
        assert w.table.info()["conns"] == 0


def test_an_earlier_deadline_moves_it() -> None:
    """ESTABLISHED for 900 s, then RST: 10 s."""
    with World() as w:
        conn = w.new()
        w.play(conn, "in syn SYN_RECV, in ack ESTABLISHED, in rst CLOSE")
        due = w.now + 10 * SECOND
        assert due <= gone_at(w, due - 1, due + SECOND, 1_000_000) <= due + TICK


@pytest.mark.parametrize("sleep", [3 * SECOND, 1024 * SECOND, 5000 * SECOND, 400 * DAY, 100_000 * DAY])
def test_a_long_sleep(sleep: int) -> None:
    """The director was stopped: what is due goes at once, the rest stays."""
    with World() as w:
        w.new()
        stays = w.template(timeout=2**32 - 1)
        w.now += sleep
        assert w.table.expire(w.now) <= 4
        left = w.table.info()
        assert (left["conns"], left["templates"]) == (0, int(sleep < 49 * DAY))
        if left["templates"]:
            assert stays.remaining(w.now) == 2**32 - 1 - sleep // 1_000_000


def test_budget() -> None:
    """At most so many entries at once; the rest by the next call."""
    with World() as w:
        for i in range(25):
            w.new(cport=1 + i)
        w.now += 4 * SECOND
        assert [w.table.expire(w.now, 10) for _ in range(4)] == [10, 10, 5, 0]
        assert w.table.info()["conns"] == 0


def test_a_clock_that_went_back() -> None:
    """Entries of a time that the wheel has passed wait for its next turn, not for a whole round."""
    with World() as w:
        w.table.expire(START + 100 * SECOND)
        w.new()
        w.table.expire(START + 100 * SECOND + TICK)
        assert w.table.info()["conns"] == 0


def test_cascade_while_the_wheel_turns() -> None:
    """A deletion's controller may be due in the same slot."""
    with World() as w:
        template, conn, other = w.template(timeout=3000), w.new(), w.new(cport=9)
        w.table.control_add(conn, template)
        conn.timeout = 0
        w.now += 3 * SECOND
        assert other.flags & ConnFlag.HASHED
        w.table.expire(w.now)
        assert w.table.info()["conns"] == w.table.info()["templates"] == 0
