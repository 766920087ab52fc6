"""The queue driver over the NetfilterQueue package: one packet at a time, every packet through Python.

The package reads with a buffer of 4096 bytes and copies no more of a packet; this driver asks the kernel for
whole packets itself and reads with a buffer that holds them.
"""

from __future__ import annotations

import errno
import os
import socket
import time
import warnings
from collections.abc import Callable
from typing import cast

from netfilterqueue import COPY_PACKET, NetfilterQueue, Packet

from uvs.ipvs.spec import QueueRow
from uvs.netfilter import driver, nfnetlink
from uvs.netfilter.diversion import queue_taken
from uvs.netfilter.driver import COPY_RANGE, QUEUE_LENGTH, RECEIVE_BUFFER, Failures, Handler, Marked, is_cut
from uvs.netfilter.tool import NetfilterError

BUFFER = 0x11000  # COPY_RANGE and the other attributes of a packet's message
BATCH = 256  # packets handled before the event loop has its turn


class NetfilterQueueDriver:
    """Owns one queue of this network namespace and answers every packet of it.

    Raises NetfilterError from the constructor: no privilege, no NFQUEUE in this kernel, queue taken.

    Counters: `packets` handed over; `cut` dropped because the queue did not hand over the whole of them;
    `errors` dropped because the handler raised; `lost` never handed over, seen as gaps in the packets' ids.
    """

    def __init__(self, queue: int, handle: Handler) -> None:
        self.queue = queue
        self.packets = 0
        self.cut = 0
        self.lost = 0
        self._handle = handle
        self._last_id = 0
        self._failures = Failures()
        self._queue = self._bind(queue)
        # Its own descriptor of the package's socket: the options and reads below are not in its interface.
        self._socket = socket.socket(fileno=os.dup(self._queue.get_fd()))
        driver.tune(self._socket, queue)
        self._reader = _Reader(self._socket.recv)

    def fileno(self) -> int:
        """Readable while packets wait."""
        return self._queue.get_fd()

    def run(self) -> None:
        """Handle the packets that wait, at most a batch of them; never blocks."""
        self._reader.left = BATCH
        self._queue.run_socket(cast(socket.socket, self._reader))

    def close(self) -> None:
        """Give the queue back; the kernel drops what still waits in it."""
        self._socket.close()
        self._queue.unbind()

    @property
    def errors(self) -> int:
        """Packets dropped because the handler raised."""
        return self._failures.count

    def start(self) -> None:
        """Nothing is to begin: packets are taken by `run`."""

    def turns(self) -> list[int]:
        """No threads: packets are taken by `run`."""
        return []

    def tick(self) -> None:
        """Nothing is refused here: what leaves does by `handle`."""

    def hand_over(self) -> dict[int, int]:
        """None: the package cannot take a queue that is bound already, the next driver binds it anew."""
        self.close()
        return {}

    def counters(self) -> list[QueueRow]:
        """Its row of `NetnsIpvs.queues`, without the kernel's part."""
        return [
            {
                "queue": self.queue,
                "class": "all",
                "packets": self.packets,
                "fast": 0,
                "slow": self.packets,
                "lost": self.lost,
                "cut": self.cut,
                "refused": 0,
                "unsaid": 0,
                "errors": self.errors,
            }
        ]

    def _bind(self, number: int) -> NetfilterQueue:
        driver.check(number)
        deadline = time.monotonic() + driver.BIND_PATIENCE
        while True:
            queue = None
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # a socket buffer less than asked for
                    queue = NetfilterQueue()
                    queue.bind(
                        number, self._packet, max_len=QUEUE_LENGTH, mode=COPY_PACKET, sock_len=RECEIVE_BUFFER
                    )
                return queue
            except OSError as error:
                reason, said = nfnetlink.queue_errno(number), str(error)
            driver.may_come_free(reason)
            if time.monotonic() > deadline:
                raise NetfilterError(queue_taken(number) if reason else f"queue {number}: {said}")
            time.sleep(0.005)

    def _packet(self, packet: Packet) -> None:
        self.packets += 1
        number = packet.id
        if number != self._last_id + 1:
            self.lost += (number - self._last_id - 1) & 0xFFFFFFFF
        self._last_id = number
        verdict: bool | bytes | Marked = False
        try:
            data = packet.get_payload()
            if is_cut(data):
                self.cut += 1
            else:
                verdict = self._handle(packet.hook, data, packet.get_mark(), packet.indev, False, 0)
                if verdict.__class__ is not bool:
                    self._change(packet, cast(bytes | Marked, verdict))
        except Exception as error:
            verdict = False
            self._failures.add(error)
        finally:
            if verdict:
                packet.accept()
            else:
                packet.drop()

    @staticmethod
    def _change(packet: Packet, verdict: bytes | Marked) -> None:
        payload, mark = verdict if isinstance(verdict, Marked) else (verdict, None)
        if payload is not None:
            if len(payload) > COPY_RANGE:
                raise ValueError(f"a payload of {len(payload)} bytes fits no verdict")
            packet.set_payload(payload)
        if mark is not None:
            packet.set_mark(mark)


class _Reader:
    """What NetfilterQueue.run_socket() reads from: whole packets, and a batch of them at most."""

    def __init__(self, recv: Callable[[int, int], bytes]) -> None:
        self.left = 0
        self._recv = recv

    def recv(self, _size: int) -> bytes:
        if self.left <= 0:
            raise BlockingIOError(errno.EAGAIN, "batch done")
        self.left -= 1
        return self._recv(BUFFER, socket.MSG_DONTWAIT)
