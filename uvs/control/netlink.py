"""Netlink framing: headers, attributes, acknowledgements (include/uapi/linux/netlink.h, genetlink.h).

Numbers are in host order, as netlink has them. Nothing read here is trusted: a length that does not
fit ends the walk over messages or attributes, as in the kernel's nlmsg_ok and nla_ok.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Any, NamedTuple

NLMSG_ERROR, NLMSG_DONE, NLMSG_MIN_TYPE = 2, 3, 0x10
NLM_F_REQUEST, NLM_F_MULTI, NLM_F_ACK, NLM_F_DUMP = 1, 2, 4, 0x300
NLM_F_CAPPED = 0x100  # of an error message: the request is not repeated whole
NLA_TYPE_MASK = 0x3FFF

HEADER = Struct("=IHHII")
GENL_HEADER = Struct("=BBH")
ATTRIBUTE = Struct("=HH")
_ERROR = Struct("=IHHIIi")
HEADER_SIZE, GENL_SIZE = 16, 4

Attrs = dict[int, bytes]


class Message(NamedTuple):
    """One netlink message. `raw` is all of it, `body` what follows the netlink header."""

    type: int
    flags: int
    seq: int
    pid: int
    body: bytes
    raw: bytes

    @property
    def dump(self) -> bool:
        """Does it ask for a dump?"""
        return self.flags & NLM_F_DUMP == NLM_F_DUMP

    @property
    def errno(self) -> int:
        """Of an NLMSG_ERROR: the positive errno, 0 for an acknowledgement."""
        return -int.from_bytes(self.body[:4], "little" if _LITTLE else "big", signed=True)


_LITTLE = HEADER.pack(1, 0, 0, 0, 0)[0] == 1


def messages(datagram: bytes) -> Iterator[Message]:
    """The messages of a datagram; ends at the first whose length does not fit (netlink_rcv_skb)."""
    at, size = 0, len(datagram)
    while size - at >= HEADER_SIZE:
        length, kind, flags, seq, pid = HEADER.unpack_from(datagram, at)
        if length < HEADER_SIZE or length > size - at:
            return
        yield Message(
            kind, flags, seq, pid, datagram[at + HEADER_SIZE : at + length], datagram[at : at + length]
        )
        at += (length + 3) & ~3


def attributes(data: bytes, start: int = 0) -> Attrs:
    """Attributes by type, flag bits masked off; of several of a type the last counts (nla_parse)."""
    found: Attrs = {}
    size = len(data)
    unpack = ATTRIBUTE.unpack_from
    while size - start >= 4:
        length, kind = unpack(data, start)
        if length < 4 or length > size - start:
            break
        found[kind & NLA_TYPE_MASK] = data[start + 4 : start + length]
        start += (length + 3) & ~3
    return found


def every(data: bytes, kind: int, start: int = 0) -> Iterator[bytes]:
    """The payloads of all attributes of one type, in order."""
    size = len(data)
    while size - start >= 4:
        length, found = ATTRIBUTE.unpack_from(data, start)
        if length < 4 or length > size - start:
            return
        if found & NLA_TYPE_MASK == kind:
            yield data[start + 4 : start + length]
        start += (length + 3) & ~3


def attribute(kind: int, payload: bytes) -> bytes:
    """One attribute, padded to four bytes."""
    size = len(payload)
    return ATTRIBUTE.pack(size + 4, kind) + payload + b"\0" * (-size & 3)


def string(kind: int, text: str) -> bytes:
    """A NUL-terminated string attribute."""
    return attribute(kind, text.encode(errors="surrogateescape") + b"\0")


class Layout:
    """A row of attributes of fixed size, packed and unpacked in one step.

    Attribute by attribute it takes many times as long, which a listing of 50,000 destinations would show.
    """

    def __init__(self, *fields: tuple[int, str]) -> None:
        """`fields`: attribute type and the `struct` code of its payload (native order)."""
        code, self._values = "=", []
        headers = []
        for kind, payload in fields:
            size = Struct("=" + payload).size
            code += f"I{payload}{-size & 3}x"
            header = ATTRIBUTE.pack(size + 4, kind)
            headers.append(int.from_bytes(header, "little" if _LITTLE else "big"))
            self._values += [headers[-1], 0]
        self._headers = tuple(headers)
        self._struct = Struct(code)
        self.size = self._struct.size

    def pack(self, *values: int | bytes) -> bytes:
        """The attributes with these values."""
        row: list[int | bytes] = self._values.copy()  # type: ignore[assignment]
        row[1::2] = values
        return self._struct.pack(*row)

    def unpack(self, data: bytes, start: int = 0) -> tuple[Any, ...] | None:
        """Their values, if `data` has at `start` just these attributes in this order and without flags."""
        if len(data) - start < self.size:
            return None
        row = self._struct.unpack_from(data, start)
        return row[1::2] if row[::2] == self._headers else None


def message(
    kind: int, flags: int, seq: int, pid: int, command: int, payload: bytes, version: int = 1
) -> bytes:
    """A generic netlink message."""
    return (
        HEADER.pack(HEADER_SIZE + GENL_SIZE + len(payload), kind, flags, seq, pid)
        + GENL_HEADER.pack(command, version, 0)
        + payload
    )


def ack(request: Message) -> bytes:
    """Success: error 0 and the request's header alone (netlink_ack)."""
    return _ERROR.pack(36, NLMSG_ERROR, NLM_F_CAPPED, request.seq, request.pid, 0) + request.raw[:HEADER_SIZE]


def is_ack(datagram: bytes, seq: int) -> bool:
    """Is it the acknowledgement of that request, and nothing else?"""
    if len(datagram) != _ERROR.size + HEADER_SIZE:
        return False
    length, kind, _, number, _, errno = _ERROR.unpack_from(datagram)
    return (length, kind, number, errno) == (len(datagram), NLMSG_ERROR, seq, 0)


def error(request: Message, errno: int) -> bytes:
    """Refusal: the errno and the whole request (netlink_ack)."""
    size = HEADER_SIZE + 4 + len(request.raw)
    return _ERROR.pack(size, NLMSG_ERROR, 0, request.seq, request.pid, -errno) + request.raw


def done(seq: int, pid: int) -> bytes:
    """The end of a dump."""
    return _ERROR.pack(20, NLMSG_DONE, NLM_F_MULTI, seq, pid, 0)
