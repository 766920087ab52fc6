"""What is logged: three forms, and a fault that comes again and again does not fill a disk."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
from collections.abc import Callable, Iterator

import pytest

from uvs import logs

log = logging.getLogger("uvs.netfilter.driver")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], io.StringIO]]:
    """Sets logging up for a form; everything is as before at the end."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level

    def set_up(form: str) -> io.StringIO:
        stream = io.StringIO()
        logs.set_up(form, stream)
        return stream

    yield set_up
    root.handlers[:] = before
    root.setLevel(level)


def test_text(said: Callable[[str], io.StringIO]) -> None:
    stream = said("text")
    log.debug("not this")
    log.info("%s ready", "0.1.0", extra={"event": "ready"})
    log.warning("the rules were gone")
    assert stream.getvalue() == "uvs: 0.1.0 ready\nuvs: the rules were gone\n"


def test_json(said: Callable[[str], io.StringIO]) -> None:
    stream = said("json")
    log.info("%s ready", "0.1.0", extra={"event": "ready", "queue": 3, "addresses": ("a", b"b")})
    try:
        raise ValueError("two\nlines")
    except ValueError:
        log.exception("it failed")
    logging.getLogger("uvs").error("the director's own")
    first, second, third = map(json.loads, stream.getvalue().splitlines())
    assert first.pop("time")[-5:-4] == "."
    assert first == {
        "level": "info",
        "component": "netfilter.driver",
        "message": "0.1.0 ready",
        "event": "ready",
        "queue": 3,
        "addresses": ["a", "b'b'"],
    }
    assert second["exception"].endswith("ValueError: two\nlines")
    assert third["component"] == "director"


def test_times_of_json_are_utc() -> None:
    record = logging.makeLogRecord({"name": "uvs", "msg": "x", "levelname": "INFO", "created": 1.5})
    assert json.loads(logs.JsonFormatter().format(record))["time"] == "1970-01-01T00:00:01.500Z"


@pytest.mark.parametrize(
    ("level", "priority"), [("INFO", 6), ("WARNING", 4), ("ERROR", 3), ("CRITICAL", 2), ("DEBUG", 7)]
)
def test_each_line_in_the_journal_has_its_priority(level: str, priority: int) -> None:
    record = logging.makeLogRecord({"msg": "two\nlines", "levelno": logging.getLevelName(level)})
    assert logs.JournalFormatter().format(record) == f"<{priority}>two\n<{priority}>lines"


def test_the_journal_is_known_by_its_stream(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    found = os.fstat(2)
    with open(2, "w", closefd=False) as stream:
        for value, journal in (
            (f"{found.st_dev}:{found.st_ino}", True),
            (f"{found.st_dev}:{found.st_ino + 1}", False),
            ("", False),
            ("8", False),
            ("a:b", False),
        ):
            monkeypatch.setenv("JOURNAL_STREAM", value)
            assert logs.is_journal(stream) is journal
    assert not logs.is_journal(io.StringIO())  # it has no descriptor
    assert sys.stderr is not None


# ---- repetitions


def record(text: str, line: int = 1, **fields: object) -> logging.LogRecord:
    return logging.makeLogRecord({"name": "uvs", "msg": text, "pathname": "a.py", "lineno": line, **fields})


def test_what_comes_each_second_is_logged_once_a_minute() -> None:
    clock = Clock()
    repetitions = logs.Repetitions(clock)
    passed = []
    for second in range(600):
        clock.now = 1000.0 + second
        each = record("nft failed: tried again every second")
        if repetitions.filter(each):
            passed.append((second, getattr(each, "left_out", 0)))
    assert [second for second, _ in passed[: logs.TEXT_BURST]] == list(range(logs.TEXT_BURST))
    assert len(passed) == logs.TEXT_BURST + 9
    assert {left_out for _, left_out in passed[logs.TEXT_BURST + 1 :]} == {59}
    clock.now += 3600
    fresh = record("nft failed: tried again every second")
    assert repetitions.filter(fresh)  # and says how many were left out at the end


def test_other_texts_other_places_and_events_are_not_repetitions() -> None:
    clock = Clock()
    repetitions = logs.Repetitions(clock)
    assert all(repetitions.filter(record(f"server {i} is gone")) for i in range(100))
    assert all(repetitions.filter(record("the same", line)) for line in range(100))
    assert all(repetitions.filter(record("rs1 is gone", 200, event="gone")) for _ in range(100))


def test_a_place_whose_texts_differ_is_bounded_too() -> None:
    clock = Clock()
    repetitions = logs.Repetitions(clock)
    assert sum(repetitions.filter(record(f"event {i}", event="x")) for i in range(10_000)) == logs.PLACE_BURST
    clock.now += 10
    assert sum(repetitions.filter(record(f"again {i}", event="x")) for i in range(10_000)) == 10
    assert len(repetitions._known) <= logs.KNOWN_MAX


def test_how_often_it_was_left_out_is_said() -> None:
    each = record("it failed", left_out=58)
    assert logs.TextFormatter().format(each) == "uvs: it failed (58 more of these were not logged)"
    assert json.loads(logs.JsonFormatter().format(each))["left_out"] == 58
