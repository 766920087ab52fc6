"""When the table is saved: changes before they are acknowledged, the rest beside the packets.

A change is written to the journal at once, which outlives the director. Once a second a thread brings the
journal to the disk, which outlives the machine. A long journal is made a table in small steps.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from uvs.control.genetlink import log
from uvs.control.paths import private_directory
from uvs.control.state import SavedTable
from uvs.ipvs.skb import NetnsIpvs

AGAIN_S, AGAIN_MAX_S = 1.0, 60.0  # after a failure; twice as long each time
BUSY = 4  # a journal so many times too long is not spared until changes pause


class Keeper:
    """Keeps one director's table saved. A failure is told once, and tried again."""

    def __init__(
        self, saved: SavedTable, ipvs: NetnsIpvs, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.saved = saved
        self.ipvs = ipvs
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, "uvs-saved")
        self._running: Future[None] | None = None
        self._rewriting = False
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None  # once the director is complete
        self._wait, self._again = 0.0, 0.0  # after a failure
        self._quiet = True  # no change since the last second

    def restore(self) -> list[str]:
        """Take the files and put what is saved into the fresh director; returns messages for the log.

        OSError: another director has them, or others could write to their directory. One that cannot be
        written to is a failure like a full disk.
        """
        try:
            private_directory(str(self.saved.path.parent), "--state-dir")
            self.saved.lock()
        except OSError as e:
            if e.errno in (None, errno.EBUSY):
                raise
        return self.saved.restore(self.ipvs)

    def begin(self, loop: asyncio.AbstractEventLoop) -> None:
        """The director is complete: from now on the files are its own."""
        self._loop = loop
        self._save()

    def commit(self) -> None:
        """Changes were made: write them down."""
        self._quiet = False
        if not self._wait:
            self._save()

    def second(self) -> None:
        """Once a second: what failed, what waits for the disk, and a journal that has grown long."""
        quiet, self._quiet = self._quiet, True
        if self._rewriting or not (self._running is None or self._running.done()):
            return  # what failed may want the whole table written, beside which there is no other
        if self._wait and self._clock() >= self._again:
            self._save()
        if self._wait:
            return
        self._in_thread(self.saved.syncing())
        if self.saved.long >= (1 if quiet else BUSY):
            self._rewrite()

    def close(self) -> None:
        """The director ends: what there is goes to the disk."""
        self._closed = True
        if self._running is not None:
            wait([self._running])
        if self._loop is not None and self.saved.pending:
            self._save()
        self._in_thread(self.saved.syncing())
        self._thread.shutdown(wait=True)
        self.saved.close()

    def _save(self) -> None:
        try:
            self.saved.save(self.ipvs)
        except OSError as e:
            self._failed(e.strerror or str(e))
        else:
            if self._wait:
                log.info("the table is saved again")
            self._wait = 0.0

    def _failed(self, text: str) -> None:
        if not self._wait:
            log.error("%s: changes are in force, but a restart would lose them; tried again", text)
        self._wait = min(max(AGAIN_S, 2 * self._wait), AGAIN_MAX_S)
        self._again = self._clock() + self._wait

    def _in_thread(self, work: Callable[[], None] | None) -> None:
        if work is not None:
            self._running = self._thread.submit(_quietly, work)

    def _rewrite(self) -> None:
        assert self._loop is not None
        loop = self._loop
        try:
            rewriting = self.saved.rewrite(self.ipvs)
        except OSError as e:
            self._failed(f"the table cannot be saved: {e.strerror}")
            return
        self._rewriting = True
        steps = rewriting.steps()

        def step() -> None:
            if self._closed:
                return
            try:
                for _ in steps:
                    loop.call_soon(step)
                    return
            except OSError as e:
                log.warning("the table was not written anew, its journals go on: %s", e.strerror)
            else:
                self._in_thread(rewriting.finish)
            self._rewriting = False

        step()


def _quietly(work: Callable[[], None]) -> None:
    """In the thread: what fails leaves the files as they were, which are good for the director's end."""
    try:
        work()
    except OSError as e:
        log.warning("the table was not brought to the disk: %s", e.strerror)
