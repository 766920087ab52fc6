"""The engine's own queue driver: threads that take packets in batches, most of them without Python."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from uvs.engine.core import FastPath
from uvs.engine.io import PAYLOAD_MAX, QUEUE_SYN, Injector, Queue, Queued, Worker
from uvs.ipvs.spec import QueueRow
from uvs.netfilter import driver, nfnetlink
from uvs.netfilter.diversion import queue_taken
from uvs.netfilter.driver import QUEUE_LENGTH, Failures, Handler, Marked, is_cut
from uvs.netfilter.tool import NetfilterError

BUDGET = 256  # packets on the hook path before the event loop has its turn
# Of one queue before the next has its turn; of what opens connections, while others have packets.
SHARE, SYN_SHARE = 32, 8
_DROP = False, b"", None


class QueueSpec(NamedTuple):
    """A queue: its number, what class of packets comes to it, and how it is served.

    `gso`: TCP comes as it was sent or received, in packets of many segments; no other protocol may come to
    such a queue, since nobody could tell where its packets are to be cut. `syn`: what opens connections,
    which must not keep the packets of known ones waiting.
    """

    number: int
    kind: str = "all"
    gso: bool = False
    syn: bool = False


class _Queue:
    """One of them, open."""

    def __init__(self, spec: QueueSpec, fd: int) -> None:
        self.spec = spec
        self.socket = _bind(spec.number, spec.gso) if fd < 0 else socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self.queue = Queue(self.socket.fileno(), spec.number, begun=fd >= 0)
        self.cut = self.errors = 0

    def counters(self) -> QueueRow:
        """Its row of `NetnsIpvs.queues`, without the kernel's part."""
        counted: QueueRow = {"queue": self.spec.number, "class": self.spec.kind, **self.queue.info}
        return counted | {"cut": self.queue.info["cut"] + self.cut, "errors": self.errors}


class NativeDriver:
    """Owns queues of this network namespace and answers every packet of them.

    `workers`: for each thread the queues that it serves, most urgent first. What their fast path leaves comes
    to `handle`, on the thread that calls `run`. `mark` is put on what they send.
    `refused` is told of the next hop of packets that the kernel would not send for good. `bound` says a
    descriptor for the number of a queue that this process owns already, else -1; `busy_poll`: of `Worker`.
    Raises NetfilterError from the constructor: no privilege, no NFQUEUE in this kernel, queue taken.
    """

    def __init__(
        self,
        workers: Sequence[Sequence[QueueSpec]],
        handle: Handler,
        fastpath: FastPath,
        mark: int,
        refused: Callable[[int], None] = lambda index: None,
        bound: Callable[[int], int] = lambda number: -1,
        busy_poll: int = 0,
    ) -> None:
        self._handle, self._refused = handle, refused
        self._fastpath, self._mark = fastpath, mark
        self._failures = Failures()
        with contextlib.ExitStack() as undo:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            undo.callback(os.close, self._wake)
            opened: dict[QueueSpec, _Queue] = {}
            for spec in sorted(spec for specs in workers for spec in specs):
                opened[spec] = _Queue(spec, bound(spec.number))
                undo.callback(opened[spec].socket.close)
            self._queues = sorted(opened.values(), key=lambda each: (each.spec.syn, each.spec.number))
            self._workers: list[Worker] = []
            for specs in workers:
                worker = Worker(fastpath, mark, self._wake, busy_poll)
                undo.callback(worker.close)  # before a socket is
                self._workers.append(worker)
                for spec in specs:
                    worker.add(opened[spec].queue, QUEUE_SYN if spec.syn else 0)
            self._undo = undo.pop_all()

    def start(self) -> None:
        """Begin to take packets."""
        for worker in self._workers:
            worker.start()

    def turns(self) -> list[int]:
        """How often each thread went round, once a second at least."""
        return [worker.turns for worker in self._workers]

    def fileno(self) -> int:
        """Readable while packets wait for `run`."""
        return self._wake

    def run(self) -> None:
        """Handle packets that the fast path left, at most a budget of them; never blocks."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        left, found = BUDGET, True
        while found and left > 0:
            found = False
            for each in self._queues:
                done = self._some(each, SYN_SHARE if each.spec.syn and found else SHARE)
                left -= done
                found = found or done > 0
        if found:
            os.eventfd_write(self._wake, 1)
        if any(each.queue.full for each in self._queues):
            for worker in self._workers:
                worker.kick()

    def tick(self) -> None:
        """Tell of next hops that the kernel would not send to; a few times a second."""
        for each in self._queues:
            if refusal := each.queue.take_refusal():
                self._refused(refusal[0])

    def _some(self, each: _Queue, share: int) -> int:
        for done in range(share):
            packet = each.queue.slow()
            if packet is None:
                return done
            each.queue.verdict(*self._verdict(each, packet))
        return share

    def _verdict(self, each: _Queue, packet: Queued) -> tuple[bool, bytes, int | None]:
        if is_cut(packet.data):
            each.cut += 1
            return _DROP
        try:
            return _spelled(
                self._handle(packet.hook, packet.data, packet.mark, packet.indev, packet.gso, packet.traced)
            )
        except Exception as error:
            each.errors += 1
            self._failures.add(error)
            return _DROP

    def hand_over(self) -> dict[int, int]:
        """End the threads and do what they left; descriptors of the queues by number, for another driver."""
        for worker in self._workers:
            worker.close()
        self._workers.clear()
        with contextlib.closing(Injector(self._mark)) as injector:
            while any(each.queue.open or each.queue.full for each in self._queues):
                self.run()
                for each in self._queues:
                    if each.queue.full:  # what a thread has in hand the kernel does not tell of again
                        each.queue.step(self._fastpath, injector)
        for each in self._queues:
            each.queue.settle()
        return {each.spec.number: each.socket.detach() for each in self._queues}

    def close(self) -> None:
        """End the threads and give the queues back; the kernel drops what still waits in them."""
        self._undo.close()

    def counters(self) -> list[QueueRow]:
        """The rows of `NetnsIpvs.queues`, without the kernel's part."""
        return [each.counters() for each in sorted(self._queues, key=lambda each: each.spec.number)]


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
