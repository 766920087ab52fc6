"""Telling a director of its servers' health: in its own process, or over its socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from uvs.control.client import Client, Unreachable
from uvs.control.rows import server_id, service_key
from uvs.ipvs.spec import DestSpec, ServiceKey
from uvs.layers import Health, Layers, Lookup, ServerId

T = TypeVar("T")
Known = dict[tuple[Lookup, ServerId], Health]


class Switch(Protocol):
    """Whom a monitor tells. IpvsError: refused; Unreachable: no director is there, for now."""

    async def set_health(self, service: ServiceKey, server: ServerId, health: Health | None) -> None:
        """What checks say of a server; None: it is not checked (any more)."""

    async def set_fallback(self, service: ServiceKey, dest: DestSpec | None) -> None:
        """The server of last resort, in the table exactly while it is set."""

    async def known(self) -> Known:
        """What was told of servers last, by whomever."""

    def close(self) -> None:
        """Hang up."""


class InProcess:
    """The layers of the director that we are part of."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    async def set_health(self, service: ServiceKey, server: ServerId, health: Health | None) -> None:
        """As `Switch` has it."""
        self._layers.set_health(service, server, health)

    async def set_fallback(self, service: ServiceKey, dest: DestSpec | None) -> None:
        """As `Switch` has it."""
        self._layers.set_fallback(service, dest)

    async def known(self) -> Known:
        """As `Switch` has it."""
        return {
            (service.lookup, server): layer.health
            for service, server, layer in self._layers.every()
            if layer.health is not None
        }

    def close(self) -> None:
        """Nothing to do: what was told stays."""


class Remote:
    """A director's control socket. Its client blocks: a thread waits, and checks go on meanwhile."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self._client: Client | None = None

    async def set_health(self, service: ServiceKey, server: ServerId, health: Health | None) -> None:
        """As `Switch` has it."""
        await self._call(lambda client: client.set_health(service, server, health))

    async def set_fallback(self, service: ServiceKey, dest: DestSpec | None) -> None:
        """As `Switch` has it."""
        await self._call(lambda client: client.set_fallback(service, dest))

    async def known(self) -> Known:
        """As `Switch` has it."""
        rows = await self._call(lambda client: client.get_health())
        return {
            (service_key(row["service"]).lookup, server_id(row["server"])): Health(
                row["up"], row["weight"], row["share"], about=row["about"]
            )
            for row in rows
            if row["up"] is not None
        }

    async def _call(self, ask: Callable[[Client], T]) -> T:
        return await asyncio.to_thread(self._ask, ask)

    def _ask(self, ask: Callable[[Client], T]) -> T:
        if self._client is None:
            self._client = Client(self._path)
        try:
            return ask(self._client)
        except Unreachable:
            self.close()
            raise

    def close(self) -> None:
        """As `Switch` has it."""
        if self._client is not None:
            self._client.close()
            self._client = None


def well(told: Health) -> bool:
    """One that stands aside while the quorum is lost is told as down, but its checks found nothing wrong."""
    return told.up or (told.about.get("held") is True and told.about.get("state") != "FAULTED")


def last(told: Health | None, now: float, slow_start: float) -> dict[str, Any]:
    """What was told of a server, as `state.begin` takes it: a slow start goes on, and a command's weight."""
    if told is None:
        return {}
    since = now - told.share * slow_start if told.share < 1 else None
    return {"up": well(told), "weight": told.weight, "up_since": since}
