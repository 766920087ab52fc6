"""A control client of a director on paper in the same process: no socket, no thread.

Each request is handled as it is sent, and its answers wait to be received; so a test can run hundreds of
tables a second through the real client, and a fault's traceback reaches from one end to the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from support.world import World
from uvs.control.client import Client
from uvs.control.genetlink import PAUSE, Answer, Dispatcher
from uvs.control.ipvs_family import IpvsFamily
from uvs.control.uvs_family import UvsFamily


def dispatcher(world: World) -> Dispatcher:
    """What stands behind the control socket of a director."""
    ipvs = world.ipvs
    return Dispatcher([IpvsFamily(ipvs.services, ipvs.table).family(), UvsFamily(ipvs).family()])


def datagrams(answers: list[Answer]) -> Iterator[bytes]:
    """The answers as they are sent, dumps made on the way."""
    for answer in answers:
        yield from [answer] if isinstance(answer, bytes) else (part for part in answer if part != PAUSE)


class PaperSocket:
    """The client's end of a control socket."""

    def __init__(self, handler: Dispatcher) -> None:
        self._handler = handler
        self._answers: deque[Iterator[bytes]] = deque()

    def send(self, datagram: bytes, flags: int = 0) -> int:
        self._answers.append(datagrams(self._handler.handle(datagram, admin=True).answers))
        return len(datagram)

    def recv(self, size: int) -> bytes:
        while self._answers:
            for datagram in self._answers[0]:
                assert len(datagram) <= size
                return datagram
            self._answers.popleft()
        raise TimeoutError  # as when nothing comes

    def settimeout(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class PaperClient(Client):
    """`uvs.control.client.Client` on such a socket."""

    def __init__(self, handler: Dispatcher) -> None:
        self.path, self.timeout = "paper", 0.0
        self._seq = 0
        self._families = {}
        self._sock = PaperSocket(handler)  # type: ignore[assignment]
