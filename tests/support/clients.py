"""What clients do, as functions to be called on a host of a lab (`lab.call("client", upload, ...)`).

Each returns plain data; none decides what is right.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import hashlib
import http.client
import mmap
import os
import socket
import struct
import time
from collections.abc import Iterator

from uvs.lab.servers import payload

TIMEOUT = 30.0  # for what must come; all of them end as soon as it has
CHUNK = 1 << 16


class Progress:
    """A number that a function called in the lab writes and its caller reads.

    `limit`: the function waits when it has come so far, until `release` is called.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._memory = mmap.mmap(-1, 16)
        self._write(8, limit or 0)

    def _read(self, at: int) -> int:
        return int(struct.unpack_from("=q", self._memory, at)[0])

    def _write(self, at: int, number: int) -> None:
        self._memory[at : at + 8] = struct.pack("=q", number)

    @property
    def value(self) -> int:
        return self._read(0)

    @value.setter
    def value(self, number: int) -> None:
        self._write(0, number)

    def reach(self, number: int) -> None:
        """Say how far the function has come; wait if that is too far."""
        self.value = number
        while 0 < self._read(8) <= number:
            time.sleep(0.005)

    def release(self) -> None:
        """No limit any more."""
        self._write(8, 0)

    def stands_still(self, seconds: float = 0.5, timeout: float = TIMEOUT) -> int:
        """Wait until it has not changed for so long; what it is then."""
        deadline = time.monotonic() + timeout
        before = -1
        while (value := self.value) != before:
            if time.monotonic() > deadline:
                raise TimeoutError(f"progress goes on, {value}, after {timeout:g} s")
            before = value
            time.sleep(seconds)
        return value

    def wait(self, least: int, timeout: float = TIMEOUT) -> int:
        """Wait until it is at least so much; what it is."""
        deadline = time.monotonic() + timeout
        while self.value < least:
            if time.monotonic() > deadline:
                raise TimeoutError(f"progress is {self.value}, not {least}, after {timeout:g} s")
            time.sleep(0.005)
        return self.value


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _connection(address: str, timeout: float) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(address, 80, timeout=timeout)


def ask_twice(address: str, progress: Progress, timeout: float = TIMEOUT) -> tuple[str, str]:
    """Two requests on one connection, who answered them; between them it waits as `progress` says, from 1 on."""
    connection = _connection(address, timeout)
    connection.request("GET", "/")
    first = connection.getresponse().read().decode().strip()
    sock = connection.sock
    progress.reach(1)
    connection.request("GET", "/")
    second = connection.getresponse().read().decode().strip()
    assert sock is not None, "the server closed the connection"
    assert connection.sock is sock, "another connection was made"
    connection.close()
    return first, second


def upload(
    address: str, size: int, progress: Progress | None = None, timeout: float = TIMEOUT
) -> tuple[str, str, str]:
    """PUT `size` bytes: (who took them, SHA-256 there, SHA-256 here)."""
    data = payload(size)
    connection = _connection(address, timeout)
    connection.putrequest("PUT", "/")
    connection.putheader("Content-Length", str(size))
    connection.endheaders()
    for start in range(0, size, CHUNK):
        connection.send(data[start : start + CHUNK])
        if progress:
            progress.reach(start)
    name, digest = connection.getresponse().read().decode().split()
    return name, digest, hashlib.sha256(data).hexdigest()


def download(
    address: str, size: int, progress: Progress | None = None, timeout: float = TIMEOUT
) -> tuple[str, str, str]:
    """GET `size` bytes: (who sent them, SHA-256 there, SHA-256 here)."""
    connection = _connection(address, timeout)
    connection.request("GET", f"/bytes/{size}")
    answer = connection.getresponse()
    digest = hashlib.sha256()
    got = 0
    while data := answer.read(CHUNK):
        digest.update(data)
        got += len(data)
        if progress:
            progress.reach(got)
    if got != size:
        raise ConnectionError(f"{got} of {size} bytes came")
    return str(answer.getheader("Server")), str(answer.getheader("X-SHA256")), digest.hexdigest()


def parallel(address: str, count: int, timeout: float = TIMEOUT) -> list[str]:
    """Open `count` connections, and only when all are open ask each who it is; the answers."""

    async def all_of_them() -> list[str]:
        ends = await asyncio.gather(*(asyncio.open_connection(address, 80) for _ in range(count)))

        async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.rpartition(b"\r\n\r\n")[2].decode().strip()

        return await asyncio.gather(*(ask(*end) for end in ends))

    return asyncio.run(asyncio.wait_for(all_of_them(), timeout))


def echo(address: str, sizes: list[int], timeout: float = TIMEOUT) -> list[bool]:
    """Send a datagram of each size to the echo port: did the very same come back?"""
    same = []
    for size in sizes:
        with socket.socket(_family(address), socket.SOCK_DGRAM) as sock:
            sock.settimeout(timeout)
            sock.connect((address, 7))
            data = os.urandom(size)
            sock.send(data)
            try:
                answer = sock.recv(1 << 16)
            except OSError as e:
                if e.errno != errno.EMSGSIZE:
                    raise
                sock.send(data)  # a tunnel's path MTU was told: what is larger leaves in fragments now
                answer = sock.recv(1 << 16)
            same.append(answer == data)
    return same


