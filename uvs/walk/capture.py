"""Captures, through scapy: packets of a file, and packets into one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from uvs.errors import UserError
from uvs.walk.expressions import Packet, scapy

DLT_RAW = 101  # LINKTYPE_RAW: IPv4 or IPv6, no link layer
RECORD_MAX = 1 << 18  # bytes, as libpcap's MAXIMUM_SNAPLEN: a GSO packet with its frame has more than 65535


class Captured(NamedTuple):
    """A packet of a capture: ns since the first one, and its place in the file, from 1 on."""

    since: int
    place: int
    packet: Packet


def read(path: str) -> Iterator[Captured]:
    """The IP packets of a pcap or pcapng file, in its order. UserError: it cannot be read."""
    names = scapy()
    from scapy.error import Scapy_Exception
    from scapy.utils import PcapReader

    try:
        reader: Any = PcapReader(path)
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from None
    except (Scapy_Exception, EOFError) as e:
        raise UserError(f"{path}: no capture ({e})") from None
    with reader:
        first = None
        for place, packet in enumerate(_records(path, reader, Scapy_Exception), 1):
            now = int(packet.time * 10**9)
            first = now if first is None else first
            taken = _datagram(packet, names)
            if taken:
                _check_whole(path, place, packet)
                yield Captured(max(now - first, 0), place, taken)


def _records(path: str, reader: Any, broken: type[Exception]) -> Iterator[Any]:
    place = 0
    while True:
        place += 1
        try:
            packet = reader.read_packet(RECORD_MAX)
        except EOFError:
            return
        except Exception as e:  # of a record that lies about itself scapy raises what its parser met
            raise UserError(f"{path}: packet {place} cannot be read ({e or type(e).__name__})") from None
        yield packet


def _check_whole(path: str, place: int, packet: Any) -> None:
    """UserError: a file that was cut off, or a snap length: no walk of what came would be seen."""
    there, whole = len(packet.original), packet.wirelen
    if whole is None or there == whole:
        return
    if there < whole:
        raise UserError(f"{path}: packet {place} is cut: of its {whole} bytes {there} were captured")
    raise UserError(f"{path}: packet {place} cannot be read (a record of {there} bytes for one of {whole})")


def _datagram(packet: Any, names: dict[str, Any]) -> Packet | None:
    """Its first IP header and all behind it, as captured; None: no IP (ARP and the like)."""
    frame = None
    if isinstance(packet, names["Ether"]):
        frame = {"src": str(packet.src), "dst": str(packet.dst)}
    layer = packet
    while layer and not isinstance(layer, (names["IP"], names["IPv6"])):
        layer = layer.payload
    if not layer:
        return None
    data = bytes(layer.original)
    head = data[:6].ljust(6, b"\0")
    length = head[2] << 8 | head[3] if head[0] >> 4 == 4 else 40 + (head[4] << 8 | head[5])
    return Packet(data[:length], frame)  # without the padding of a short frame


def write(path: str, datagrams: Iterable[tuple[int, bytes]]) -> None:
    """IP datagrams, each with its time in ns, as a pcap file without link layer. UserError: it cannot be."""
    scapy()
    from scapy.utils import RawPcapWriter

    try:
        with Path(path).open("wb") as file:
            writer: Any = RawPcapWriter(file, linktype=DLT_RAW, nano=True)
            writer.write_header(None)
            for time, data in datagrams:
                writer.write_packet(data, sec=time // 10**9, usec=time % 10**9)
            writer.flush()
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from None
