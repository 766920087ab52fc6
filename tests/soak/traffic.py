"""What clients do in a soak, as functions that run on the client until `stop` is set.

Each has ports of its own and uses one after the other, so that no connection of a service looks like an earlier one.
Each returns a Tally, as plain data.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ftplib
import hashlib
import io
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from support import traffic as packets
from support.clients import Progress

from uvs.lab.servers import payload
from uvs.lab.topology import ECHO_PORT, HTTP_PORT

SIZES = (1, 3000, 70_000, 400_000)
DATA = {size: payload(size) for size in SIZES}
SUMS = {size: hashlib.sha256(data).hexdigest() for size, data in DATA.items()}
PATIENCE_S = 30.0  # for what must come
LAZY_S = 4.0  # for what may never come
AT_ONCE = 100

# "made ADDRESS": connections or flows; "done WHAT"; "cut WHAT": not done, where that is allowed;
# "wrong WHAT: WHY": never allowed
Tally = Counter[str]


T = TypeVar("T")


class Clients:
    """One process of clients: flows begin at a rate, each on a port of its own."""

    def __init__(self, stop: Progress, seed: int, ports: range, rate: float) -> None:
        self.stop, self.rate = stop, rate
        self.rnd = random.Random(seed)
        self.tally: Tally = Counter()
        self._ports, self._next = ports, 0

    def port(self) -> int:
        """The next one."""
        self._next += 1
        return self._ports[self._next % len(self._ports)]

    async def at_a_port(self, begin: Callable[[int], Awaitable[T]]) -> T:
        """What `begin` begins at the next port that is free: old ones may still be in TIME_WAIT."""
        for _ in self._ports:
            try:
                return await begin(self.port())
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
        raise OSError(errno.EADDRINUSE, "no port is free")

    async def run(self, begin: Callable[[], Awaitable[None]]) -> Tally:
        """Begin flows until told to stop, wait for the last ones."""
        flows: set[asyncio.Task[None]] = set()
        while not self.stop.value:
            if len(flows) < AT_ONCE:
                task = asyncio.ensure_future(begin())
                flows.add(task)
                task.add_done_callback(flows.discard)
            await asyncio.sleep(self.rnd.expovariate(self.rate))
        if flows:
            await asyncio.wait(flows)
        return self.tally

    @contextlib.contextmanager
    def doing(self, what: str, may_fail: bool) -> Iterator[None]:
        """Count how it ends; other bytes than were sent (ValueError) are wrong anywhere."""
        try:
            yield
        except ValueError as error:
            self.tally[f"wrong {what}: {error}"] += 1
        except (OSError, EOFError, ftplib.Error) as error:
            self.tally[f"cut {what}" if may_fail else f"wrong {what}: {error!r}"] += 1
        else:
            self.tally[f"done {what}"] += 1


def _same(got: object, sent: object) -> None:
    if got != sent:
        raise ValueError(f"{str(got)[:80]!r} is not {str(sent)[:80]!r}")


# ---- TCP


class Http:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, line: str, body: bytes = b"", more: str = "") -> tuple[dict[str, str], bytes]:
        """A request; the fields of the answer, and its body."""
        self.writer.write(f"{line} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body)
        await self.writer.drain()
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        fields = {k.lower(): v.strip() for k, _, v in (row.partition(":") for row in head.splitlines()[1:])}
        return fields, await self.reader.readexactly(int(fields["content-length"]))

    async def close(self, rnd: random.Random, client: Clients) -> None:
        """The server closes."""
        _, name = await self.ask("GET /", more="Connection: close\r\n")
        _same(name[:2], b"rs")
        _same(await self.reader.read(), b"")

    async def download(self, rnd: random.Random, client: Clients) -> None:
        """What comes is what its sum says."""
        size = rnd.choice(SIZES)
        _, body = await self.ask(f"GET /bytes/{size}")
        _same(hashlib.sha256(body).hexdigest(), SUMS[size])

    async def upload(self, rnd: random.Random, client: Clients) -> None:
        """What came there is what was sent."""
        size = rnd.choice(SIZES)
        _, answer = await self.ask("PUT /", DATA[size])
        _same(answer.split()[1].decode(), SUMS[size])

    async def keep(self, rnd: random.Random, client: Clients) -> None:
        """Requests now and then, all answered by one server."""
        names = set()
        for _ in range(rnd.randrange(2, 8)):
            names.add((await self.ask("GET /"))[1])
            await asyncio.sleep(0 if client.stop.value else rnd.uniform(0, 3))
        _same(len(names), 1)

    async def reset(self, rnd: random.Random, client: Clients) -> None:
        """Given up in the middle, by RST."""
        self.writer.write(b"GET /bytes/400000 HTTP/1.1\r\n\r\n")
        await self.reader.read(1000)
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def silent(self, rnd: random.Random, client: Clients) -> None:
        """Nothing is said; then it is closed."""
        await asyncio.sleep(0 if client.stop.value else rnd.uniform(0, 8))


ACTS = (Http.close, Http.close, Http.close, Http.download, Http.upload, Http.keep, Http.reset, Http.silent)


def tcp(
    family: int, addresses: list[str], may_fail: bool, stop: Progress, seed: int, ports: range, rate: float
) -> Tally:
    """HTTP connections to any of the addresses."""
    clients = Clients(stop, seed, ports, rate)
    source = "0.0.0.0" if family == 4 else "::"
    patience = LAZY_S if may_fail else PATIENCE_S

    async def flow() -> None:
        address, act = clients.rnd.choice(addresses), clients.rnd.choice(ACTS)
        what = f"tcp {act.__name__} {address}"
        with clients.doing(what, may_fail):
            opening = clients.at_a_port(
                lambda port: asyncio.open_connection(address, HTTP_PORT, local_addr=(source, port))
            )
            reader, writer = await asyncio.wait_for(opening, patience)
            clients.tally[f"made {address} {HTTP_PORT}"] += 1
            try:
                await asyncio.wait_for(act(Http(reader, writer), clients.rnd, clients), patience + 30)
            finally:
                writer.close()

    return asyncio.run(clients.run(flow))


# ---- UDP


class Echo(asyncio.DatagramProtocol):
    """What comes back."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[bytes | Exception] = asyncio.Queue()

    def datagram_received(self, data: bytes, addr: object) -> None:
        """A datagram."""
        self.came.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        """An ICMP error."""
        self.came.put_nowait(exc)


