"""tcp: a connection can be opened."""

from __future__ import annotations

from uvs.config.checks import Tcp
from uvs.health.checks.base import Result, Target, address, connection, passed


async def check(target: Target, settings: Tcp) -> Result:
    """Connect, and close."""
    async with connection(address(target, settings)):
        return passed("connected")
