"""Hooks: commands that are run once per change, one at a time, in the order of the changes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from uvs.config.checks import Command
from uvs.health import process

log = logging.getLogger("uvs.health")

WAITING = 1000  # hooks at most; beyond, the oldest is given up


class Hook(NamedTuple):
    """A command to be run. `what`: for the log, as `down hook of 198.51.100.11:80`."""

    what: str
    command: Command
    environment: Mapping[str, str]
    timeout: float


class Hooks:
    """The queue, and the task that works on it while there is anything in it."""

    def __init__(self) -> None:
        self._queue: deque[Hook] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, hook: Hook) -> None:
        """Run it when those before it have ended."""
        self._queue.append(hook)
        if len(self._queue) > WAITING:
            log.error("%s is given up: too many hooks wait", self._queue.popleft().what)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self._queue:
            hook = self._queue.popleft()
            done = await process.run(hook.command, hook.environment, hook.timeout)
            if done.status != 0:
                log.error("%s: %s", hook.what, done.why)
            elif done.output.strip():
                log.info("%s: %s", hook.what, done.output.strip().replace("\n", "; "))

    async def idle(self) -> None:
        """Wait until none is left."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def close(self) -> None:
        """End the one that runs, and give up the others."""
        if self._queue:
            log.warning("%d hooks are given up", len(self._queue))
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
