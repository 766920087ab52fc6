"""What follows from results: tables of runs, a second apart, and what the server is after each."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter

from uvs.config.checks import Check, Fault
from uvs.health.checks.base import Result
from uvs.health.state import CheckState, Quorum, Server, State, begin

CHECK: TypeAdapter[Any] = TypeAdapter(Check)
GOOD, BAD = Result(True, "connected"), Result(False, "connection refused")
UNABLE = Result(False, "too many open files", counts=False)
RUNS = {"+": GOOD, "-": BAD, "?": UNABLE}


def tcp(**settings: Any) -> Any:
    return CHECK.validate_python({"type": "tcp"} | settings)


def play(server: Server, runs: str, now: float = 0.0) -> str:
    """The states after each run of `tcp`, as letters."""
    told = ""
    for run in runs:
        now += 1
        server.take(now, "tcp", RUNS[run])
        told += server.state.value[0]
    return told


@pytest.mark.parametrize(
    ("rise", "fall", "runs", "states"),
    [
        (2, 3, "++++", "OOOO"),
        (2, 3, "-", "F"),  # the very first: nothing is known of it yet
        (2, 3, "-++", "FFO"),
        (2, 3, "+--+", "ODDO"),
        (2, 3, "+---", "ODDF"),
        (2, 3, "+---+-++", "ODDFFFFO"),
        (2, 3, "+-+-+-", "ODODOD"),
        (1, 1, "+-+-", "OFOF"),
        (2, 3, "+?--?-?+?+", "OODDDFFFFO"),  # what says nothing does not count
        (2, 3, "?-", "OF"),
    ],
)
def test_rise_and_fall(rise: int, fall: int, runs: str, states: str) -> None:
    server = begin(0.0, {"tcp": tcp(rise=rise, fall=fall)})
    assert play(server, runs) == states


def test_it_is_up_when_all_its_checks_are() -> None:
    server = begin(0.0, {"tcp": tcp(fall=1, rise=1), "http": tcp(fall=1, rise=1)})
    server.take(1, "tcp", GOOD)
    server.take(2, "http", BAD)
    assert (server.up, server.reason) == (False, "http check: connection refused")
    server.take(3, "tcp", BAD)
    server.take(4, "http", GOOD)
    assert not server.up
    server.take(5, "tcp", GOOD)
    assert (server.up, server.state, server.since) == (True, State.OK, 5)


def test_the_history_tells_the_changes_and_is_bounded() -> None:
    server = begin(0.0, {"tcp": tcp(fall=1, rise=1)}, kept=3)
    play(server, "-+-+-")
    assert [(c.at, c.before, c.after) for c in server.history] == [
        (3, "OK", "FAULTED"), (4, "FAULTED", "OK"), (5, "OK", "FAULTED"),
    ]  # fmt: skip
    assert server.history[-1].reason == "tcp check: connection refused"


def test_a_commands_weight_stays_until_it_says_another() -> None:
    settings = CHECK.validate_python(
        {"type": "command", "command": "x", "weight": True, "fall": 1, "rise": 1}
    )
    server = begin(0.0, {"command": settings})
    weights = []
    for result in (GOOD, Result(True, "", 10), GOOD, BAD, GOOD, Result(True, "", 0)):
        server.take(1, "command", result)
        weights.append(server.weight)
    assert weights == [None, 10, 10, 10, 10, 0]
    begin(2.0, {"tcp": tcp()}, old=server)
    assert server.weight is None  # no check says one any more


# ---------------------------------------------------------------------------- fault monitor


def fault(count: int = 3, interval: float = 10.0, restart: str | None = "restart") -> Fault:
    return Fault(retry_count=count, retry_interval=interval, restart=restart)


@pytest.mark.parametrize(
    ("retry_count", "interval", "runs", "states"),
    [
        (3, 10, "+-+-+-", "ODDDDF"),  # never two in a row
        (3, 10, "+-+-+-++-", "ODDDDFFOD"),  # once it is back, the count begins anew
        (3, 3, "+-+-++++-", "ODDDDDOOD"),  # what is older than the window is forgotten
        (1, 10, "+-", "OF"),
        (9, 10, "+---", "ODDF"),  # `fall` holds all the same
    ],
)
def test_failures_within_the_window(retry_count: int, interval: float, runs: str, states: str) -> None:
    server = begin(0.0, {"tcp": tcp()}, fault(retry_count, interval, None))
    assert play(server, runs) == states


def restarts(server: Server, runs: str, now: float = 0.0) -> str:
    told = ""
    for run in runs:
        now += 1
        wanted = server.take(now, "tcp", RUNS[run])
        told += "r" if wanted else "."
        if wanted:
            server.restarted(now, None)
    return told


def test_below_the_count_it_may_be_restarted_at_it_is_taken_out() -> None:
    server = begin(0.0, {"tcp": tcp(fall=9)}, fault(3))
    assert restarts(server, "+---") == ".rr."
    assert (server.state, server.up) == (State.FAULTED, False)
    assert server.reason == "tcp check: connection refused, 3 failures within 10 s"


def test_while_it_is_restarted_nothing_is_counted_but_fall() -> None:
    server = begin(0.0, {"tcp": tcp(fall=5)}, fault(2))
    assert server.take(1, "tcp", GOOD) is False
    assert server.take(2, "tcp", BAD) is True
    assert play(server, "---", 2) == "DDD"
    assert server.restarting
    assert play(server, "-", 5) == "F"


def test_a_restart_that_is_refused_resets_the_history_and_is_not_repeated_at_once() -> None:
    server = begin(0.0, {"tcp": tcp(fall=99)}, fault(3, 10))
    play(server, "+")
    assert server.take(2, "tcp", BAD)
    server.restarted(2, "exit status 1")
    assert not server.failures
    assert server.reason == "restart: exit status 1"
    assert [server.take(now, "tcp", BAD) for now in (3, 4)] == [False, False]
    assert (server.state, len(server.failures)) == (State.DEGRADED, 2)
    server.take(4.5, "tcp", GOOD)
    assert server.take(14, "tcp", BAD) is True


def test_a_director_that_refuses_resets_the_history() -> None:
    """The server is still in service, and is said to be; the next attempt comes after `fall` failures again."""
    server = begin(0.0, {"tcp": tcp()})
    assert play(server, "+---") == "ODDF"
    server.not_applied(4, True, "the director refuses: no such process")
    assert (server.up, server.state) == (True, State.OK)
    assert server.reason == "the director refuses: no such process"
    assert play(server, "---", 4) == "DDF"


def test_a_director_that_refuses_to_take_it_back() -> None:
    server = begin(0.0, {"tcp": tcp()})
    assert play(server, "-++") == "FFO"
    server.not_applied(3, False, "the director refuses: no such process")
    assert (server.up, server.state) == (False, State.FAULTED)
    assert play(server, "++", 3) == "FO"


def test_a_process_that_ends_is_no_matter_of_counting() -> None:
    server = begin(0.0, {"tcp": tcp()}, fault(3))
    play(server, "+")
    assert server.process_ended(1.5, "process 7 (nginx) has ended") is True
    assert (server.state, server.reason) == (State.FAULTED, "process 7 (nginx) has ended")
    server.restarted(1.6, None)
    assert play(server, "+", 2) == "F"
    assert play(server, "+", 3) == "D"  # back; the failure is still in the window
    assert server.process_ended(5, "again") is True
    server.restarted(5, None)
    play(server, "++", 5)
    assert server.process_ended(8, "and again") is False
    assert server.reason == "and again, 3 failures within 10 s"


# ---------------------------------------------------------------------------- reload


def test_unchanged_checks_go_on_as_they_were() -> None:
    server = begin(0.0, {"tcp": tcp()})
    play(server, "+--")
    begin(3.0, {"tcp": tcp()}, old=server, same={"tcp"})
    assert play(server, "-", 3) == "F"


@pytest.mark.parametrize("down", [True, False])
def test_a_changed_check_begins_as_the_server_is(down: bool) -> None:
    """No dead server comes back by it, and no living one goes by a single failure."""
    server = begin(0.0, {"tcp": tcp()})
    play(server, "-" if down else "+")
    begin(3.0, {"tcp": tcp(interval=9.0), "http": tcp()}, old=server)
    assert server.up is not down
    assert play(server, "-", 3) == ("F" if down else "D")


def test_a_server_that_is_down_already_stays_so() -> None:
    server = begin(0.0, {"tcp": tcp()}, up=False)
    assert (server.state, server.reason) == (State.FAULTED, "out of service already")
    assert play(server, "-") == "F"
    assert (server.reason, len(server.history)) == ("tcp check: connection refused", 0)
    assert play(server, "++") == "FO"


def test_the_first_run_says_why_it_is_well() -> None:
    server = begin(0.0, {"tcp": tcp()})
    assert server.reason == "not checked yet"
    play(server, "+")
    assert (server.reason, len(server.history)) == ("tcp check: connected", 0)


# ---------------------------------------------------------------------------- slow start, quorum


@pytest.mark.parametrize(("after", "share"), [(0, 0.1), (2, 0.2), (5, 0.5), (10, 1.0), (99, 1.0)])
def test_slow_start(after: float, share: float) -> None:
    server = begin(0.0, {"tcp": tcp(rise=1)})
    play(server, "-+")
    assert server.share(2 + after, 10) == pytest.approx(share)


def test_a_server_that_was_never_away_has_its_whole_weight() -> None:
    server = begin(0.0, {"tcp": tcp()})
    play(server, "++")
    assert server.share(1, 10) == 1.0


@pytest.mark.parametrize(
    ("quorum", "hysteresis", "weights", "ups"),
    [
        (1, 0, [2, 1, 0, 1], "uudu"),
        (3, 1, [3, 2, 1, 2, 3, 4, 3, 2, 1], "uuddduuud"),
        (2, 0, [1], "d"),
    ],
)
def test_quorum(quorum: int, hysteresis: int, weights: list[int], ups: str) -> None:
    it = Quorum(quorum, hysteresis)
    told = ""
    for weight in weights:
        before = it.up
        assert it.take(weight) is (it.up != before)
        told += "u" if it.up else "d"
    assert told == ups


def test_a_quorum_that_all_servers_have_comes_back_whatever_the_hysteresis() -> None:
    """Two servers, or the fallback would serve for ever; a quorum that they never have is never back."""
    it = Quorum(2, 1)
    assert [it.take(weight, 2) and it.up for weight in (1, 0, 1, 2)] == [False, False, False, True]
    it = Quorum(3, 1)
    assert [it.take(weight, 2) and it.up for weight in (1, 2)] == [False, False]
    assert not it.up


def test_a_check_that_is_new() -> None:
    check = CheckState(2, 3)
    check.take(1.0, BAD)
    assert (check.up, check.new, check.last) == (False, False, BAD)
