"""What runs on a real server of the lab: HTTP that tells who answered, and a UDP echo.

Run as a program, without any import of uvs:  servers.py NAME

    GET /            NAME
    GET /bytes/N     N bytes (the same for the same N), their SHA-256 in the header X-SHA256
    PUT /            NAME and the SHA-256 of what was sent
    UDP port 7       the datagram itself

Replies come from the address that was asked, so that a VIP on `lo` answers as the VIP.
"""

import asyncio
import hashlib
import os
import random
import socket
import sys

HTTP_PORT = 80
ECHO_PORT = 7
CHUNK = 1 << 16
IPV6_RECVPKTINFO = 49  # linux/in6.h; the socket module of some builds lacks them
IP_PKTINFO = 8  # linux/in.h
BACKLOG = 1024


def payload(size: int) -> bytes:
    """`size` bytes that look random and are the same every time."""
    return random.Random(size).randbytes(size)


class Http:
    """HTTP/1.1, as little as curl, wrk and urllib need; connections are kept alive."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, request after request."""
        try:
            while await self._request(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError):
            pass
        finally:
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, version = first.split(" ", 2)
        fields = {k.strip().lower(): v.strip() for k, _, v in (line.partition(":") for line in lines if line)}
        if fields.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        digest = hashlib.sha256()
        if "transfer-encoding" in fields:
            writer.write(b"HTTP/1.1 411 Length Required\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return False
        left = int(fields.get("content-length", "0"))
        while left:
            data = await reader.read(min(left, CHUNK))
            if not data:
                raise ConnectionError("the client stopped in mid-request")
            digest.update(data)
            left -= len(data)
        status, extra, body = self._answer(method, path, digest.hexdigest())
        keep = version == "HTTP/1.1" and fields.get("connection", "").lower() != "close"
        kept = "keep-alive" if keep else "close"
        head_out = f"HTTP/1.1 {status}\r\nServer: {self.name}\r\nContent-Type: text/plain\r\n{extra}"
        writer.write(f"{head_out}Content-Length: {len(body)}\r\nConnection: {kept}\r\n\r\n".encode())
        for start in range(0, 0 if method == "HEAD" else len(body), CHUNK):
            writer.write(body[start : start + CHUNK])
            await writer.drain()
        await writer.drain()
        return keep

    def _answer(self, method: str, path: str, digest: str) -> tuple[str, str, bytes]:
        if method in ("PUT", "POST"):
            return "200 OK", "", f"{self.name} {digest}\n".encode()
        if method not in ("GET", "HEAD"):
            return "405 Method Not Allowed", "", b""
        if path.startswith("/bytes/") and path[7:].isdigit():
            body = payload(int(path[7:]))
            return "200 OK", f"X-SHA256: {hashlib.sha256(body).hexdigest()}\r\n", body
        return "200 OK", "", f"{self.name}\n".encode()


def echo_socket(family: int) -> socket.socket:
    """A UDP socket on the echo port that learns which address a datagram came to."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVPKTINFO, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_PKTINFO, 1)
    sock.bind(("", ECHO_PORT))
    return sock


def echo(sock: socket.socket) -> None:
    """Send waiting datagrams back, from the address to which they came."""
    for _ in range(64):
        try:
            data, control, _, peer = sock.recvmsg(1 << 16, 128)
        except OSError:  # none left, or an ICMP error for an earlier reply
            return
        answer = [(level, kind, _source(level, info)) for level, kind, info in control]
        try:
            sock.sendmsg([data], answer, 0, peer)
        except OSError:
            continue


def _source(level: int, info: bytes) -> bytes:
    """The same packet info with the interface left open: the route decides."""
    if level == socket.IPPROTO_IP:  # struct in_pktinfo: interface, local address, header's destination
        return bytes(4) + info[8:12] + info[8:12]
    return info[:16] + bytes(4)  # struct in6_pktinfo: address, interface


def listener(family: int) -> socket.socket:
    """A listening socket on the HTTP port."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind(("", HTTP_PORT))
    sock.listen(BACKLOG)
    return sock


async def serve(name: str) -> None:
    """Serve for ever, on both families where the kernel has both."""
    loop = asyncio.get_running_loop()
    http = Http(name)
    for family in (socket.AF_INET, socket.AF_INET6):
        if family == socket.AF_INET6 and not os.path.exists("/proc/net/if_inet6"):
            continue
        sock = echo_socket(family)
        loop.add_reader(sock, echo, sock)
        await asyncio.start_server(http.connection, sock=listener(family), backlog=BACKLOG)
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", address)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1]))
