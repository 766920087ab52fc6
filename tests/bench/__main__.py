"""`scripts/bench`: measures uvs beside its peers, in labs of its own."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from bench import page, plots, report
from bench.peers import peers
from bench.plan import INTERRUPTED, NAMES, Run, commands
from bench.results import Results, about
from bench.work import FULL, QUICK, Pace

ROOT = Path(__file__).parents[2]
OUT = ROOT / "build/bench"
BUSY = 0.25  # load for each processor

_EPILOG = f"""\
works (--only): {", ".join(NAMES)}
peers (--peers): {", ".join(peer.name for peer in peers())}

A full run takes up to 20 minutes, --quick less than two; a busy machine makes figures worthless. Figures are written
as JSON and plots as SVG: by a full run into docs/performance (plots) and build/bench (figures), by --quick, --only and
--peers into build/bench only; --write-docs fills docs/performance in, tables, figures and plots together.
Needs no root (namespaces of its own), but without it queues have the small buffers that the host allows, which
costs packets. Everything it starts ends with it, on Ctrl-C too.
exit status: 0 all was measured, 1 something could not run (the table says what), 2 wrong use, 130 interrupted (what was
measured until then is printed, nothing is written)
"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(
        prog="scripts/bench", description="Measure uvs beside its peers, in labs of its own.",
        epilog=_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    made.add_argument("--quick", action="store_true", help="everything once, short")
    made.add_argument(
        "--only", metavar="WORK,...", type=words(NAMES), default=list(NAMES), help="these works"
    )
    known = [peer.name for peer in peers()]
    made.add_argument("--peers", metavar="PEER,...", type=words(known), default=known, help="these peers")
    made.add_argument("--rounds", metavar="N", type=rounds, help="how often (default 3, with --quick 1)")
    made.add_argument(
        "--uvs-options",
        metavar="WORDS",
        type=shlex.split,
        default=[],
        help="more options for `uvs run --driver native`",
    )
    made.add_argument("--json", metavar="FILE", type=Path, help="figures (default build/bench/figures.json)")
    made.add_argument("--plots", metavar="DIR", type=Path, help="where plots go")
    made.add_argument(
        "--write-docs", action="store_true", help="write tables, figures and plots into docs/performance"
    )
    made.add_argument(
        "--from", dest="given", metavar="FILE", type=Path, help="measure nothing: figures of an earlier run"
    )
    return made


def rounds(text: str) -> int:
    """How many, for argparse."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"invalid int value: {text!r}") from None
    if number < 1:
        raise argparse.ArgumentTypeError(f"at least 1, not {number}")
    return number


def words(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A list of known words, for argparse."""

    def parse(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",")]
        if unknown := [word for word in found if word not in known]:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}: one of {', '.join(known)}")
        return found

    return parse


def chosen_pace(args: argparse.Namespace) -> Pace:
    """Full or quick, with so many rounds; peers that were asked for are not spared."""
    pace = QUICK if args.quick else FULL
    if args.rounds:
        pace = replace(pace, rounds=args.rounds, flood_rounds=args.rounds)
    return replace(pace, sparing=pace.sparing and len(args.peers) == len(peers()))


def measured(args: argparse.Namespace, argv: Sequence[str]) -> Results:
    """A run's figures. The labs end with this process, however it ends."""
    from bench.stand import compile_programs

    pace = chosen_pace(args)
    told = about(
        ["scripts/bench", *argv], rounds=pace.rounds, commands=commands(pace), uvs_options=args.uvs_options
    )
    if told["load at the beginning"] > BUSY * told["processors"]:
        print(f"note: the load is {told['load at the beginning']:.1f}: figures mean little", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="uvs-bench-"))
    try:
        run = Run(pace, compile_programs(folder), Results(told), tuple(args.uvs_options))
        run.everything(args.only, [peer for peer in peers(args.uvs_options) if peer.name in args.peers])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return run.results


def interrupted(*_: object) -> NoReturn:
    """SIGTERM and SIGHUP end it as Ctrl-C does."""
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    """Measure, print, write."""
    args = parser().parse_args(argv)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    earlier = json.loads(args.given.read_text()) if args.given else None
    results = Results.from_json(earlier) if earlier else measured(args, argv)
    print(report.text(results))
    if INTERRUPTED in results.failures and not earlier:
        return 130
    written = []
    if not args.given or args.json:
        written.append(args.json or OUT / "figures.json")
        written[0].parent.mkdir(parents=True, exist_ok=True)
        written[0].write_text(json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n")
    whole = not args.quick and args.only == list(NAMES) and len(args.peers) == len(peers())
    if args.write_docs:
        written += page.write(results)
    elif not plots.available():
        print("no plots: matplotlib is not installed (pip install 'uvs[bench]')", file=sys.stderr)
    elif args.plots or not args.given:
        written += plots.draw(results, args.plots or (page.FOLDER if whole else OUT))
    print("\nwritten:", ", ".join(str(path) for path in written) or "nothing")
    return 1 if results.failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
