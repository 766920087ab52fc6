"""The configuration rules: the table becomes what the file says, at the start and at each reload.

Without one, `uvsadm` or keepalived rule, and this is not loaded.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any

from uvs.config import load as loading
from uvs.config.apply import apply, standing
from uvs.config.converge import Change, converge
from uvs.config.difference import line, row
from uvs.config.load import ConfigError
from uvs.config.schema import Config
from uvs.config.specs import Wanted, wanted
from uvs.errors import UserError
from uvs.ipvs.skb import NetnsIpvs
from uvs.layers import Layers
from uvs.systemd import notify

if TYPE_CHECKING:
    from uvs.health.monitor import Monitor

log = logging.getLogger("uvs")

LOGGED = 20  # changes that the log names
Read = tuple[Config, Wanted] | list[str]  # or what is wrong


class Rule:
    """Keeps one director's table to one file."""

    def __init__(self, path: str) -> None:
        """Read it. ConfigError."""
        self.path = path
        self.config = loading.load(path)
        self.ipvs: NetnsIpvs
        self.layers: Layers
        self.monitor: Monitor | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.committed: Callable[[], Awaitable[None]] = _nothing  # waits until the commit that goes on ends
        self._watching = self._checked = self._beginning = self._hung_up = False
        self._one = asyncio.Lock()  # one reload at a time

    def begin(self, ipvs: NetnsIpvs, layers: Layers) -> None:
        """The saved table is in place: converge it. UserError: IPVS refuses, and nothing is changed."""
        self.ipvs, self.layers = ipvs, layers
        asked = wanted(self.config)
        changes = converge(asked, standing(ipvs, layers))
        try:
            apply(ipvs, layers, changes)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}") from None
        self._in_force(self.config, asked, changes)

    def watch(self) -> None:
        """The director is complete: check servers from now on, unless a process of its own does."""
        self._watching = True
        self._watch()

    async def close(self) -> None:
        """The director ends, or becomes another: what checks have found stays."""
        self._watching = False
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self.monitor is not None:
            await self.monitor.close()
            self.monitor = None

    def _watch(self) -> None:
        here = self.config.monitor.process == "director"
        if self.monitor is not None and here:
            self.monitor.reload(self.config)
        elif self.monitor is not None:
            self._do(self.monitor.close())
            self.monitor = None
        elif here and self._watching and self._checked and not self._beginning:
            self._beginning = True
            self._do(self._begin_to_watch())

    async def _begin_to_watch(self) -> None:
        """Checks need more than a director, which is loaded when there are any; packets do not wait."""
        module = await asyncio.to_thread(import_module, "uvs.health.monitor")
        switch = await asyncio.to_thread(import_module, "uvs.health.switch")
        self._beginning = False
        if self._watching and self.config.monitor.process == "director":
            self.monitor = module.Monitor(self.config, switch.InProcess(self.layers))
            self.monitor.start()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def read(self) -> Read:
        """The file as it is now: for a thread, since a long one takes a while."""
        try:
            config = loading.load(self.path)
        except ConfigError as error:
            return [str(fault) for fault in error.faults]
        return config, wanted(config)

    def reload(self, read: Read | None = None) -> list[dict[str, Any]]:
        """Converge to the file as it was read; if it is wrong, or is refused, nothing is changed.

        A row for each change (`difference.row`), or one with `fault` for each that hinders it.
        """
        read = self.read() if read is None else read
        if isinstance(read, list):
            return self._refuse(read)
        changes = converge(read[1], standing(self.ipvs, self.layers))
        try:
            apply(self.ipvs, self.layers, changes)
        except OSError as error:
            return self._refuse([f"{self.path}: {error.strerror or error}"])
        self._in_force(*read, changes)
        self._watch()
        return [row(change) for change in changes]

    async def reloading(self) -> list[dict[str, Any]]:
        """The same while packets go on; returns when what follows from it is done."""
        async with self._one:  # a later one reads what the file is by then
            rows = self.reload(await asyncio.to_thread(self.read))
            self.layers.commit()
        await self.committed()
        return rows

    async def difference(self) -> list[dict[str, Any]]:
        """What `reload` would do, rows as there."""
        read = await asyncio.to_thread(self.read)
        if isinstance(read, list):
            return [{"fault": fault} for fault in read]
        return [row(change) for change in converge(read[1], standing(self.ipvs, self.layers))]

    def hang_up(self) -> None:
        """SIGHUP: reload, as soon as may be; of many that come meanwhile one counts."""
        if not self._hung_up:
            self._hung_up = True
            self._do(self._hang_up())

    async def _hang_up(self) -> None:
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        async with self._one:
            self._hung_up = False  # from now on the file may be another
            self.reload(await asyncio.to_thread(self.read))
            self.layers.commit()
        notify("READY=1")

    def _refuse(self, faults: list[str]) -> list[dict[str, Any]]:
        for fault in faults:
            log.error("%s", fault)
        log.error("the configuration is as it was: %s is not taken", self.path)
        return [{"fault": fault} for fault in faults]

    def refusal(self) -> str:
        """Why no director could start with the file as it is now, empty if one could; for a thread."""
        read = self.read()
        return read[0] if isinstance(read, list) else ""

    def _in_force(self, config: Config, asked: Wanted, changes: list[Change]) -> None:
        self.config, self._checked = config, bool(asked.checked or asked.fallbacks)
        self.layers.adopt(asked.entries)
        for change in changes[:LOGGED]:
            log.info("configuration: %s", line(row(change)))
        if len(changes) > LOGGED:
            log.info("configuration: and %d changes more", len(changes) - LOGGED)
        log.info("the table is as %s says: %d changes", self.path, len(changes))


async def _nothing() -> None:
    """Waits for nothing."""
