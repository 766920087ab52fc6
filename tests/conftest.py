"""Tests see the installed package, also where the checkout is the present folder: it has no extension modules.

With UVS_SANITIZE they see one whose C is under sanitizers (support.sanitized): `address,undefined`, or `thread`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

ROOT = str(Path(__file__).parents[1])
sys.path[:] = [p for p in sys.path if p and os.path.abspath(p) != ROOT]
os.environ["PYTHONSAFEPATH"] = "1"  # and so do the programs that they start


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """The run that was asked for, in another process."""
    if kind := os.environ.pop("UVS_SANITIZE", ""):
        from support import sanitized  # found by the configuration, which is read by now

        if kind not in sanitized.KINDS:
            raise pytest.UsageError(f"UVS_SANITIZE is one of {', '.join(sanitized.KINDS)}, not {kind}")
        return sanitized.pytest(kind, config.invocation_params.args)
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """A program that is called in a test's own process logs to that test's standard error: not after it."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    found = yield
    root.handlers[:] = before
    root.setLevel(level)
    return found
