"""A link that delays and loses packets, in user space, for kernels without netem.

Run as a program at the lab's switch, without any import of uvs:  delay.py PORT TAP MS PERCENT

PORT is the switch's end of a host's link, taken out of its bridge. TAP is made, to be put into the bridge in
its place; this program carries frames between the two. Both speak in virtio-net headers (linux/virtio_net.h),
so that packets of many segments and checksums that are not made yet pass as they are.
"""

import fcntl
import os
import random
import select
import socket
import struct
import sys
import time
from collections import deque

ETH_P_ALL = 3  # linux/if_ether.h
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23  # linux/socket.h, linux/if_packet.h
TUNSETIFF = 0x400454CA  # linux/if_tun.h
IFF_TAP, IFF_NO_PI, IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
FRAME_MAX = 1 << 17
WAITING_MAX = 4096  # frames under way each way; more are lost, as in a router's queue
BATCH = 64


def open_port(name: str) -> socket.socket:
    """All frames that come in by the port; what is written leaves by it."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
    sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
    sock.bind((name, ETH_P_ALL))
    sock.setblocking(False)
    return sock


def open_tap(name: str) -> int:
    """A new TAP device; it is gone when this process is."""
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI | IFF_VNET_HDR))
    return fd


class Way:
    """One direction: frames that are under way, with the time at which each arrives."""

    def __init__(self, source: int, target: int, delay: float, loss: float) -> None:
        """`delay`: seconds; `loss`: probability."""
        self.source, self.target, self.delay, self.loss = source, target, delay, loss
        self.waiting: deque[tuple[float, bytes]] = deque()

    def take(self, now: float) -> None:
        """Read what is there, as far as it is not lost."""
        for _ in range(BATCH):
            try:
                frame = os.read(self.source, FRAME_MAX)
            except OSError:  # none is left, or the cable is pulled
                return
            if random.random() >= self.loss and len(self.waiting) < WAITING_MAX:
                self.waiting.append((now + self.delay, frame))

    def give(self, now: float) -> float | None:
        """Write what has arrived; seconds until the next, None if nothing is under way."""
        while self.waiting:
            left = self.waiting[0][0] - now
            if left > 0:
                return left
            try:
                os.write(self.target, self.waiting.popleft()[1])
            except OSError:  # no room, or the other end is down: lost
                continue
        return None


def main(port: str, tap: str, delay: float, loss: float) -> None:
    """Carry frames for ever."""
    outside, inside = open_port(port), open_tap(tap)
    ways = (
        Way(outside.fileno(), inside, delay / 1000, loss / 100),
        Way(inside, outside.fileno(), delay / 1000, loss / 100),
    )
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", address)
    while True:
        now = time.monotonic()
        due = [left for left in (way.give(now) for way in ways) if left is not None]
        ready = select.select([way.source for way in ways], [], [], min(due, default=None))[0]
        now = time.monotonic()
        for way in ways:
            if way.source in ready:
                way.take(now)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
