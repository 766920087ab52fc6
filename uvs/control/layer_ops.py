"""What the commands about layers do: health, fallback servers, drains, the configuration."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol

from uvs.control import extension, rows
from uvs.control.extension import Attr, Cmd
from uvs.control.genetlink import Op, Reply
from uvs.control.messages import invalid
from uvs.control.netlink import Attrs
from uvs.control.rows import DamagedError
from uvs.ipvs.spec import IpvsError, ServiceKey
from uvs.layers import Layers

DEADLINE_MAX = 10 * 365 * 86400  # seconds


class Rule(Protocol):
    """Who converges the table to a configuration."""

    async def reloading(self) -> list[dict[str, Any]]:
        """Do it; a row for each change, or for each fault."""

    async def difference(self) -> list[dict[str, Any]]:
        """What that would change."""


class LayerOps:
    """Commands over one director's layers. `rule` None: no configuration."""

    def __init__(self, layers: Layers, rule: Rule | None = None) -> None:
        self.layers, self.rule = layers, rule

    def ops(self) -> dict[int, Op]:
        """The commands."""
        return {
            Cmd.SET_HEALTH: Op(self.set_health, changes=True),
            Cmd.SET_FALLBACK: Op(self.set_fallback, changes=True),
            Cmd.GET_HEALTH: Op(dump=self.get_health),
            Cmd.DRAIN: Op(self.drain, changes=True),
            Cmd.RELOAD: Op(dump=self.reload),
            Cmd.DIFF: Op(dump=self.diff),
        }

    def set_health(self, payload: bytes, attrs: Attrs) -> None:
        """What checks say of a server. EINVAL."""
        key, row = _asked(attrs)
        try:
            told = row.get("health")
            health = None if told is None else rows.read_health(told)
            server = rows.server_id(row.get("server"))
        except DamagedError as error:
            raise invalid(str(error)) from None
        self.layers.set_health(key, server, health)

    def set_fallback(self, payload: bytes, attrs: Attrs) -> None:
        """The server of last resort. EINVAL, EEXIST, ERANGE."""
        key, row = _asked(attrs)
        try:
            told = row.get("dest")
            dest = None if told is None else rows.read_dest(told)
        except DamagedError as error:
            raise invalid(str(error)) from None
        self.layers.set_fallback(key, dest)

    def get_health(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """Every server and what lies over it."""
        for row in list(self.layers.rows()):
            yield Cmd.GET_HEALTH, extension.json_text(rows.listed(row))

    def drain(self, payload: bytes, attrs: Attrs) -> None:
        """Take a server out gently, or cancel that. EINVAL, ESRCH, ENOENT."""
        key, row = _asked(attrs)
        deadline = row.get("deadline")
        if deadline is not None and (type(deadline) not in (int, float) or not 0 <= deadline <= DEADLINE_MAX):
            raise invalid("no number of seconds")
        try:
            server = rows.server_id(row.get("server"))
        except DamagedError as error:
            raise invalid(str(error)) from None
        if row.get("cancel"):
            self.layers.cancel(key, server)
        else:
            self.layers.drain(key, server, deadline)

    def _ruled(self) -> Rule:
        if self.rule is None:
            raise IpvsError(errno.ENOENT, "there is no configuration")
        return self.rule

    def reload(self, payload: bytes, attrs: Attrs) -> Iterator[Reply | None]:
        """Converge to the configuration; a message for each change. ENOENT: there is none."""
        return _told(Cmd.RELOAD, self._ruled().reloading())

    def diff(self, payload: bytes, attrs: Attrs) -> Iterator[Reply | None]:
        """What a reload would do, a message for each change. ENOENT: no configuration."""
        return _told(Cmd.DIFF, self._ruled().difference())


def _told(command: Cmd, work: Coroutine[Any, Any, list[dict[str, Any]]]) -> Iterator[Reply | None]:
    """The rows that `work` returns; others go first while it goes on."""
    task = asyncio.get_running_loop().create_task(work)

    def replies() -> Iterator[Reply | None]:
        while not task.done():
            yield None
        for row in task.result():
            yield command, extension.json_text(row)

    return replies()


def _asked(attrs: Attrs) -> tuple[ServiceKey, dict[str, Any]]:
    """The request's service and all of it. EINVAL."""
    try:
        row = json.loads(attrs.get(Attr.JSON, b""))
        if not isinstance(row, dict):
            raise invalid("no object")
        return rows.service_key(row.get("service")), row
    except (ValueError, RecursionError) as error:  # DamagedError is one
        raise invalid(str(error)) from None
