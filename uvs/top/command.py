"""The command line of `uvs top`."""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec

from uvs.control.client import Unreachable
from uvs.errors import UserError
from uvs.ipvs.spec import IpvsError
from uvs.top import text
from uvs.top.model import Model
from uvs.top.source import Source, rest

INTERVAL_S = 2.0  # as often as the director looks at its counters
INTERVALS = 0.1, 3600.0

_EPILOG = """\
keys:
  arrows, PgUp, PgDn, Home, End   another row
  a, c, p, b, n     sort by active connections, connections, packets or bytes a second, name;
                    by the same again: the other way round
  /                 show what has these words in its name (Esc: everything)
  Enter, x          hide or show the servers of a service, of all
  Space             pause
  q, Ctrl-C         quit
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--interval",
        type=float,
        default=INTERVAL_S,
        metavar="S",
        help=f"seconds between two looks (default {INTERVAL_S:g}); more where answers take long",
    )
    parser.add_argument("--once", action="store_true", help="look once, and print it as plain text")
    parser.add_argument("--json", action="store_true", help="a JSON object a line for each look")


def main(args: argparse.Namespace) -> int:
    """Look until told to stop. UserError: no director, no terminal."""
    least, most = INTERVALS
    if not (math.isfinite(args.interval) and least <= args.interval <= most):
        raise UserError(f"--interval takes {least:g}..{most:g} seconds, not {args.interval:g}", 2)
    if not (args.once or args.json):
        check_terminal()
    source = Source()
    try:
        first = source.take()
    except (Unreachable, IpvsError) as error:
        raise UserError(explain(error)) from None
    model = Model()
    model.take(first)
    if args.json:
        print(text.json_line(first), flush=True)
        if not args.once:
            follow(source, args.interval, first.took)
    elif args.once:
        for line in text.lines(model):
            print(line)
    else:
        from uvs.top.view import Top

        Top(source, model, args.interval).run(
            mouse=False
        )  # so that the terminal can still copy what it shows
    return 0


def follow(source: Source, interval: float, took: float, sleep: Callable[[float], None] = time.sleep) -> None:
    """Print an object for each further look, for ever; one with `error` while no director answers."""
    while True:
        sleep(rest(interval, took))
        try:
            snapshot = source.take()
        except (Unreachable, IpvsError) as error:
            took = 0.0
            print(text.json_absence(time.time(), explain(error)), flush=True)
        else:
            took = snapshot.took
            print(text.json_line(snapshot), flush=True)


def explain(error: OSError) -> str:
    """In one line why the director was not to be asked."""
    if isinstance(error, IpvsError):
        return f"the director refused it ({error.strerror}): only those who may control it may look"
    return error.strerror or str(error)


def check_terminal() -> None:
    """UserError unless the view can be drawn."""
    if find_spec("textual") is None:
        raise UserError("the terminal view needs textual: pip install 'uvs[top]'; without it: --once, --json")
    # textual reads from standard input and draws on standard error
    if not all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)):
        raise UserError("this is no terminal: for files and pipes there are --once and --json", 2)
