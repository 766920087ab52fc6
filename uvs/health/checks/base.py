"""What all kinds of checks have in common: whom they ask, what they answer, connections and datagrams."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from uvs.config.checks import Common
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.spec import DestSpec, ServiceKey

PROTOCOLS = {IPPROTO_TCP: "tcp", IPPROTO_UDP: "udp", IPPROTO_SCTP: "sctp"}
LIMIT = 65536  # bytes that are read ahead, and a line's length at most


def endpoint(af: int, addr: bytes, port: int) -> str:
    """`192.0.2.1:80`, `[2001:db8::1]:80`."""
    text = socket.inet_ntop(af, addr)
    return f"[{text}]:{port}" if af == socket.AF_INET6 else f"{text}:{port}"


def service_name(key: ServiceKey) -> str:
    """`tcp 192.0.2.100:80`, `fwmark 1`, `fwmark 1 ipv6`."""
    if key.fwmark:
        return f"fwmark {key.fwmark}" + (" ipv6" if key.af == socket.AF_INET6 else "")
    return f"{PROTOCOLS.get(key.protocol, key.protocol)} {endpoint(key.af, key.addr, key.port)}"


def server_name(dest: DestSpec) -> str:
    """`198.51.100.11:80`."""
    return endpoint(dest.af, dest.addr, dest.port)


@dataclass(frozen=True, slots=True)
class Target:
    """A real server of a service; `server.fwd` and its tunnel say how requests get to it."""

    service: ServiceKey
    server: DestSpec

    @property
    def environment(self) -> dict[str, str]:
        """What commands are told of it."""
        return {
            "UVS_SERVICE": service_name(self.service),
            "UVS_SERVER": server_name(self.server),
            "UVS_SERVER_ADDRESS": socket.inet_ntop(self.server.af, self.server.addr),
            "UVS_SERVER_PORT": str(self.server.port),
        }


@dataclass(frozen=True, slots=True)
class Result:
    """What a run found. `weight`: the server's new one (None: unchanged); `duration` in seconds.

    `counts` False: nothing was learnt of the server, since this machine could not ask.
    """

    ok: bool
    detail: str
    weight: int | None = None
    duration: float = 0.0
    counts: bool = True


class Failed(Exception):
    """The server does not pass; the text says why."""


class Unable(Exception):
    """This machine cannot ask: nothing is learnt of the server. The text says why, and what to do."""


def passed(detail: str, weight: int | None = None) -> Result:
    """The server is well."""
    return Result(True, detail, weight)


def address(target: Target, settings: Common, port: int = 0) -> tuple[str, int]:
    """Where to ask. `port`: the kind's usual one, for a server of all ports. Failed: there is none to ask."""
    number = settings.port or target.server.port or target.service.port or port
    if not number:
        raise Failed("the server has no port, and the check says none")
    return settings.address or socket.inet_ntop(target.server.af, target.server.addr), number


@contextlib.asynccontextmanager
async def connection(
    where: tuple[str, int], context: ssl.SSLContext | None = None, name: str | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A TCP connection, through TLS with `context`; `name`: whom the certificate must name. OSError."""
    reader, writer = await asyncio.open_connection(
        *where, limit=LIMIT, ssl=context, server_hostname=(name or where[0]) if context else None
    )
    try:
        yield reader, writer
    finally:
        # Not waited for: a server that does not read would keep us; what is unsent is of no use to it.
        writer.close()
        if context is not None:
            with contextlib.suppress(AttributeError):  # Python 3.11.2: its end has been seen, nothing is left
                writer.transport.abort()


class Datagrams:
    """A connected UDP socket of our own: asyncio's transport sends no empty datagram."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def receive(self) -> bytes:
        """The next answer. OSError: an ICMP error came instead."""
        return await asyncio.get_running_loop().sock_recv(self._sock, 65536)


@contextlib.contextmanager
def datagrams(where: tuple[str, int], payload: bytes) -> Iterator[Datagrams]:
    """Send a datagram; what is handed out receives the answers. OSError."""
    af = socket.AF_INET6 if ":" in where[0] else socket.AF_INET
    with socket.socket(af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        sock.connect(where)
        sock.send(payload)
        yield Datagrams(sock)