def udp(
    family: int, addresses: list[str], may_fail: bool, stop: Progress, seed: int, ports: range, rate: float
) -> Tally:
    """Flows of some datagrams, each echoed; some are larger than a link's MTU."""
    clients = Clients(stop, seed, ports, rate)
    source = "0.0.0.0" if family == 4 else "::"

    async def flow() -> None:
        address = clients.rnd.choice(addresses)
        with clients.doing(f"udp {address}", may_fail):
            loop = asyncio.get_running_loop()
            transport, echo = await clients.at_a_port(
                lambda port: loop.create_datagram_endpoint(
                    Echo, local_addr=(source, port), remote_addr=(address, ECHO_PORT)
                )
            )
            clients.tally[f"made {address} {ECHO_PORT}"] += 1
            try:
                for _ in range(clients.rnd.randrange(1, 6)):
                    data = clients.rnd.randbytes(clients.rnd.choice((1, 100, 1200, 3000)))
                    # Of what is too large for a tunnel the sender is told by ICMP: again, in fragments.
                    for last in (False, True):
                        transport.sendto(data)
                        answer = await asyncio.wait_for(
                            echo.came.get(), LAZY_S if may_fail or not last else PATIENCE_S
                        )
                        if not isinstance(answer, Exception):
                            break
                        if last:
                            raise answer
                    _same(answer, data)
                    await asyncio.sleep(0 if clients.stop.value else clients.rnd.uniform(0, 1))
            finally:
                transport.close()

    return asyncio.run(clients.run(flow))


# ---- others


def ftp(addresses: list[str], stop: Progress, seed: int, size: int) -> Tally:
    """Files, by passive and by active transfers."""
    clients = Clients(stop, seed, range(1), 0)
    wanted = hashlib.sha256(payload(size)).hexdigest()
    while not stop.value:
        address = clients.rnd.choice(addresses)
        passive = clients.rnd.random() < 0.5
        what = f"ftp {'passive' if passive else 'active'} {address}"
        with clients.doing(what, False), ftplib.FTP(address, timeout=PATIENCE_S) as session:
            session.login()
            session.set_pasv(passive)
            for _ in range(clients.rnd.randrange(1, 4)):
                got = io.BytesIO()
                session.retrbinary("RETR data", got.write)
                _same(hashlib.sha256(got.getvalue()).hexdigest(), wanted)
    return clients.tally


def syns(family: int, sources: str, addresses: list[str], stop: Progress, seed: int, rate: float) -> Tally:
    """SYNs from hosts that do not exist, with `sources` (a prefix) for addresses: what is opened stays half open."""
    clients = Clients(stop, seed, range(1), rate)
    af = socket.AF_INET if family == 4 else socket.AF_INET6

    async def main() -> Tally:
        with socket.socket(af, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:  # headers are ours

            async def one() -> None:
                address = clients.rnd.choice(addresses)
                source = socket.inet_pton(af, f"{sources}{clients.rnd.randrange(200, 250)}")
                segment = packets.tcp(clients.rnd.randrange(1024, 65536), HTTP_PORT, packets.SYN)
                syn = packets.filled(packets.ip(source, socket.inet_pton(af, address), packets.TCP, segment))
                with contextlib.suppress(OSError):
                    sock.sendto(syn, (address, 0))
                    clients.tally[f"done syn {address}"] += 1

            return await clients.run(one)

    return asyncio.run(main())
