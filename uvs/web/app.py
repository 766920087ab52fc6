"""The page and its events, as an ASGI application (starlette)."""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from hmac import compare_digest
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from uvs import __version__
from uvs.walk.reasons import GOOD, MEANING

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
READERS_MAX = 16  # pages open at once

# Nothing from elsewhere, no script but the page's own files, in nobody's frame; the key in no Referer.
HEADERS = {
    "Content-Security-Policy": "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none';"
    " frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Events(Protocol):
    """Where events come from."""

    live: bool

    def events(self) -> AsyncGenerator[tuple[str, Any], None]:
        """Name and data (for JSON) of each."""

    def close(self) -> None:
        """End them."""

    async def ended(self) -> None:
        """Wait until what went on for them is over."""


def application(source: Events, key: str = "", names: bool = False) -> ASGIApp:
    """The page of a source.

    `key`: the path that it stands behind, empty: none; `names`: whatever Host is asked for is answered.
    """
    readers = 0

    async def events(request: Request) -> Response:
        if readers >= READERS_MAX:
            return PlainTextResponse(f"{READERS_MAX} pages are open already", 503)
        return StreamingResponse(stream(), media_type="text/event-stream")

    async def stream() -> AsyncIterator[str]:
        nonlocal readers
        readers += 1
        try:
            hello = {"live": source.live, "version": __version__, "meaning": MEANING, "good": sorted(GOOD)}
            yield sse("hello", hello)
            async with aclosing(source.events()) as found:
                async for name, data in found:
                    yield sse(name, data)
                    await asyncio.sleep(
                        0
                    )  # of many events: else a page that was closed is noticed after the last
        finally:
            readers -= 1

    routes = [Route("/events", events, methods=["GET"])]
    for path in sorted(STATIC.iterdir()):
        if path.suffix in TYPES:
            routes.append(_file("/" if path.name == "index.html" else f"/{path.name}", path))
    return _Guard(Starlette(routes=routes), key, names)


def sse(name: str, data: Any) -> str:
    """An event as the stream has it (HTML, 9.2.6): JSON is one line."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _file(at: str, path: Path) -> Route:
    content, kind = path.read_bytes(), TYPES[path.suffix]

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return Route(at, answer, methods=["GET"])


class _Guard:
    """Before the application: who may look, by Host and key; the headers of every answer."""

    def __init__(self, app: ASGIApp, key: str, names: bool) -> None:
        self.app, self.key, self.names = app, key, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        host = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(n.lower().encode(), v.encode()) for n, v in HEADERS.items()]
                message = dict(message, headers=[*message.get("headers", []), *more])
            await send(message)

        if not (self.names or local(host)):  # a foreign page whose name leads here (DNS rebinding)
            await PlainTextResponse("not by this name\n", 403)(scope, receive, with_headers)
            return
        path: str = scope["path"]
        if self.key:
            given, *rest = path.removeprefix("/").split("/", 1)  # `OPTIONS *` has no slash
            if not rest or not compare_digest(given.encode(), self.key.encode()):
                await PlainTextResponse("the address that `uvs web` printed has a key\n", 404)(
                    scope, receive, with_headers
                )
                return
            path = f"/{rest[0]}"
        await self.app(dict(scope, path=path, raw_path=path.encode()), receive, with_headers)


def local(host: str) -> bool:
    """Does a Host header name an address, or this machine? No foreign name does."""
    name = host[1:].split("]")[0] if host.startswith("[") else host.rsplit(":", 1)[0]
    if name.lower() == "localhost":
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
