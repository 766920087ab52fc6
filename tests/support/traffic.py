"""Packets for a random world, built fast: bytes, not scapy; the engine fills in the checksums.

Addresses are packed. What scapy builds, and what it means, is tested elsewhere.
"""

from __future__ import annotations

import struct

from uvs.engine.core import Conn, ConnFlag, Packet

ICMP, TCP, UDP, ESP, AH, ICMPV6, SCTP = 1, 6, 17, 50, 51, 58, 132
FRAGMENT = 44
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16

_packet = Packet()


def filled(data: bytes) -> bytes:
    """The packet with all its checksums right; what cannot be read stays as it is."""
    if _packet.load(data):
        return data
    _packet.csum_fill()
    return _packet.data


def ip(src: bytes, dst: bytes, protocol: int, payload: bytes, ttl: int = 64, frag: int = 0, df: bool = False) -> bytes:  # fmt: skip
    """An IP datagram. `frag`: for IPv4 the fragment word without DF, for IPv6 that of a fragment header (0: none)."""
    if len(src) == 4:
        word = frag | (0x4000 if df else 0)
        return (
            struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(payload), 7777, word, ttl, protocol, 0)
            + src
            + dst
            + payload
        )
    if frag:
        payload = struct.pack("!BBHI", protocol, 0, frag, 7777) + payload
        protocol = FRAGMENT
    return struct.pack("!IHBB", 6 << 28, len(payload), protocol, ttl) + src + dst + payload


def tcp(sport: int, dport: int, flags: int, data: bytes = b"", seq: int = 1000) -> bytes:
    """A TCP segment."""
    return struct.pack("!HHIIBBHHH", sport, dport, seq, 1, 0x50, flags, 8192, 0, 0) + data


def udp(sport: int, dport: int, data: bytes = b"") -> bytes:
    """A UDP datagram."""
    return struct.pack("!HHHH", sport, dport, 8 + len(data), 0) + data


def sctp(sport: int, dport: int, *chunks: int, data: bytes = b"") -> bytes:
    """An SCTP packet of chunks without content but the last one's."""
    parts = [struct.pack("!BBH", c, 0, 4) for c in chunks]
    return struct.pack("!HHII", sport, dport, 1, 0) + b"".join(parts) + data


def segment(protocol: int, sport: int, dport: int, kind: int, data: bytes) -> bytes:
    """The transport part of a packet; `kind`: TCP flags, or the SCTP chunk."""
    if protocol == TCP:
        return tcp(sport, dport, kind, data)
    if protocol == SCTP:
        return sctp(sport, dport, kind % 16, data=data)
    return udp(sport, dport, data)


def request(conn: Conn, kind: int, data: bytes = b"", ttl: int = 64) -> bytes:
    """A packet of the connection's client."""
    return filled(
        ip(
            conn.caddr,
            conn.vaddr,
            conn.protocol,
            segment(conn.protocol, conn.cport, conn.vport, kind, data),
            ttl,
        )
    )


def reply(conn: Conn, kind: int, data: bytes = b"") -> bytes:
    """A packet of its real server, as it comes to the director: from the real server by NAT."""
    src, sport = conn.vaddr, conn.vport
    if conn.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ:
        src, sport = conn.daddr, conn.dport
    return filled(
        ip(src, conn.caddr, conn.protocol, segment(conn.protocol, sport, conn.cport, kind, data))
        if len(src) == len(conn.caddr)
        else b""
    )


def icmp_error(src: bytes, dst: bytes, kind: int, code: int, word: int, quote: bytes) -> bytes:
    """An ICMP or ICMPv6 error; `word`: the header's second, a path MTU for instance."""
    body = struct.pack("!BBHI", kind, code, 0, word) + quote
    return filled(ip(src, dst, ICMP if len(src) == 4 else ICMPV6, body))


def bent(data: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    """The packet with bytes changed and `cut` bytes less."""
    out = bytearray(data)
    for at, value in changes:
        if out:
            out[at % len(out)] = value
    return bytes(out[: len(out) - cut] if cut < len(out) else out)
