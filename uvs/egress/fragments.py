"""In which pieces a datagram came that the kernel hands over whole.

ip_vs sees `frag_max_size` in the control block of a packet that was put together: such a packet leaves in
pieces no larger than those that came, since only they are known to fit the path, and an IPv6 packet is too
big when its largest fragment is (net/netfilter/ipvs/ip_vs_xmit.c, __mtu_check_toobig_v6()). NFQUEUE does not
tell it, so packet sockets watch the headers of fragments that arrive, before they are put together.
"""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable

ETH_P: dict[int, int] = {socket.AF_INET: 0x0800, socket.AF_INET6: 0x86DD}
SO_ATTACH_FILTER = 26
SNAP = 64  # bytes of each fragment that are looked at: more than an IPv4 header can have
KEPT = 4096  # datagrams remembered
DRAIN = 4096  # fragments taken at once
BUFFER = 4 << 20
FORGET_S = 60.0  # net.ipv6.ip6frag_time; net.ipv4.ipfrag_time is 30 s
IP6_HLEN, FRAG_HLEN = 40, 8

# Classic BPF (linux/filter.h): load, compare, return how many bytes to hand over.
LDW, LDB, LDH, JEQ, JSET, RET = 0x20, 0x30, 0x28, 0x15, 0x45, 0x06
PKTTYPE = 0xFFFFF004  # SKF_AD_OFF + SKF_AD_PKTTYPE; 0: to this host (what we send ourselves is not)
FILTERS: dict[int, list[tuple[int, int, int, int]]] = {
    socket.AF_INET: [
        (LDW, 0, 0, PKTTYPE),
        (JEQ, 0, 3, 0),
        (LDH, 0, 0, 6),
        (JSET, 0, 1, 0x3FFF),
        (RET, 0, 0, SNAP),
        (RET, 0, 0, 0),
    ],
    socket.AF_INET6: [
        (LDW, 0, 0, PKTTYPE),
        (JEQ, 0, 3, 0),
        (LDB, 0, 0, 6),
        (JEQ, 0, 1, 44),
        (RET, 0, 0, SNAP),
        (RET, 0, 0, 0),
    ],
}


def attach(sock: socket.socket, lines: list[tuple[int, int, int, int]]) -> None:
    """Only packets that a classic BPF program (code, jump if true, jump if false, k) lets pass. OSError."""
    program = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    sock_fprog = struct.pack("@HP", len(lines), ctypes.addressof(program))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, sock_fprog)


