"""The configuration rules: the table becomes what the file says, at the start and at each reload.

Without one, `uvsadm` or keepalived rule, and this is not loaded.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any

from uvs.config import load as loading
from uvs.config.apply import apply, standing
from uvs.config.converge import Change, converge
from uvs.config.difference import line, row
from uvs.config.load import ConfigError
from uvs.config.schema import Config
from uvs.config.specs import wanted
from uvs.errors import UserError
from uvs.ipvs.skb import NetnsIpvs
from uvs.layers import Layers

if TYPE_CHECKING:
    from uvs.health.monitor import Monitor

log = logging.getLogger("uvs")

LOGGED = 20  # changes that the log names
TOLD, TOLD_BYTES = 400, 40_000  # that an answer names: an attribute has 64 KiB


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
        self._watching = False

    def begin(self, ipvs: NetnsIpvs, layers: Layers) -> None:
        """The saved table is in place: converge it. UserError: IPVS refuses, and nothing is changed."""
        self.ipvs, self.layers = ipvs, layers
        changes = self._changes(self.config)
        try:
            apply(ipvs, layers, changes)
        except OSError as error:
            raise UserError(f"{self.path}: {error.strerror}") from None
        self._in_force(self.config, changes)

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
        elif here and self._watching and not self._tasks and wanted(self.config).checked:
            self._do(self._begin_to_watch())

    async def _begin_to_watch(self) -> None:
        """Checks need more than a director, which is loaded when there are any; packets do not wait."""
        module = await asyncio.to_thread(import_module, "uvs.health.monitor")
        switch = await asyncio.to_thread(import_module, "uvs.health.switch")
        if self._watching and self.config.monitor.process == "director":
            self.monitor = module.Monitor(self.config, switch.InProcess(self.layers))
            self.monitor.start()

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def reload(self) -> dict[str, Any]:
        """Read the file again and converge; if it is wrong, or is refused, nothing is changed.

        `faults`: lines that say why not; `changes`: how many; `lines`: those changes, not all of many.
        """
        try:
            config = loading.load(self.path)
            changes = self._changes(config)
            apply(self.ipvs, self.layers, changes)
        except (ConfigError, OSError) as error:
            faults = _faults(error, self.path)
            for fault in faults:
                log.error("%s", fault)
            log.error("the configuration is as it was: %s is not taken", self.path)
            return {"faults": faults[:TOLD], "changes": 0, "lines": []}
        self._in_force(config, changes)
        self._watch()
        return {"faults": [], "changes": len(changes), "lines": _fitting(changes)}

    def difference(self) -> list[dict[str, Any]]:
        """What `reload` would do, a row each; faults are rows with `fault`."""
        try:
            return [row(change) for change in self._changes(loading.load(self.path))]
        except (ConfigError, OSError) as error:
            return [{"fault": fault} for fault in _faults(error, self.path)]

    def refusal(self) -> str:
        """Why a director could not start with the file as it is now; empty if it could."""
        try:
            loading.load(self.path)
        except ConfigError as error:
            return str(error.faults[0])
        return ""

    def _changes(self, config: Config) -> list[Change]:
        return converge(wanted(config), standing(self.ipvs, self.layers))

    def _in_force(self, config: Config, changes: list[Change]) -> None:
        self.config = config
        self.layers.adopt(wanted(config).entries)
        for change in changes[:LOGGED]:
            log.info("configuration: %s", line(row(change)))
        if len(changes) > LOGGED:
            log.info("configuration: and %d changes more", len(changes) - LOGGED)
        log.info("the table is as %s says: %d changes", self.path, len(changes))


def _faults(error: ConfigError | OSError, path: str) -> list[str]:
    if isinstance(error, ConfigError):
        return [str(fault) for fault in error.faults]
    return [f"{path}: {error.strerror or error}"]


def _fitting(changes: list[Change]) -> list[str]:
    found: list[str] = []
    size = 0
    for change in changes[:TOLD]:
        text = line(row(change))
        size += len(text) + 8
        if size > TOLD_BYTES:
            break
        found.append(text)
    return found
