"""What the queue drivers share: who handles a packet, how a queue is bound, which failures were said."""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Iterable
from typing import NamedTuple

from uvs.ipvs.spec import QueueRow
from uvs.netfilter import nfnetlink
from uvs.netfilter.diversion import NO_PRIVILEGE
from uvs.netfilter.tool import NetfilterError


class Marked(NamedTuple):
    """ACCEPT with another mark, and another payload unless None."""

    payload: bytes | None
    mark: int


# (hook NF_INET_*, IP datagram, mark, input ifindex, does it stand for several TCP segments, what the fast
# path was told of who traces it)
# -> accept, drop, or accept with this payload (and mark).
Handler = Callable[[int, bytes, int, int, bool, int], bool | bytes | Marked]

log = logging.getLogger(__name__)

QUEUE_LENGTH = 8192
# The most that fits a netlink attribute: 16-bit length with its header (nfqnl_recv_config() caps it so).
COPY_RANGE = 0xFFFF - 4
RECEIVE_BUFFER = 32 << 20
SEND_BUFFER = 512 << 10  # a message of many verdicts must fit, whatever net.core.wmem_default is
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
# The kernel frees the queue of a process that was killed about a millisecond after the process is gone.
BIND_PATIENCE = 0.5  # seconds


def is_cut(data: bytes) -> bool:
    """Does the IP header promise more than is there?"""
    if data[0] >> 4 == 6:
        return len(data) >= 6 and 40 + int.from_bytes(data[4:6]) > len(data)
    return len(data) >= 4 and int.from_bytes(data[2:4]) > len(data)


def check(queue: int) -> None:
    """Raise NetfilterError if this process cannot own a queue of that number."""
    if not 0 <= queue < 65536:
        raise NetfilterError(f"queue number {queue} is not within 0..65535: use another --queue-num")
    if not nfnetlink.has_net_admin():
        raise NetfilterError(NO_PRIVILEGE)


def may_come_free(err: int) -> bool:
    """Is the queue somebody's (0: not said whose)? Raises NetfilterError if this kernel has none."""
    if err in (0, errno.EPERM, errno.EBUSY):
        return True
    raise NetfilterError(
        f"this kernel has no NFQUEUE ({os.strerror(err)}): modprobe nfnetlink_queue, "
        "or use a kernel with CONFIG_NETFILTER_NETLINK_QUEUE"
    )


def tune(sock: socket.socket, queue: int, gso: bool = False) -> None:
    """Whole packets, large buffers, and losses that do not stop the rest. `gso`: TCP is not cut for us."""
    sock.send(nfnetlink.queue_parameters(queue, COPY_RANGE, gso))
    for force, ask, size in (
        (SO_RCVBUFFORCE, socket.SO_RCVBUF, RECEIVE_BUFFER),
        (SO_SNDBUFFORCE, socket.SO_SNDBUF, SEND_BUFFER),
    ):
        try:
            sock.setsockopt(socket.SOL_SOCKET, force, size)
        except OSError:  # a user namespace: as much as net.core.rmem_max and wmem_max allow
            sock.setsockopt(socket.SOL_SOCKET, ask, size)
    # Else one overrun has the kernel drop every packet until the socket has been emptied.
    sock.setsockopt(nfnetlink.SOL_NETLINK, nfnetlink.NETLINK_NO_ENOBUFS, 1)


def with_kernels(queues: Iterable[QueueRow]) -> list[QueueRow]:
    """With what the kernel counts of each queue, None where it does not say (in a user namespace).

    `dropped`: because queue or socket were full; `waiting`: now, for a verdict.
    """
    kernel = nfnetlink.queue_rows()
    return [row | _kernels(kernel.get(int(row["queue"] or 0))) for row in queues]


def _kernels(row: list[int] | None) -> QueueRow:
    if row is None:
        return {"dropped": None, "waiting": None}
    return {"dropped": row[5] + row[6], "waiting": row[2]}


class Failures:
    """Exceptions of the handler: counted, each kind from each place said once."""

    def __init__(self) -> None:
        self.count = 0
        self._seen: set[tuple[type[Exception], str, int]] = set()

    def add(self, error: Exception) -> None:
        """The handler failed, its packet is dropped."""
        self.count += 1
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
