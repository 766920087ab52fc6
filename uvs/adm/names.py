"""Names instead of numbers in listings, as long as the resolver answers in time."""

from __future__ import annotations

import queue
import socket
import threading
import time
import weakref
from contextlib import suppress

from uvs.adm.address import PROTOCOLS, numeric

BUDGET_S = 5.0  # all look-ups of one listing together: a resolver that is down must not hold it up for ever


class Names:
    """Shows endpoints, by name unless `plain`."""

    def __init__(self, plain: bool, budget: float = BUDGET_S) -> None:
        self.plain = plain
        self._left = budget
        self._started = False
        self._questions: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._hosts: dict[bytes, str | None] = {}
        self._services: dict[tuple[int, int], str | None] = {}

    def endpoint(self, af: int, addr: bytes, port: int, protocol: int) -> str:
        """`10.0.0.1:80` or `host:http`; IPv6 in brackets."""
        if self.plain:
            return numeric(af, addr, port)
        host = self._host(addr) or socket.inet_ntop(af, addr)
        service = self._service(port, protocol) or str(port)
        return f"[{host}]:{service}" if af == socket.AF_INET6 else f"{host}:{service}"

    def _service(self, port: int, protocol: int) -> str | None:
        key = (port, protocol)
        if protocol not in PROTOCOLS:
            return None
        if key not in self._services:
            self._services[key] = None
            with suppress(OSError):
                self._services[key] = socket.getservbyport(port, PROTOCOLS[protocol])
        return self._services[key]

    def _host(self, addr: bytes) -> str | None:
        if addr not in self._hosts:
            self._hosts[addr] = self._ask(addr)
        return self._hosts[addr]

    def _ask(self, addr: bytes) -> str | None:
        """One look-up, within what is left of the budget; numbers once it is used up."""
        if self._left <= 0:
            return None
        if not self._started:
            self._started = True
            queues = self._questions, self._answers
            threading.Thread(target=_look_up, args=queues, daemon=True).start()
            weakref.finalize(self, self._questions.put, None)  # a file of commands may have many listings
        began = time.monotonic()
        self._questions.put(addr)
        with suppress(queue.Empty):
            found = self._answers.get(timeout=self._left)
            self._left -= time.monotonic() - began
            return found
        self._left = 0
        return None


def _look_up(questions: queue.SimpleQueue[bytes | None], answers: queue.SimpleQueue[str | None]) -> None:
    """The resolver's thread: it may be left behind in a look-up."""
    while (addr := questions.get()) is not None:
        name = None
        with suppress(OSError):
            af = socket.AF_INET if len(addr) == 4 else socket.AF_INET6
            name = socket.gethostbyaddr(socket.inet_ntop(af, addr))[0]
        answers.put(name)
