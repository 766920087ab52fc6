"""What a director does beside its packets, now and then: in slices, so that they wait little."""

from __future__ import annotations

import asyncio
import gc
import logging
import time
from collections.abc import Callable, Iterable

log = logging.getLogger("uvs")

SLICE_S = 0.002


def every(loop: asyncio.AbstractEventLoop, period: float, work: Callable[[], None]) -> Callable[[], None]:
    """Do `work` every `period` seconds; returns what ends it."""

    def turn() -> None:
        timers[0] = loop.call_later(period, turn)
        try:
            work()
        except Exception:  # a failing chore must not stop the next one
            log.exception("%s failed", work.__name__)

    timers = [loop.call_later(period, turn)]
    return lambda: timers[0].cancel()


def spare_collector() -> None:
    """Keep the garbage collector from what stays: it looks at everything it knows, packets waiting meanwhile.

    A service with its servers is no cycle and goes without it. It costs what has come since the last time.
    """
    gc.collect()
    gc.freeze()


def in_slices(steps: Iterable[None]) -> None:
    """Take the steps of a chore, packets having their turn after each slice of time."""
    left = iter(steps)

    def turn() -> None:
        end = time.monotonic() + SLICE_S
        for _ in left:
            if time.monotonic() >= end:
                asyncio.get_running_loop().call_soon(turn)
                return

    turn()
