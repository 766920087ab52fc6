"""The kernel's end of a queue, on a socket of the test's own: hands packets over, reads verdicts."""

from __future__ import annotations

import socket
import struct
from typing import Any, NamedTuple

from support.packets import CLIENT, CPORT, DPORT, SERVER, VIP, VPORT, packed
from uvs.engine.core import AF_INET, ConnFlag, DestFlag, FastPath, NextHop, NextHops, Table, Trace
from uvs.engine.io import BATCH, Injector, Queue, ffi
from uvs.netfilter.nfnetlink import NFNL_SUBSYS_QUEUE, attribute, message

PACKET, VERDICT, BATCH_VERDICT = (NFNL_SUBSYS_QUEUE << 8 | kind for kind in (0, 1, 3))
PACKET_HDR, VERDICT_HDR, MARK, PAYLOAD, CAP_LEN, SKB_INFO = 1, 2, 3, 10, 13, 14
CSUMNOTREADY, GSO = 1, 2  # NFQA_SKB_*
LOCAL_IN, FORWARD, LOCAL_OUT = 1, 2, 3
NEXT_HOP = 5
QUEUE = 71


class Said(NamedTuple):
    id: int
    accept: bool
    payload: bytes = b""
    mark: int | None = None


class Closed:
    """An injector whose sockets are closed: whatever is sent is refused."""

    def __init__(self) -> None:
        self._c = ffi.new("struct uvs_inject *", {"raw": -1, "cooked": -1})


class Kernel:
    """The other end of the socket; a connection is known, whose server is reached by NEXT_HOP, which is `hop`."""

    def __init__(
        self,
        injector: Injector | Closed | None = None,
        hop: NextHop | None = None,
        method: int = ConnFlag.MASQ,
    ) -> None:
        self.socket, self.ours = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        for each in (self.socket, self.ours):
            each.setblocking(False)
        self.table = Table(None, 10)
        dest = self.table.dest_new()
        assert dest
        dest.flags, dest.conn_flags = DestFlag.AVAILABLE, method
        conn = self.table.conn_new(
            AF_INET, 6, packed(CLIENT), CPORT, packed(VIP), VPORT, AF_INET, packed(SERVER), DPORT, 0, 0,
            dest.index, 0,
        )  # fmt: skip
        assert conn
        conn.nexthop = NEXT_HOP
        hops = NextHops()
        hops.put(NEXT_HOP, hop or NextHop(1, 1500), True)
        self.trace = Trace(self.table)
        self.fastpath = FastPath(self.table, hops, trace=self.trace)
        self.queue = Queue(self.ours.fileno(), QUEUE)
        self.injector: Any = injector or Closed()
        self.waiting: list[int] = []  # packets without a verdict

    def step(self, budget: int = BATCH) -> int:
        """A batch; how many packets."""
        return self.queue.step(self.fastpath, self.injector, budget)

    def hand(self, number: int, data: bytes, hook: int = LOCAL_IN, more: bytes = b"") -> None:
        """A packet, as nfqnl_build_packet_message() puts it."""
        body = attribute(PACKET_HDR, struct.pack("!IHB", number, 0x800, hook)) + more
        self.waiting.append(number)
        self.socket.send(message(PACKET, 0, AF_INET, QUEUE, body + attribute(PAYLOAD, data)))

    def said(self) -> list[Said]:
        """The verdicts since the last call."""
        said = []
        while True:
            try:
                text = self.socket.recv(1 << 20)
            except BlockingIOError:
                return said
            while text:
                length, kind = struct.unpack_from("=IH", text)
                assert kind in (VERDICT, BATCH_VERDICT)
                assert struct.unpack_from("!H", text, 18) == (QUEUE,)
                one = verdict(text[20:length])
                for number in (
                    [each for each in self.waiting if each <= one.id] if kind == BATCH_VERDICT else [one.id]
                ):
                    said.append(one._replace(id=number))
                    if number in self.waiting:
                        self.waiting.remove(number)
                text = text[length + 3 & ~3 :]

    def close(self) -> None:
        self.socket.close()
        self.ours.close()


def verdict(body: bytes) -> Said:
    found: dict[int, bytes] = {}
    while body:
        length, kind = struct.unpack_from("=HH", body)
        found[kind] = body[4:length]
        body = body[length + 3 & ~3 :]
    word, number = struct.unpack("!II", found[VERDICT_HDR])
    mark = struct.unpack("!I", found[MARK])[0] if MARK in found else None
    return Said(number, bool(word), found.get(PAYLOAD, b""), mark)
