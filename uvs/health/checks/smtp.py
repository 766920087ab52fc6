"""smtp: a mail server's greeting, EHLO and QUIT (RFC 5321)."""

from __future__ import annotations

import asyncio

from uvs.config.checks import Smtp
from uvs.health.checks.base import Failed, Result, Target, address, connection, passed

PORT = 25
LINES = 100  # of one reply


async def check(target: Target, settings: Smtp) -> Result:
    """Each step must be answered with its code."""
    async with connection(address(target, settings, PORT)) as (reader, writer):
        greeting = await _reply(reader, "greeting", "220")
        writer.write(f"EHLO {settings.helo}\r\n".encode())
        await _reply(reader, "EHLO", "250")
        writer.write(b"QUIT\r\n")
        await _reply(reader, "QUIT", "221")
        return passed(greeting)


async def _reply(reader: asyncio.StreamReader, step: str, code: str) -> str:
    """The last line of the answer. Failed: another code, none, or no SMTP."""
    for _ in range(LINES):
        try:
            raw = await reader.readline()
        except ValueError:  # longer than the reader's limit
            raise Failed(f"{step}: a line without an end") from None
        if not raw.endswith(b"\n"):
            raise Failed(f"{step}: closed without an answer")
        line = raw.decode("latin-1").strip()[:120]
        if not line.startswith(code) or line[3:4] not in ("", " ", "-"):
            raise Failed(f"{step}: {line!r}")
        if line[3:4] != "-":
            return line
    raise Failed(f"{step}: an answer without an end")