def ping(address: str, count: int = 3, timeout: float = TIMEOUT) -> int:
    """Echo requests answered by that very address."""
    v6 = ":" in address
    protocol, request, reply = (socket.IPPROTO_ICMPV6, 128, 129) if v6 else (socket.IPPROTO_ICMP, 8, 0)
    answered = 0
    with socket.socket(_family(address), socket.SOCK_RAW, protocol) as sock:
        sock.connect((address, 0))
        for number in range(count):
            body = struct.pack("!HH", os.getpid() & 0xFFFF, number) + b"uvs" * 8
            checksum = 0 if v6 else _checksum(struct.pack("!BBH", request, 0, 0) + body)  # IPv6: the kernel's
            sock.send(struct.pack("!BBH", request, 0, checksum) + body)
            messages = _heard(sock, timeout)
            answered += any(message[0] == reply and message[4:] == body for message in messages)
    return answered


def _heard(sock: socket.socket, timeout: float) -> Iterator[bytes]:
    """What a raw socket receives within the time, without IP headers."""
    deadline = time.monotonic() + timeout
    while (left := deadline - time.monotonic()) > 0:
        sock.settimeout(left)
        try:
            data = sock.recv(2048)
        except TimeoutError:
            return
        yield data if sock.family == socket.AF_INET6 else data[(data[0] & 15) * 4 :]


def _checksum(data: bytes) -> int:
    total = int.from_bytes(data + bytes(len(data) % 2), "big") % 0xFFFF
    return 0xFFFF - total


def stray_segment(address: str, port: int, timeout: float = TIMEOUT) -> str:
    """Send a TCP segment (ACK, some data) of no connection; the flags of the answer, "" if there is none."""
    v6 = ":" in address
    with socket.socket(_family(address), socket.SOCK_RAW, socket.IPPROTO_TCP) as sock:
        sock.connect((address, 0))
        source = 3333  # below the ports that programs are given: no connection's
        header = struct.pack("!HHIIBBHHH", source, port, 1000, 2000, 5 << 4, 0x18, 8192, 0, 0)
        if v6:
            sock.setsockopt(socket.IPPROTO_IPV6, 7, 16)  # IPV6_CHECKSUM: the kernel fills it in
            segment = header + b"stray"
        else:
            here = socket.inet_aton(sock.getsockname()[0])
            pseudo = here + socket.inet_aton(address) + struct.pack("!BBH", 0, 6, len(header) + 5)
            segment = (
                header[:16]
                + struct.pack("!H", _checksum(pseudo + header + b"stray"))
                + header[18:]
                + b"stray"
            )
        sock.send(segment)
        for tcp in _heard(sock, timeout):
            if struct.unpack_from("!HH", tcp) == (port, source):
                return "".join(letter for i, letter in enumerate("FSRPAUEC") if tcp[13] >> i & 1)
    return ""


def flood_of_syns(address: str, port: int, count: int) -> None:
    """SYNs from as many ends that do not exist, as fast as they can be made; IPv4."""
    there = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        for number in range(count):
            here = bytes((198, 18, number >> 16 & 0xFF, number >> 8 & 0xFF))  # RFC 2544 6
            source = 1024 + (number & 0xFF)
            tcp = struct.pack("!HHIIBBHHH", source, port, number, 0, 5 << 4, 2, 8192, 0, 0)
            check = _checksum(here + there + struct.pack("!BBH", 0, 6, len(tcp)) + tcp)
            ip = struct.pack("!BBHHHBBH", 0x45, 0, 40, 0, 0, 64, socket.IPPROTO_TCP, 0) + here + there
            with contextlib.suppress(BlockingIOError):
                sock.sendto(ip + tcp[:16] + struct.pack("!H", check) + tcp[18:], (address, 0))


def send_to_closed_port(address: str, port: int, timeout: float = TIMEOUT) -> str:
    """Send a datagram from a connected socket; the name of the error that comes back to it, "" if none."""
    with socket.socket(_family(address), socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout)
        sock.connect((address, port))
        sock.send(b"anybody?")
        try:
            sock.recv(1024)
        except TimeoutError:
            return ""
        except OSError as e:
            return type(e).__name__
    return "an answer"


def datagrams(address: str, sizes: list[int], timeout: float = 15) -> dict[int, str]:
    """A datagram of each size to the echo port; what did not come back, and why.

    A sender learns by its first large datagram what the path takes (EMSGSIZE, or an ICMP error that its
    stack keeps for itself): each has a second try.
    """
    failed = {}
    for size in sizes:
        data = os.urandom(size)
        for attempt in range(2):
            with socket.socket(_family(address), socket.SOCK_DGRAM) as sock:
                sock.settimeout(timeout if attempt else 3)
                try:
                    sock.connect((address, 7))
                    sock.send(data)
                    if sock.recv(1 << 16) == data:
                        failed.pop(size, None)
                        break
                    failed[size] = "other bytes"
                except OSError as error:
                    failed[size] = type(error).__name__
    return failed


def segmented(address: str, size: int, count: int, timeout: float = 15) -> int:
    """Send `count` datagrams of `size` bytes in one call (UDP_SEGMENT); how many of the echoes are right."""
    data = [bytes([number]) * size for number in range(count)]
    with socket.socket(_family(address), socket.SOCK_DGRAM) as sock:
        sock.settimeout(timeout)
        sock.connect((address, 7))
        sock.setsockopt(socket.IPPROTO_UDP, 103, size)  # UDP_SEGMENT, linux/udp.h
        sock.send(b"".join(data))
        left = set(data)
        try:
            while left:
                left.discard(sock.recv(1 << 16))
        except TimeoutError:
            pass
    return count - len(left)
