"""Tests that run in a process of other rights, or on another kernel."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider")


def passes(enter: Sequence[str | Path], *selection: str, flags: Sequence[str] = ()) -> str:
    """Run pytest by a command that enters that place (`flags`: Python's); what it said. It must pass something."""
    done = subprocess.run(
        [*enter, sys.executable, *flags, *PYTEST, *selection],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout, done.stdout[-3000:]
    return done.stdout
