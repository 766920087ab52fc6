"""Telling the service manager: sd_notify(3) and its watchdog, sd_watchdog_enabled(3)."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence

log = logging.getLogger("uvs")

PATIENCE_S = 1.0  # a manager that does not read must not keep packets waiting
FEEDINGS = 4  # within the time that the manager waits for one


def notify(message: str, patience: float = PATIENCE_S) -> None:
    """sd_notify(3), such as `READY=1`; nothing happens where nobody listens, or not any more.

    `patience`: seconds that it may wait for room.
    """
    if address := os.environ.get("NOTIFY_SOCKET"):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s,
        ):
            s.settimeout(patience)
            s.connect("\0" + address[1:] if address.startswith("@") else address)
            s.send(message.encode())


def watchdog_s() -> float | None:
    """Seconds within which the manager wants to hear of this process; None: it does not watch."""
    try:
        usec = int(os.environ.get("WATCHDOG_USEC", "0"))
        pid = int(os.environ.get("WATCHDOG_PID") or os.getpid())
    except ValueError:
        return None
    return usec / 1e6 if usec > 0 and pid == os.getpid() else None


class Watchdog:
    """Says WATCHDOG=1 for the loop that calls `feed`, and for threads, as long as each of them goes round.

    `turns`: how often each thread went round. While one stands still nothing is said, and after `limit`
    seconds of that the manager ends the process.
    """

    def __init__(
        self, limit: float, turns: Callable[[], Sequence[int]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.period = limit / FEEDINGS
        self._late = limit / 2
        self._turns, self._clock = turns, clock
        self._seen: Sequence[int] = ()
        self._fed = clock()
        self._told = False

    def feed(self) -> None:
        """One turn of the loop has been made."""
        turns = self._turns()
        still = [i for i, (now, before) in enumerate(zip(turns, self._seen, strict=False)) if now == before]
        if not still:
            self._seen, self._fed, self._told = turns, self._clock(), False
            notify("WATCHDOG=1", 0)  # the next one says the same
        elif not self._told and self._clock() - self._fed >= self._late:
            self._told = True
            log.error(
                "thread %d of the queues has stood still for %.0f s: the watchdog is told nothing more",
                still[0], self._clock() - self._fed,
            )  # fmt: skip
