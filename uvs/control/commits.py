"""Commits: what follows from changes (netfilter sets, the saved table), one at a time while the loop goes on.

A commit covers the changes that were made before it begins; the answers to them wait until it has ended.
Those that come meanwhile belong to the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from uvs.control.genetlink import log


class Commits:
    """`work` is what a commit does, `ended` is called after each."""

    def __init__(self, work: Callable[[], Awaitable[None]], ended: Callable[[], None]) -> None:
        self._work, self._ended = work, ended
        self._begun = self._finished = 0  # by number
        self._again = False
        self._task: asyncio.Task[None] | None = None

    @property
    def next(self) -> int:
        """The number of the commit that will cover what is changed now."""
        return self._begun + 1

    def covers(self, number: int) -> bool:
        """Has that commit ended?"""
        return number <= self._finished

    def start(self) -> None:
        """Commit, as soon as the commit that is under way has ended."""
        self._again = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def ended(self) -> None:
        """No commit is under way."""
        while self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self) -> None:
        """What a commit could not do is logged, the acknowledgements go out all the same."""
        while self._again:
            self._again = False
            self._begun += 1
            try:
                await self._work()
            except OSError as e:
                log.error("the change is in force, but not all that follows from it: %s", e)
            except Exception:
                log.exception("the change is in force, but not all that follows from it")
            self._finished = self._begun
            self._ended()
        self._task = None
