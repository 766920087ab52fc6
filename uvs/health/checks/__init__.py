"""Checks: one small file a kind, an async function `check(target, settings)` that returns or raises.

A new kind is a model in `uvs.config.checks`, a file here, and a line in CHECKS.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from uvs.config.checks import Common
from uvs.health.checks import command, dns, forward, http, ping, smtp, tcp, udp
from uvs.health.checks.base import Failed, Result, Target, Unable

log = logging.getLogger("uvs.health")

CHECKS: dict[str, Callable[[Target, Any], Awaitable[Result]]] = {
    "tcp": tcp.check,
    "http": http.check,
    "https": http.check,
    "dns": dns.check,
    "smtp": smtp.check,
    "ping": ping.check,
    "udp": udp.check,
    "command": command.check,
    "forward": forward.check,
}
DETAIL_MAX = 200
# What this machine lacks; it says nothing of the server.
OURS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN}


async def run(target: Target, settings: Common) -> Result:
    """Run a check once; it ends within its time-out, whatever the server does. Only a cancel raises."""
    loop = asyncio.get_running_loop()
    begin = loop.time()
    deadline = begin + settings.timeout
    limit = asyncio.timeout_at(deadline)
    kind: str = settings.type  # type: ignore[attr-defined]
    try:
        async with limit:
            result = await CHECKS[kind](target, settings)
    except Unable as error:
        result = Result(False, str(error), counts=False)
    except Failed as error:
        result = Result(False, str(error))
    except OSError as error:
        if limit.expired():
            # If we were not let run (stopped, overloaded) the server may have answered in time.
            late = loop.time() - deadline > settings.timeout / 2
            detail = f"this machine was too busy for {settings.timeout:g} s" if late else "timed out"
            result = Result(
                False, detail if late else f"{detail} after {settings.timeout:g} s", counts=not late
            )
        else:
            result = Result(False, explain(error), counts=error.errno not in OURS)
    except (ValueError, LookupError, EOFError, struct.error) as error:  # an answer that nobody foresaw
        result = Result(False, f"{type(error).__name__}: {error}")
    except Exception as error:  # our own fault must neither end the monitor nor empty a service
        log.exception("a %s check went wrong", kind)
        result = Result(False, f"{type(error).__name__}: {error}", counts=False)
    return replace(result, detail=_clean(result.detail), duration=loop.time() - begin)


def _clean(detail: str) -> str:
    """For logs, terminals and hooks: what a server sent must not write there as it likes."""
    return "".join(c if c.isprintable() else "?" for c in detail)[:DETAIL_MAX]


def explain(error: OSError) -> str:
    """In a few words: asyncio and ssl put much around what the kernel says."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {(error.reason or str(error)).lower().replace('_', ' ')}"
    if error.errno and error.errno > 0:
        return os.strerror(error.errno).lower()
    return str(error).lower() or type(error).__name__
