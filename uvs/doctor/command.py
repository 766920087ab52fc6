"""`uvs doctor`: the findings as text or JSON, and the exit status."""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

from uvs.doctor.examination import examine
from uvs.doctor.finding import HERE, Finding
from uvs.doctor.machine import lacks_all_privileges
from uvs.doctor.system import System, Unprivileged


def report(findings: list[Finding], colour: bool) -> str:
    """The findings as lines for people; what mends one stands below it."""
    colours = {"ok": "32", "note": "36", "warn": "33", "fail": "31"}
    lines = []
    for f in findings:
        state = f"\x1b[{colours[f.state]}m{f.state:4}\x1b[0m" if colour else f"{f.state:4}"
        lines.append(f"{state}  {f.name}: {f.detail}")
        if f.mend and f.state != "ok":
            where = f"on {f.on}: " if f.on not in (None, HERE) else ""
            lines.append(f"      -> {where}{f.mend}")
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 if something stands in a director's way (fail), else 0."""
    system = System()
    findings = examine(Unprivileged() if lacks_all_privileges(system) else system)
    if args.json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        print(report(findings, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return 1 if any(f.state == "fail" for f in findings) else 0
