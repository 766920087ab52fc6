"""The one clock of packets and time-outs (`csrc/clock.c`), which C and Python read alike."""

from __future__ import annotations

import time
from collections.abc import Callable

from uvs.engine.binding import lib


def clock(rate: int = 1) -> Callable[[], int]:
    """CLOCK_MONOTONIC in ns, `rate` times as fast: tests have time-outs run out sooner."""
    return time.monotonic_ns if rate == 1 else lambda: lib.uvs_now(rate)
