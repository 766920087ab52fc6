"""Asks a kernel with ip_vs, and keeps what it says: `scripts/kernel-oracle`.

On a machine that has ip_vs (and as root) the scenarios are played there, in network namespaces; elsewhere in the virtual
machine of `tests/kernel/vm`, which boots Debian's kernel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from support.scenario import script
from support.vm import MACHINE, ROOT, environment

SCENARIOS = Path(__file__).parent / "scenarios"


def in_machine(files: list[str], kind: str, limit: int) -> Iterator[str]:
    """Lines of `support.scenario.record` from the virtual machine."""
    with tempfile.TemporaryDirectory(prefix="uvs-oracle-") as folder:
        variables = environment(Path(folder))
        words = [str(MACHINE), "--timeout", str(limit), "--", "env", *(f"{k}={v}" for k, v in variables.items()),
                 sys.executable, "-S", "-P", "-m", "support.scenario.record", kind, *files]  # fmt: skip
        yield from _lines(words)


def here(files: list[str], kind: str) -> Iterator[str]:
    """The same on this machine."""
    words = [sys.executable, "-P", "-m", "support.scenario.record", kind, *files]
    yield from _lines(
        words, {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "tests"), *filter(None, sys.path)])}
    )


def _lines(words: list[str], env: dict[str, str] | None = None) -> Iterator[str]:
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env, cwd=ROOT) as child:
        assert child.stdout is not None
        yield from child.stdout


def has_ip_vs() -> bool:
    """Is there ip_vs here, for us?"""
    if os.geteuid():
        return False
    if Path("/proc/net/ip_vs").exists():
        return True
    return subprocess.run(["modprobe", "-q", "ip_vs"], check=False).returncode == 0


def main() -> int:
    """Compare, or record."""
    parser = argparse.ArgumentParser(
        prog="scripts/kernel-oracle",
        description="Play the scenarios of tests/kernel/scenarios on a kernel with ip_vs and compare with what is recorded.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios (all)")
    parser.add_argument("--record", action="store_true", help="write what the kernel answers into the files")
    parser.add_argument("--uvs", action="store_true", help="play on `uvs run` instead, in namespaces here")
    parser.add_argument("--list", action="store_true", help="names and what each shows")
    parser.add_argument(
        "--limit", type=int, default=1800, metavar="SECONDS", help="for the virtual machine (1800)"
    )
    args = parser.parse_args()
    found = {path.stem: path for path in sorted(SCENARIOS.glob("*.txt"))}
    if args.list:
        for name, path in found.items():
            print(f"{name:24} {script.load(path).title}")
        return 0
    unknown = [name for name in args.names if name not in found]
    if unknown:
        parser.error(f"no scenario {unknown[0]}; --list names them")
    if args.record and args.uvs:
        parser.error("only the kernel is recorded")
    files = [str(found[name].relative_to(ROOT)) for name in args.names or found]
    kind = "uvs" if args.uvs else "kernel"
    lines = here(files, kind) if args.uvs or has_ip_vs() else in_machine(files, kind, args.limit)
    return _judge(lines, len(files), kind, args.record)


def _each(answers: Iterator[list[str]]) -> Callable[[script.Step], list[str]]:
    return lambda _: next(answers)


def _judge(lines: Iterator[str], count: int, kind: str, record: bool) -> int:
    good = 0
    for line in lines:
        try:
            told = json.loads(line)
            path = ROOT / told["file"]
        except (ValueError, KeyError):
            print(line, end="", file=sys.stderr)
            continue
        if "error" in told:
            print(f"{path.stem}: {told['error']}")
            continue
        answers = iter(told["answers"])
        scenario = script.load(path)
        if record:
            path.write_text(scenario.text(answers))
            print(f"{path.stem}: recorded", flush=True)
            good += 1
            continue
        wrong = script.differences(scenario, _each(answers), kind == "kernel")
        print("\n".join([f"{path.stem}: {'differs' if wrong else 'ok'}", *wrong]), flush=True)
        good += not wrong
    print(f"{good} of {count} {'recorded' if record else 'as the kernel'}")
    return int(good != count)


if __name__ == "__main__":
    sys.exit(main())
