"""Servers on loopback that misbehave on purpose, and a check run against them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from pydantic import TypeAdapter

from uvs.config.checks import Check
from uvs.health.checks import run
from uvs.health.checks.base import Result, Target
from uvs.ipvs.spec import DestSpec, ServiceKey

CHECK: TypeAdapter[Any] = TypeAdapter(Check)
LOOPBACK = socket.inet_aton("127.0.0.1")
SERVICE = ServiceKey(socket.AF_INET, socket.IPPROTO_TCP, socket.inet_aton("192.0.2.100"), 80)
LONG_S = 60.0  # a time-out that no check here may need
SHORT_S = 0.3  # for servers that never answer

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def target(port: int) -> Target:
    """A server on loopback."""
    return Target(SERVICE, DestSpec(socket.AF_INET, LOOPBACK, port))


async def check(kind: str, port: int, **settings: Any) -> Result:
    """Run a check of that kind once; it has time unless `timeout` says otherwise."""
    settings = {"timeout": LONG_S} | settings
    model = CHECK.validate_python({"type": kind, "interval": max(LONG_S, settings["timeout"])} | settings)
    return await run(target(port), model)


@contextlib.asynccontextmanager
async def tcp(handler: Handler, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A TCP server, through TLS with `context`; its port."""
    tasks = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        tasks.add(task)
        try:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await handler(reader, writer)
        finally:
            tasks.discard(task)
            writer.transport.abort() if writer.transport.is_closing() else writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in list(tasks):
            task.cancel()


def saying(*pieces: bytes, first: bool = False) -> Handler:
    """Sends these when something has come (`first`: at once), then closes."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not first:
            await reader.read(65536)
        for piece in pieces:
            writer.write(piece)
            await writer.drain()

    return handler


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Takes all and says nothing."""
    while await reader.read(65536):
        pass
    await asyncio.sleep(LONG_S)


def slowly(data: bytes) -> Handler:
    """A byte at a time, for longer than anybody waits."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in data:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.2)

    return handler


class _Answering(asyncio.DatagramProtocol):
    def __init__(self, answer: Callable[[bytes], list[bytes]]) -> None:
        self.answer = answer

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, peer: Any) -> None:
        for each in self.answer(data):
            self.transport.sendto(each, peer)


@contextlib.asynccontextmanager
async def udp(answer: Callable[[bytes], list[bytes]]) -> AsyncIterator[int]:
    """A UDP server that answers each datagram so; its port."""
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Answering(answer), local_addr=("127.0.0.1", 0)
    )
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.abort()


@contextlib.contextmanager
def nobody(kind: int = socket.SOCK_STREAM) -> Any:
    """A port at which nobody listens."""
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind(("127.0.0.1", 0))
        if kind == socket.SOCK_STREAM:
            yield sock.getsockname()[1]
            return
        port = sock.getsockname()[1]
    yield port


@contextlib.contextmanager
def full() -> Any:
    """A port whose listener takes no connection: its backlog is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            sock = stack.enter_context(socket.socket())
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
