"""A capture of both sides of the director (pcapng, draft-ietf-opsawg-pcapng), written as packets come.

What came to a hook is inbound, what went on from it outbound; each packet says of which walk it is in its
comment. One interface: libpcap refuses a file with two of raw IP.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack
from typing import Any, BinaryIO, NamedTuple

DLT_RAW = 101  # LINKTYPE_RAW: IPv4 or IPv6, no link layer
SECTION, INTERFACE, PACKET = 0x0A0D0D0A, 1, 6  # block types
OPT_END, OPT_COMMENT, IF_NAME, IF_TSRESOL, SHB_USERAPPL, EPB_FLAGS = 0, 1, 2, 9, 4, 2
NANOSECONDS = b"\x09"
IN, OUT = 1, 2  # directions of EPB_FLAGS
COMMENT_MAX = 1000  # characters


class Row(NamedTuple):
    """A packet of the capture: its direction, its beginning, its whole length, a comment."""

    direction: int
    data: bytes
    length: int
    comment: str


def rows(walk: dict[str, Any]) -> Iterator[Row]:
    """What came, and what went on: sent, accepted with another content, or accepted as it came."""
    came = bytes.fromhex(walk["data"])
    title = f"{walk['number']} {walk['hook']}"
    yield Row(IN, came, walk["length"], f"{title} {walk['verdict']} {walk['why']}: {walk['packet']}")
    if walk["delivered"] is not None:
        data = bytes.fromhex(walk["delivered"])
        yield Row(OUT, data, whole(data), f"{title} accepted, rewritten")
    elif walk["verdict"] == "ACCEPT":
        yield Row(OUT, came, walk["length"], f"{title} accepted as it came")
    for sent in walk["sent"]:
        what = "the director's own" if sent["own"] else "sent"
        yield Row(OUT, bytes.fromhex(sent["data"]), sent["length"], f"{title} {what} via {sent['nexthop']}")


def whole(data: bytes) -> int:
    """Bytes of the datagram that begins so."""
    if len(data) >= 6 and data[0] >> 4 == 6:
        return max(40 + int.from_bytes(data[4:6]), len(data))
    return max(int.from_bytes(data[2:4]), len(data)) if len(data) >= 4 else len(data)


class Writer:
    """Writes to a file that is open."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        head = pack("=IHHq", 0x1A2B3C4D, 1, 0, -1) + _options((SHB_USERAPPL, b"uvs trace"))
        self._block(SECTION, head)
        options = _options((IF_NAME, b"uvs"), (IF_TSRESOL, NANOSECONDS))
        self._block(INTERFACE, pack("=HHI", DLT_RAW, 0, 0) + options)
        self._file.flush()

    def add(self, time: int, walk: dict[str, Any]) -> None:
        """A walk at that time, ns since 1970."""
        for direction, data, length, comment in rows(walk):
            head = pack("=IIIII", 0, time >> 32, time & 0xFFFFFFFF, len(data), length)
            said = comment[:COMMENT_MAX].encode()
            options = _options((OPT_COMMENT, said), (EPB_FLAGS, pack("=I", direction)))
            self._block(PACKET, head + _padded(data) + options)

    def flush(self) -> None:
        """What was added is in the file."""
        self._file.flush()

    def _block(self, kind: int, body: bytes) -> None:
        size = len(body) + 12
        self._file.write(pack("=II", kind, size) + body + pack("=I", size))


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)


def _options(*options: tuple[int, bytes]) -> bytes:
    made = b"".join(pack("=HH", kind, len(value)) + _padded(value) for kind, value in options)
    return made + pack("=HH", OPT_END, 0)
