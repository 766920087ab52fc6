"""The queue driver over the NetfilterQueue package: one packet at a time, every packet through Python.

The package reads with a buffer of 4096 bytes and copies no more of a packet; this driver asks the kernel for
whole packets itself and reads with a buffer that holds them.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
import warnings
from collections.abc import Callable
from typing import NamedTuple, cast

from netfilterqueue import COPY_PACKET, NetfilterQueue, Packet

from uvs.netfilter import nfnetlink
from uvs.netfilter.diversion import NO_PRIVILEGE, queue_taken
from uvs.netfilter.tool import NetfilterError


class Marked(NamedTuple):
    """ACCEPT with another mark, and another payload unless None."""

    payload: bytes | None
    mark: int


# (hook NF_INET_*, IP datagram, mark, input ifindex) -> accept, drop, or accept with this payload (and mark).
Handler = Callable[[int, bytes, int, int], bool | bytes | Marked]

log = logging.getLogger(__name__)

QUEUE_LENGTH = 8192
# The most that fits a netlink attribute: 16-bit length with its header (nfqnl_recv_config() caps it so).
COPY_RANGE = 0xFFFF - 4
BUFFER = 0x11000  # COPY_RANGE and the other attributes of a packet's message
RECEIVE_BUFFER = 32 << 20
SO_RCVBUFFORCE = 33
BATCH = 256  # packets handled before the event loop has its turn
# The kernel frees the queue of a process that was killed about a millisecond after the process is gone.
BIND_PATIENCE = 0.5  # seconds


def is_cut(data: bytes) -> bool:
    """Does the IP header promise more than is there?"""
    if data[0] >> 4 == 6:
        return len(data) >= 6 and 40 + int.from_bytes(data[4:6]) > len(data)
    return len(data) >= 4 and int.from_bytes(data[2:4]) > len(data)


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
        self.errors = 0
        self.lost = 0
        self._handle = handle
        self._last_id = 0
        self._seen: set[tuple[type[Exception], str, int]] = set()
        self._queue = self._bind(queue)
        # Its own descriptor of the package's socket: the options and reads below are not in its interface.
        self._socket = socket.socket(fileno=os.dup(self._queue.get_fd()))
        self._configure()
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

    def kernel_drops(self) -> int | None:
        """Packets that the kernel dropped because queue or socket were full; None if it does not say."""
        row = nfnetlink.queue_row(self.queue)
        return None if row is None else row[5] + row[6]

    def _bind(self, number: int) -> NetfilterQueue:
        if not 0 <= number < 65536:
            raise NetfilterError(f"queue number {number} is not within 0..65535: use another --queue-num")
        if not nfnetlink.has_net_admin():
            raise NetfilterError(NO_PRIVILEGE)
        deadline = time.monotonic() + BIND_PATIENCE
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
            if reason not in (0, errno.EPERM, errno.EBUSY):
                raise NetfilterError(
                    f"this kernel has no NFQUEUE ({os.strerror(reason)}): modprobe nfnetlink_queue, "
                    "or use a kernel with CONFIG_NETFILTER_NETLINK_QUEUE"
                )
            if time.monotonic() > deadline:
                raise NetfilterError(queue_taken(number) if reason else f"queue {number}: {said}")
            time.sleep(0.005)

    def _configure(self) -> None:
        sock = self._socket
        sock.send(nfnetlink.queue_parameters(self.queue, COPY_RANGE))
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
        except OSError:  # a user namespace: as much as net.core.rmem_max allows
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
        # Else one overrun has the kernel drop every packet until the socket has been emptied.
        sock.setsockopt(nfnetlink.SOL_NETLINK, nfnetlink.NETLINK_NO_ENOBUFS, 1)

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
                verdict = self._handle(packet.hook, data, packet.get_mark(), packet.indev)
                if verdict.__class__ is not bool:
                    self._change(packet, cast(bytes | Marked, verdict))
        except Exception as error:
            verdict = False
            self._failed(error)
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

    def _failed(self, error: Exception) -> None:
        self.errors += 1
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        kind = (
            type(error),
            place.tb_frame.f_code.co_filename if place else "",
            place.tb_lineno if place else 0,
        )
        if kind not in self._seen:
            self._seen.add(kind)
            log.error("a packet was dropped: the handler failed (said once)", exc_info=error)


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
