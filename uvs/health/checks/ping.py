"""ping: an ICMP or ICMPv6 echo request (RFC 792, RFC 4443)."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct

from uvs.config.checks import Ping
from uvs.engine.core import checksum
from uvs.health.checks.base import Result, Target, Unable, passed

ECHO: dict[int, tuple[int, int]] = {socket.AF_INET: (8, 0), socket.AF_INET6: (128, 129)}  # request, reply
PROTOCOL: dict[int, int] = {socket.AF_INET: socket.IPPROTO_ICMP, socket.AF_INET6: socket.IPPROTO_ICMPV6}
IP_RECVERR, IPV6_RECVERR = 11, 25  # linux/in.h, linux/in6.h
RECVERR: dict[int, tuple[int, int]] = {
    socket.AF_INET: (socket.IPPROTO_IP, IP_RECVERR),
    socket.AF_INET6: (socket.IPPROTO_IPV6, IPV6_RECVERR),
}


async def check(target: Target, settings: Ping) -> Result:
    """One echo request; "unreachable" ends the wait early."""
    host = settings.address or socket.inet_ntop(target.server.af, target.server.addr)
    af = socket.AF_INET6 if ":" in host else socket.AF_INET
    loop = asyncio.get_running_loop()
    sock, raw = _open(af)
    with contextlib.closing(sock):
        sock.setblocking(False)
        sock.connect((host, 0))
        ident, body = secrets.randbelow(1 << 16), b"uvs " + secrets.token_bytes(12)
        request, reply = ECHO[af]
        await loop.sock_sendall(sock, _message(af, request, ident, body))
        while True:
            data = await loop.sock_recv(sock, 4096)
            if raw and af == socket.AF_INET:
                data = data[(data[0] & 15) * 4 :]
            same = not raw or data[4:6] == struct.pack("!H", ident)  # a ping socket's is the kernel's
            if data[:1] == bytes([reply]) and same and data[8:] == body:
                return passed("answered")


def _open(af: int) -> tuple[socket.socket, bool]:
    """A ping socket (net.ipv4.ping_group_range), or a raw one."""
    flags = socket.SOCK_CLOEXEC
    try:
        sock = socket.socket(af, socket.SOCK_DGRAM | flags, PROTOCOL[af])
    except OSError:
        try:
            return socket.socket(af, socket.SOCK_RAW | flags, PROTOCOL[af]), True
        except PermissionError:
            raise Unable("ping needs CAP_NET_RAW, or our group in net.ipv4.ping_group_range") from None
    with contextlib.suppress(OSError):
        sock.setsockopt(*RECVERR[af], 1)
    return sock, False


def _message(af: int, kind: int, ident: int, body: bytes) -> bytes:
    """The kernel itself writes ICMPv6's checksum, and a ping socket's identifier."""
    head = struct.pack("!BBHHH", kind, 0, 0, ident, 1)
    value = checksum(head + body) if af == socket.AF_INET else 0
    return head[:2] + struct.pack("!H", value) + head[4:] + body
