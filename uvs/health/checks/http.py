"""http and https: a request, and what the answer must have.

h11 parses: framing, limits and cut answers are well tested there, and it has no dependencies of its own.
"""

from __future__ import annotations

import functools
import os
import re
import ssl

import h11

from uvs.config.checks import Http, Https, status_range
from uvs.health.checks.base import Failed, Result, Target, address, connection, passed

PORTS = {"http": 80, "https": 443}
HEAD_MAX = 32768  # bytes of an answer's head


async def check(target: Target, settings: Http) -> Result:
    """One request on a connection of its own."""
    where = address(target, settings, PORTS[settings.type])
    context, name = None, None
    if isinstance(settings, Https):
        context = _context(settings.verify, settings.ca_file, _changed(settings.ca_file))
        name = settings.sni or (settings.host and _without_port(settings.host))
    async with connection(where, context, name) as (reader, writer):
        talk = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_MAX)
        host = settings.host or (f"[{where[0]}]" if ":" in where[0] else where[0])
        fields = {"host": host, "user-agent": "uvs", "accept": "*/*", "connection": "close"}
        fields |= {key.lower(): value for key, value in settings.headers.items()}
        request = h11.Request(method=settings.method, target=settings.path, headers=list(fields.items()))
        writer.write(talk.send(request) + talk.send(h11.EndOfMessage()))
        head: h11.Response | None = None
        body, anything = b"", False
        try:
            while not isinstance(event := talk.next_event(), h11.EndOfMessage):
                if event is h11.NEED_DATA:
                    data = await reader.read(65536)
                    if not data and not anything:
                        raise Failed("closed without an answer")
                    anything = True
                    talk.receive_data(data)
                elif isinstance(event, h11.Response):
                    head = event
                    _judge_head(settings, head)
                elif isinstance(event, h11.Data):
                    body += event.data
                    if len(body) >= settings.body_max or (settings.body and _found(settings.body, body)):
                        break
                elif isinstance(event, h11.ConnectionClosed):
                    break
        except h11.RemoteProtocolError as error:
            raise Failed(f"no whole HTTP answer: {error}") from None
        if head is None:
            raise Failed("closed without an answer")
        if settings.body is not None and not _found(settings.body, body[: settings.body_max]):
            raise Failed(f"status {head.status_code}, but no {settings.body!r} in the body")
        return passed(f"status {head.status_code}")


def _judge_head(settings: Http, head: h11.Response) -> None:
    spans = [status_range(code) for code in settings.status]
    if not any(low <= head.status_code <= high for low, high in spans):
        raise Failed(f"status {head.status_code}")
    for name, pattern in settings.header.items():
        values = [v.decode("latin-1") for k, v in head.headers if k == name.lower().encode()]
        if not values:
            raise Failed(f"status {head.status_code}, but no header {name}")
        if not any(re.search(pattern, value) for value in values):
            raise Failed(f"status {head.status_code}, but {name}: {values[0][:80]!r} has no {pattern!r}")


def _found(pattern: str, body: bytes) -> bool:
    return re.search(pattern, body.decode(errors="replace"), re.S) is not None


def _without_port(host: str) -> str:
    return host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]


def _changed(file: str | None) -> int:
    return os.stat(file).st_mtime_ns if file else 0


@functools.lru_cache(maxsize=64)
def _context(verify: bool, ca_file: str | None, changed: int) -> ssl.SSLContext:
    """Reading the CAs takes longer than a check: once for each file as it is now."""
    context = ssl.create_default_context(cafile=ca_file)
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