class Sizes:
    """The largest fragment of datagrams, told from the heads of their fragments. No I/O.

    An IPv4 datagram is known again by its identification. An IPv6 one has none once it is whole: it is
    known by its length, which the last fragment tells.
    """

    def __init__(self) -> None:
        # Told of each datagram that is remembered (1) or forgotten (-1): both addresses, packed.
        self.count: Callable[[bytes, int], None] = lambda ends, by: None
        self._largest: OrderedDict[bytes, list[int]] = OrderedDict()
        self._whole: OrderedDict[tuple[bytes, int], bytes] = OrderedDict()
        self._old = dict(self._largest)  # what was there at the last forget()

    def __len__(self) -> int:
        """Datagrams in pieces that nobody has asked for yet."""
        return len(self._largest)

    def forget(self) -> None:
        """Forget what was there at the last call already: of datagrams not for us, or that were never whole.

        To be called every FORGET_S, for which no datagram waits for its pieces.
        """
        for key, found in self._old.items():
            if self._largest.get(key) is found:
                del self._largest[key]
                self.count(_ends(key), -1)
        for whole, key in list(self._whole.items()):
            if key not in self._largest:
                del self._whole[whole]
        self._old = dict(self._largest)

    def fragment(self, head: bytes) -> None:
        """A fragment arrived; `head`: its first bytes, at least 40 or 48."""
        if len(head) < 20 or (head[0] >> 4 == 6 and len(head) < IP6_HLEN + FRAG_HLEN):
            return
        if head[0] >> 4 == 4:
            self._add(_v4(head), int.from_bytes(head[2:4], "big"))
            return
        payload = int.from_bytes(head[4:6], "big")
        place = int.from_bytes(head[42:44], "big")
        key = head[8:40] + head[44:48]
        self._add(key, IP6_HLEN + payload)
        if not place & 1:
            total = (place & 0xFFF8) + payload - FRAG_HLEN
            self._whole[head[8:40], total] = key
            if len(self._whole) > KEPT:
                self._whole.popitem(last=False)

    def largest(self, head: bytes, mtu: int = 0) -> int:
        """Bytes of the largest fragment of the whole datagram that begins with `head` (40 bytes of it).

        `mtu`: of the device that it came by, 0 if there is none; what is longer came in pieces, seen or not.
        0: it came whole. To be asked once for each datagram: what is known is forgotten.
        """
        if found := self._seen(head):
            return found
        return mtu if 0 < mtu < _length(head) else 0

    def _seen(self, head: bytes) -> int:
        if not self._largest:
            return 0
        if head[0] >> 4 == 4:
            key: bytes | None = _v4(head)
        else:
            key = self._whole.pop((head[8:40], int.from_bytes(head[4:6], "big")), None)
        found = self._largest.pop(key, None) if key is not None else None
        if key is None or found is None:
            return 0
        self.count(_ends(key), -1)
        return found[0]

    def _add(self, key: bytes, size: int) -> None:
        found = self._largest.get(key)
        if found is not None:
            found[0] = max(found[0], size)
            return
        self._largest[key] = [size]
        self.count(_ends(key), 1)
        if len(self._largest) > KEPT:
            self.count(_ends(self._largest.popitem(last=False)[0]), -1)


def _length(head: bytes) -> int:
    return int.from_bytes(head[2:4]) if head[0] >> 4 == 4 else IP6_HLEN + int.from_bytes(head[4:6])


def _v4(head: bytes) -> bytes:
    return head[12:20] + head[4:6] + head[9:10]


def _ends(key: bytes) -> bytes:
    return key[:8] if len(key) < 32 else key[:32]


class FragmentWatch:
    """The packet sockets, one for each family that is watched."""

    def __init__(self) -> None:
        self.sizes = Sizes()
        self._receive: dict[int, Callable[[int], bytes]] = {}
        self._sockets: list[socket.socket] = []
        self.filenos: dict[int, int] = {}  # by family: readable while heads of fragments wait

    def watch(self, af: int) -> None:
        """Begin to watch a family, unless it is watched. OSError without the privilege for packet sockets."""
        if af in self._receive:
            return
        sock = socket.socket(
            socket.AF_PACKET,
            socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK,
            socket.htons(ETH_P[af]),
        )
        try:
            attach(sock, FILTERS[af])
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
        except OSError:
            sock.close()
            raise
        with contextlib.suppress(OSError):  # what came before there was a filter
            while sock.recv(1):
                pass
        self._sockets.append(sock)
        self.filenos[af] = sock.fileno()
        self._receive[af] = sock.recv

    def largest(self, head: bytes, mtu: int = 0) -> int:
        """As `Sizes.largest`, with all that has arrived until now."""
        self.drain(socket.AF_INET if head[0] >> 4 == 4 else socket.AF_INET6)
        return self.sizes.largest(head, mtu)

    def drain(self, af: int) -> None:
        """Take in what has arrived, so that the socket's buffer does not overflow."""
        receive = self._receive.get(af)
        if receive is None:
            return
        try:
            for _ in range(DRAIN):
                self.sizes.fragment(receive(SNAP))
        except OSError:
            return  # EAGAIN; ENETDOWN when a device went, told once

    def drain_all(self) -> None:
        """`drain` of each family that is watched."""
        for af in self._receive:
            self.drain(af)

    def close(self) -> None:
        """Close the sockets."""
        for sock in self._sockets:
            sock.close()
        self._sockets.clear()
        self._receive.clear()
        self.filenos.clear()
