"""udp: a datagram, and its answer; or at least no ICMP error "port unreachable"."""

from __future__ import annotations

import asyncio
import re

from uvs.config.checks import Udp
from uvs.health.checks.base import Failed, Result, Target, address, datagrams, passed


async def check(target: Target, settings: Udp) -> Result:
    """Without `expect` and `require_answer` silence for half the time-out is enough: no ICMP error came."""
    hexadecimal = settings.payload_hex
    payload = settings.payload.encode() if hexadecimal is None else bytes.fromhex(hexadecimal)
    needed = settings.require_answer or settings.expect is not None
    with datagrams(address(target, settings), payload) as answers:
        try:
            async with asyncio.timeout(None if needed else settings.timeout / 2):
                answer = await answers.receive()
        except TimeoutError:
            return passed("no error")
    if settings.expect is not None and not re.search(settings.expect, answer.decode("latin-1"), re.S):
        raise Failed(f"the answer has no {settings.expect!r}: {answer[:40]!r}")
    return passed(f"answered {len(answer)} bytes")
