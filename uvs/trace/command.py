"""The command line of `uvs trace`."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
import shutil
import signal
import stat
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from uvs.control.client import Client, TraceCounts, Unreachable
from uvs.engine.trace import RATE_MAX, TRACERS
from uvs.errors import UserError
from uvs.ipvs.spec import IpvsError
from uvs.ipvs.tracefilter import FilterError, parse
from uvs.top.command import explain
from uvs.trace import pcapng, summary
from uvs.walk import text
from uvs.walk.jsontext import complete

RATE = 20  # walks a second
POLL_S = 0.1  # between two looks for walks
TELL_S = 1.0  # between two words on those that are not shown
COUNT_MAX = 10**9

_EPILOG = """\
FILTER, in the words of pcap-filter:
  client ADDR[/LEN]   service ADDR[:PORT]   server ADDR[:PORT]   of the packet's connection
  host ADDR[/LEN]   port N   ip, ip6   tcp, udp, sctp, icmp, icmp6, proto N   of the packet as it came
  mark N   hook local_in, forward, local_out   verdict accept, drop, stolen   why REASON
  and, or, not, ( ): `and` and `or` bind alike, from the left
without one: every packet. A shell wants quotes around parentheses.

examples:
  uvs trace service 192.0.2.100:80 and verdict drop
  uvs trace 'client 192.0.2.0/24 and (server 198.51.100.11 or why no_dest)'
  uvs trace --summary
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("filter", nargs="*", metavar="FILTER", help="which packets: see below")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="a JSON object a walk and line")
    how.add_argument("--pcap", metavar="F", help="what came and what left, as a capture (pcapng); -: stdout")
    how.add_argument("--summary", action="store_true", help="only tell what was dropped and why, and end")
    add("--rate", type=int, default=RATE, metavar="N", help=f"walks a second, at most (default {RATE})")
    add("--count", type=int, metavar="N", help="end after so many walks")
    add("--seconds", type=float, metavar="S", help="end after so many seconds")


def main(args: argparse.Namespace) -> int:
    """Trace until told to stop. UserError: a wrong filter, no director, a file that cannot be written."""
    words = " ".join(args.filter)
    check(args, words)
    if args.summary:
        tell_summary()
        return 0
    try:
        with Client() as client:
            shown: Shown = Capture(args.pcap) if args.pcap else Lines() if args.json else Texts()
            try:
                Session(client, shown, args).run(words)
            finally:
                shown.close()
    except (Unreachable, IpvsError) as error:
        raise UserError(refusal(error)) from None
    return 0


def check(args: argparse.Namespace, words: str) -> None:
    """UserError: what is wrong with the command line."""
    try:
        parse(words)
    except FilterError as error:
        raise UserError(str(error), 2) from None
    if not 1 <= args.rate <= RATE_MAX:
        raise UserError(f"--rate takes 1..{RATE_MAX} walks a second, not {args.rate}", 2)
    if args.count is not None and not 1 <= args.count <= COUNT_MAX:
        raise UserError(f"--count takes 1..{COUNT_MAX} walks, not {args.count}", 2)
    if args.seconds is not None and not (math.isfinite(args.seconds) and args.seconds > 0):
        raise UserError(f"--seconds takes more than 0, not {args.seconds:g}", 2)
    if args.summary and words:
        raise UserError("--summary tells of all packets: it takes no filter", 2)


def refusal(error: OSError) -> str:
    """In one line why the director does not let us."""
    if isinstance(error, IpvsError) and error.errno == errno.EBUSY:
        return f"{TRACERS} traces run already (an open page of `uvs web` is one): end one of them"
    if isinstance(error, IpvsError) and error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
        return "the director is of another version, and cannot trace this: restart it"
    return explain(error)


def tell_summary() -> None:
    """The table of reasons alone."""
    try:
        with Client() as client:
            reasons = client.counters()
    except (Unreachable, IpvsError) as error:
        raise UserError(explain(error)) from None
    _print(*summary.lines(reasons, "since the director's start", _width(sys.stdout)))


# ------------------------------------------------------------------------------- how it is shown


class Shown(Protocol):
    """Where walks, and words about them, go."""

    def begin(self) -> None:
        """The director traces: walks will come."""

    def walk(self, walk: dict[str, Any]) -> None:
        """One more."""

    def say(self, *lines: str) -> None:
        """Words about them."""

    def flush(self) -> None:
        """So much for now."""

    def close(self) -> None:
        """No more."""


