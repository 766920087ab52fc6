"""What the programs that stay log, and how: text for people, JSON for machines; never a line a packet.

A message's `extra` goes along as fields, so that machines need not read sentences; those with a field `event`
tell what happened rather than what is wrong, and none of them is left out as a repetition.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

FORMATS = ("text", "json")

# A fault that comes back each second must not fill a disk: of one text so many at once, then one a minute.
TEXT_BURST, TEXT_EVERY_S = 5, 60.0
# Of one line of the source whatever its text, for what a number in the text tells apart.
PLACE_BURST, PLACE_EVERY_S = 500, 1.0
KNOWN_MAX = 1024  # texts and places that are remembered

# sd-daemon(3): the journal takes them from the beginning of a line.
_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The option that these programs share."""
    parser.add_argument(
        "--log-format",
        choices=FORMATS,
        default=FORMATS[0],
        help="what is logged on standard error: lines for people, or a JSON object a line (default text)",
    )


def set_up(form: str = FORMATS[0], stream: TextIO | None = None) -> None:
    """From now on what is logged goes to `stream` (standard error), from INFO upwards."""
    stream = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        JsonFormatter() if form == "json" else JournalFormatter() if is_journal(stream) else TextFormatter()
    )
    handler.addFilter(Repetitions())
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)


def is_journal(stream: TextIO) -> bool:
    """Does `stream` lead to the journal? JOURNAL_STREAM (systemd.exec(5)) names its device and inode."""
    try:
        device, inode = os.environ.get("JOURNAL_STREAM", "").split(":")
        found = os.fstat(stream.fileno())
        return (found.st_dev, found.st_ino) == (int(device), int(inode))
    except (OSError, ValueError):
        return False


class TextFormatter(logging.Formatter):
    """`uvs: what`, and after it how often it was left out."""

    def __init__(self, prefix: str = "uvs: ") -> None:
        super().__init__(f"{prefix}%(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        text = super().formatMessage(record)
        left_out = getattr(record, "left_out", 0)
        return f"{text} ({left_out} more of these were not logged)" if left_out else text


class JournalFormatter(TextFormatter):
    """Each line begins with its priority; who speaks, and when, the journal knows."""

    def __init__(self) -> None:
        super().__init__("")

    def format(self, record: logging.LogRecord) -> str:
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        return "\n".join(f"<{priority}>{line}" for line in super().format(record).split("\n"))


class JsonFormatter(logging.Formatter):
    """An object a line: time (RFC 3339, UTC), level, component, message, and the message's fields."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        row: dict[str, object] = {
            "time": when.replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "component": "director" if record.name == "uvs" else record.name.removeprefix("uvs."),
            "message": record.getMessage(),
        }
        row |= {name: value for name, value in vars(record).items() if name not in _OWN and name not in row}
        if record.exc_info:
            row["exception"] = self.formatException(record.exc_info)
        return json.dumps(row, default=str)


class Repetitions:
    """A filter of log records: of what comes again and again one passes now and then, with their number."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._known: OrderedDict[object, _Bucket] = OrderedDict()

    def filter(self, record: logging.LogRecord) -> bool:
        """May it be logged?"""
        now = self._clock()
        place = record.pathname, record.lineno
        buckets = [self._bucket(place, PLACE_BURST, PLACE_EVERY_S, now)]
        if "event" not in vars(record):
            buckets.append(self._bucket((place, record.getMessage()), TEXT_BURST, TEXT_EVERY_S, now))
        if not all(bucket.full(now) for bucket in buckets):
            buckets[-1].left_out += 1
            return False
        for bucket in buckets:
            bucket.tokens -= 1
        if left_out := buckets[-1].left_out:
            buckets[-1].left_out = 0
            record.left_out = left_out
        return True

    def _bucket(self, key: object, burst: int, every_s: float, now: float) -> _Bucket:
        bucket = self._known.pop(key, None) or _Bucket(burst, every_s, now)
        self._known[key] = bucket
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return bucket


class _Bucket:
    """Tokens: each that is logged takes one, and one comes every so many seconds."""

    __slots__ = ("at", "burst", "every_s", "left_out", "tokens")

    def __init__(self, burst: int, every_s: float, now: float) -> None:
        self.burst, self.every_s, self.at = burst, every_s, now
        self.tokens, self.left_out = float(burst), 0

    def full(self, now: float) -> bool:
        self.tokens = min(self.burst, self.tokens + (now - self.at) / self.every_s)
        self.at = now
        return self.tokens >= 1
