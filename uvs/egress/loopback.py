"""What the director tells its own host: ICMP errors for a client that is the director itself.

A frame put on the loopback device would be refused for its source (a local address, fib_validate_source);
a raw IP socket sends as the host itself does, with a route.
"""

from __future__ import annotations

import errno
import socket


class Loopback:
    """Raw IP sockets, opened when first needed, whose packets bear `mark`."""

    def __init__(self, mark: int) -> None:
        self._mark = mark
        self._sockets: dict[int, socket.socket] = {}

    def send(self, af: int, addr: bytes, data: bytes) -> int:
        """One IP packet to a local address. Never blocks. 0 or errno."""
        try:
            self._socket(af).sendto(data, socket.MSG_DONTWAIT, (socket.inet_ntop(af, addr), 0))
        except OSError as error:
            return error.errno or errno.EIO
        return 0

    def _socket(self, af: int) -> socket.socket:
        if af not in self._sockets:
            # IPPROTO_RAW: the IP header is ours, in IPv6 too (net/ipv6/raw.c, rawv6_init_sk).
            s = socket.socket(af, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW)
            s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, self._mark)
            self._sockets[af] = s
        return self._sockets[af]

    def close(self) -> None:
        """Close the sockets."""
        for s in self._sockets.values():
            s.close()
        self._sockets.clear()