class Texts:
    """On a terminal, or as text."""

    def __init__(self) -> None:
        out = sys.stdout
        self._colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._width = _width(out)
        self._start: int | None = None

    def begin(self) -> None:
        """Nothing stands in front."""

    def walk(self, walk: dict[str, Any]) -> None:
        """As `uvs walk` does; times from the first one on."""
        self._start = walk["time"] if self._start is None else self._start
        _print(text.render(walk, self._colour, self._width, self._start), "")

    def say(self, *lines: str) -> None:
        """Between the walks."""
        _print(*lines)

    def flush(self) -> None:
        """A reader sees it now."""
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is held."""


class Lines:
    """JSON objects; words go to standard error."""

    def begin(self) -> None:
        """Nothing stands in front."""

    def walk(self, walk: dict[str, Any]) -> None:
        """One line."""
        print(json.dumps(walk))

    def say(self, *lines: str) -> None:
        """Not among the objects."""
        _print(*lines, file=sys.stderr)

    def flush(self) -> None:
        """A reader sees it now."""
        sys.stdout.flush()

    def close(self) -> None:
        """Nothing is held."""


class Capture(Lines):
    """A file of both sides."""

    def __init__(self, path: str) -> None:
        """`path`: - is standard output. UserError: it cannot be written."""
        self._path = path
        try:
            self._file: BinaryIO = sys.stdout.buffer if path == "-" else Path(path).open("ab")  # noqa: SIM115
        except OSError as e:
            raise UserError(f"{path}: {e.strerror or e}") from None
        # The director's clock is this machine's.
        self._since = time.time_ns() - time.monotonic_ns()

    def begin(self) -> None:
        """What was in the file goes now: not for a trace that the director refuses."""
        self._written(self._begin)

    def _begin(self) -> None:
        if self._path != "-" and stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            self._file.truncate(0)
        self._writer = pcapng.Writer(self._file)

    def walk(self, walk: dict[str, Any]) -> None:
        """Two packets of it, or more."""
        self._written(lambda: self._writer.add(self._since + walk["time"], walk))

    def flush(self) -> None:
        """A reader sees it now."""
        self._written(self._writer.flush)

    def close(self) -> None:
        """The file is whole."""
        self._written(self._file.flush if self._path == "-" else self._file.close)

    def _written(self, write: Callable[[], None]) -> None:
        """UserError: the disk is full, for instance."""
        try:
            write()
        except BrokenPipeError:
            raise
        except OSError as e:
            raise UserError(f"{self._path}: {e.strerror or e}") from None


def _print(*lines: str, file: Any = None) -> None:
    out = sys.stdout if file is None else file
    for line in lines:
        print(text.fitting(line, out.encoding), file=out)


def _width(out: Any) -> int:
    return max(shutil.get_terminal_size((text.WIDTH, 0)).columns if out.isatty() else text.WIDTH, 60)


# ------------------------------------------------------------------------------- one trace


class Session:
    """A trace from its beginning to its end: a signal, so many walks, so many seconds."""

    def __init__(
        self,
        client: Client,
        shown: Shown,
        args: argparse.Namespace,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client, self._shown, self._clock, self._sleep = client, shown, clock, sleep
        self._rate, self._most = args.rate, args.count
        self._end = math.inf if args.seconds is None else clock() + args.seconds
        self._count = self._told = 0
        self._due = clock() + TELL_S
        self.ended = False

    def run(self, words: str) -> None:
        """Unreachable, IpvsError: the director is gone, or does not let us."""
        before = self._client.counters()
        filter = self._client.trace(words, self._rate)
        self._shown.begin()
        width = _width(sys.stdout)
        self._shown.say(*summary.lines(before, "since the director's start", width))
        each = f"at most {summary.plural(self._rate, 'walk')} a second"
        self._shown.say(f"tracing {filter or 'every packet'}, {each}; Ctrl-C ends it", "")
        self._shown.flush()
        with _Signals(self._stop):
            while not self.ended:
                self._turn()
        reasons = self._client.counters()
        self._more()
        counts = self._client.traced()
        self._say_suppressed(counts)
        self._shown.say(
            f"{summary.plural(counts.matched, 'packet')} matched, {summary.plural(self._count, 'walk')} shown"
        )
        self._shown.say(*summary.lines(summary.since(before, reasons), "during the trace", width))
        self._shown.flush()

    def _stop(self) -> None:
        self.ended = True

    def _turn(self) -> None:
        found = self._more()
        now = self._clock()
        if now >= self._due:
            self._due = now + TELL_S
            self._say_suppressed(self._client.traced())
        if found or now >= self._due:
            self._shown.flush()
        if now >= self._end or (self._most is not None and self._count >= self._most):
            self.ended = True
        elif not self.ended:
            self._sleep(max(min(POLL_S, self._end - now), 0))

    def _more(self) -> bool:
        """What has come, as far as it is wanted."""
        walks = self._client.walks()
        left = len(walks) if self._most is None else self._most - self._count
        for each in walks[:left]:
            self._count += 1
            self._shown.walk(complete(json.loads(each)))
        return bool(walks)

    def _say_suppressed(self, counts: TraceCounts) -> None:
        if more := counts.suppressed - self._told:
            self._told = counts.suppressed
            self._shown.say(f"… {more} more matched, not shown (--rate)")


class _Signals:
    """SIGINT and SIGTERM end the trace in good order."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, lambda *_: self._stop())

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
