"""The engine's own queue driver: packets in batches, those of known connections without Python."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from uvs.engine.core import Fast, FastPath
from uvs.engine.io import PAYLOAD_MAX, Injector, Queue, Queued
from uvs.ipvs.spec import QueueRow
from uvs.netfilter import driver, nfnetlink
from uvs.netfilter.diversion import queue_taken
from uvs.netfilter.driver import QUEUE_LENGTH, Failures, Handler, Marked, is_cut
from uvs.netfilter.tool import NetfilterError

BUDGET = 1024  # packets before the event loop has its turn
_DROP = False, b"", None


class NativeDriver:
    """Owns one queue of this network namespace and answers every packet of it.

    `handle` gets the packets that the fast path leaves to the hook path; `begin` and `end` are called around
    each batch, once its packets have come, `end` with (next hop, errno) of the last packet that the fast path
    could not send for good.
    `gso`: TCP comes as it was sent or received, in packets of many segments; no other protocol may come to
    such a queue, since nobody could tell where its packets are to be cut.
    Raises NetfilterError from the constructor: no privilege, no NFQUEUE in this kernel, queue taken.
    Counters as of `NetfilterQueueDriver`.
    """

    def __init__(
        self,
        queue: int,
        handle: Handler,
        fastpath: FastPath,
        injector: Injector,
        begin: Callable[[], None] = lambda: None,
        end: Callable[[tuple[int, int] | None], None] = lambda refusal: None,
        gso: bool = False,
    ) -> None:
        self.queue = queue
        self._gso = gso
        self._handle, self._begin, self._end = handle, begin, end
        self._failures = Failures()
        self._cut = 0
        self._fastpath = fastpath
        self._socket = _bind(queue, gso)
        self._socket.setblocking(False)
        self._queue = Queue(self._socket.fileno(), queue, fastpath, injector)

    def fileno(self) -> int:
        """Readable while packets wait."""
        return self._socket.fileno()

    def run(self) -> None:
        """Handle the packets that wait, at most a budget of them and a batch; never blocks."""
        queue, left = self._queue, BUDGET
        while left > 0 and (received := queue.receive()):
            left -= received
            self._prepare()
            for packet in queue.packets():
                queue.verdict(packet.id, *self._verdict(packet))
            self._end(queue.take_refusal())

    def _prepare(self) -> None:
        try:
            self._begin()
        except Exception as error:  # the batch's packets are due all the same: each by the hook path
            self._failures.add(error)
            self._fastpath.flags = Fast.OFF

    def _verdict(self, packet: Queued) -> tuple[bool, bytes, int | None]:
        if is_cut(packet.data):
            self._cut += 1
            return _DROP
        try:
            return _spelled(self._handle(packet.hook, packet.data, packet.mark, packet.indev, packet.gso))
        except Exception as error:
            self._failures.add(error)
            return _DROP

    def close(self) -> None:
        """Give the queue back; the kernel drops what still waits in it."""
        self._socket.close()

    def counters(self) -> QueueRow:
        """Its row of `NetnsIpvs.queues`, without the kernel's part."""
        info = self._queue.info
        return {
            "queue": self.queue,
            "class": "tcp" if self._gso else "other",
            "packets": info["packets"],
            "fast": info["fast"],
            "slow": info["packets"] - info["fast"] - info["cut"],
            "lost": info["lost"],
            "cut": info["cut"] + self._cut,
            "refused": info["refused"],
            "unsaid": info["unsaid"],
            "errors": self.errors,
        }

    @property
    def packets(self) -> int:
        return self._queue.info["packets"]

    @property
    def fast(self) -> int:
        return self._queue.info["fast"]

    @property
    def lost(self) -> int:
        return self._queue.info["lost"]

    @property
    def cut(self) -> int:
        return self._queue.info["cut"] + self._cut

    @property
    def refused(self) -> int:
        return self._queue.info["refused"]

    @property
    def errors(self) -> int:
        return self._failures.count


def _bind(queue: int, gso: bool) -> socket.socket:
    driver.check(queue)
    deadline = time.monotonic() + driver.BIND_PATIENCE
    sock = nfnetlink.connect()
    try:
        while err := nfnetlink.bind_queue(sock, queue, QUEUE_LENGTH):
            driver.may_come_free(err)
            if time.monotonic() > deadline:
                raise NetfilterError(queue_taken(queue))
            time.sleep(0.005)
        driver.tune(sock, queue, gso)
    except BaseException:
        sock.close()
        raise
    return sock


def _spelled(verdict: bool | bytes | Marked) -> tuple[bool, bytes, int | None]:
    if isinstance(verdict, bool) or not verdict:
        return bool(verdict), b"", None
    payload, mark = verdict if isinstance(verdict, Marked) else (verdict, None)
    if payload is not None and len(payload) > PAYLOAD_MAX:
        raise ValueError(f"a payload of {len(payload)} bytes fits no verdict")
    return True, payload or b"", mark
