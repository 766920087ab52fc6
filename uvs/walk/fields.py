"""A packet taken apart: layers, and their fields as text, outermost first.

Without scapy, since a live walk is told where scapy is not installed. What is cut, or is no header that is
known here, is a payload; nothing is refused.
"""

from __future__ import annotations

import struct
from ipaddress import ip_address
from typing import NamedTuple

from uvs.engine.core import checksum, crc32c
from uvs.ipvs.ipproto import (
    IPPROTO_GRE,
    IPPROTO_ICMP,
    IPPROTO_ICMPV6,
    IPPROTO_IPIP,
    IPPROTO_SCTP,
    IPPROTO_TCP,
    IPPROTO_UDP,
)
from uvs.ipvs.walk import PROTOCOL_NAMES, printable

IPPROTO_IPV6 = 41
_V6_EXTENSIONS = {0: "hop-by-hop", 43: "routing", 44: "Fragment", 60: "destination options"}
_V4_ERRORS, _V6_ERRORS = frozenset({3, 4, 5, 11, 12}), frozenset(range(1, 128))
_TCP_FLAGS = "FSRPAUEC"
_ETHERTYPES = {0x0800: IPPROTO_IPIP, 0x86DD: IPPROTO_IPV6}
_GUE_HLEN = 4


class Layer(NamedTuple):
    """One header: its name (`IPv4`, `outer UDP`, `quoted TCP`, `payload`) and its fields, in their order."""

    name: str
    fields: dict[str, str]


class _Whole(NamedTuple):
    """The IP header that a transport header stands behind: what its checksum needs."""

    pseudo: bytes  # addresses of the pseudo header
    checked: bool  # all of it is there: a checksum can be judged
    v6: bool


def layers(data: bytes, like: bytes = b"") -> list[Layer]:
    """The layers of an IP datagram.

    `like`: a packet that may be inside of it; only that is looked for in UDP (gue has no port of its own).
    """
    found = _ip(data, "", like)
    inner = next((i for i, layer in enumerate(found) if i and layer.name in ("IPv4", "IPv6")), 0)
    return [Layer(f"outer {layer.name}", layer.fields) for layer in found[:inner]] + found[inner:]


def _sum(data: bytes, at: int, good: bool | None) -> str:
    """A checksum field, and whether it is right (None: nobody can tell)."""
    text = "0x" + data[at : at + 2].hex()
    return text if good is None else f"{text} {'right' if good else 'wrong'}"


def _payload(data: bytes, prefix: str) -> list[Layer]:
    return [Layer(prefix + "payload", {"length": str(len(data)), "data": printable(data)})] if data else []


def _ip(data: bytes, prefix: str, like: bytes) -> list[Layer]:
    version = data[0] >> 4 if data else 0
    if version == 4 and len(data) >= 20:
        return _ipv4(data, prefix, like)
    if version == 6 and len(data) >= 40:
        return _ipv6(data, prefix, like)
    return _payload(data, prefix)


def _ipv4(data: bytes, prefix: str, like: bytes) -> list[Layer]:
    hlen = max((data[0] & 15) * 4, 20)
    tos, length, ident, frag, ttl, protocol = struct.unpack("!xBHHHBB", data[:10])
    flags = " ".join(name for bit, name in ((0x4000, "DF"), (0x2000, "MF")) if frag & bit)
    fields = {
        "src": str(ip_address(data[12:16])),
        "dst": str(ip_address(data[16:20])),
        "tos": f"0x{tos:02x}",
        "length": str(length),
        "id": str(ident),
        "flags": flags or "-",
        "offset": str((frag & 0x1FFF) * 8),
        "ttl": str(ttl),
        "protocol": PROTOCOL_NAMES.get(protocol, str(protocol)),
        "checksum": _sum(data, 10, None if len(data) < hlen else checksum(data[:hlen]) == 0),
    }
    if hlen > 20:
        fields["options"] = data[20:hlen].hex()
    whole = not prefix and len(data) >= length and not frag & 0x3FFF
    rest = data[hlen : max(length, hlen)]
    head = Layer(f"{prefix}IPv4", fields)
    if frag & 0x1FFF:
        return [head, *_payload(rest, prefix)]
    return [head, *_transport(protocol, rest, prefix, _Whole(data[12:20], whole, False), like)]


def _ipv6(data: bytes, prefix: str, like: bytes) -> list[Layer]:
    word, length, protocol, hops = struct.unpack("!IHBB", data[:8])
    fields = {
        "src": str(ip_address(data[8:24])),
        "dst": str(ip_address(data[24:40])),
        "class": f"0x{word >> 20 & 0xFF:02x}",
        "label": f"0x{word & 0xFFFFF:05x}",
        "length": str(length),
        "next": PROTOCOL_NAMES.get(protocol, str(protocol)),
        "hop limit": str(hops),
    }
    found = [Layer(f"{prefix}IPv6", fields)]
    whole = not prefix and len(data) >= 40 + length
    rest = data[40 : 40 + length]
    while protocol in _V6_EXTENSIONS and len(rest) >= 8:
        size = 8 if protocol == 44 else (rest[1] + 1) * 8
        extra = {"next": PROTOCOL_NAMES.get(rest[0], str(rest[0]))}
        offset = 0
        if protocol == 44:
            frag, ident = struct.unpack("!HI", rest[2:8])
            offset = frag & 0xFFF8
            extra |= {"offset": str(offset), "more": str(frag & 1), "id": str(ident)}
            whole = whole and not frag & 0xFFF9
        found.append(Layer(f"{prefix}{_V6_EXTENSIONS[protocol]}", extra))
        protocol, rest = rest[0], rest[size:]
        if offset:
            return found + _payload(rest, prefix)
    return found + _transport(protocol, rest, prefix, _Whole(data[8:40], whole, True), like)


def _transport(protocol: int, data: bytes, prefix: str, ip: _Whole, like: bytes) -> list[Layer]:
    known = {
        IPPROTO_TCP: (_tcp, 20),
        IPPROTO_UDP: (_udp, 8),
        IPPROTO_SCTP: (_sctp, 12),
        IPPROTO_ICMP: (_icmp, 8),
        IPPROTO_ICMPV6: (_icmp, 8),
        IPPROTO_GRE: (_gre, 4),
    }
    if protocol in (IPPROTO_IPIP, IPPROTO_IPV6):
        return _ip(data, prefix, like)
    if protocol in known:
        take, least = known[protocol]
        if len(data) >= least:
            return take(protocol, data, prefix, ip, like)
        if len(data) >= 8 and protocol in (
            IPPROTO_TCP,
            IPPROTO_SCTP,
        ):  # quoted: 8 bytes are all that there is
            sport, dport, word = struct.unpack("!HHI", data[:8])
            name = "seq" if protocol == IPPROTO_TCP else "tag"
            fields = {"sport": str(sport), "dport": str(dport), name: str(word)}
            return [Layer(prefix + PROTOCOL_NAMES[protocol], fields)]
    return _payload(data, prefix)


def _right(protocol: int, data: bytes, ip: _Whole) -> bool | None:
    """Is the checksum behind a pseudo header right? None: part of it is missing."""
    if not ip.checked:
        return None
    size = (
        struct.pack("!IHBB", len(data), 0, 0, protocol)
        if ip.v6
        else struct.pack("!BBH", 0, protocol, len(data))
    )
    return checksum(ip.pseudo + size + data) == 0


def _tcp(protocol: int, data: bytes, prefix: str, ip: _Whole, like: bytes) -> list[Layer]:
    sport, dport, seq, ack, offset, flags, window, _, urgent = struct.unpack("!HHIIBBHHH", data[:20])
    hlen = max((offset >> 4) * 4, 20)
    fields = {
        "sport": str(sport),
        "dport": str(dport),
        "seq": str(seq),
        "ack": str(ack),
        "flags": "".join(c for i, c in enumerate(_TCP_FLAGS) if flags >> i & 1) or "-",
        "window": str(window),
        "checksum": _sum(data, 16, _right(protocol, data, ip)),
        "urgent": str(urgent),
    }
    if hlen > 20:
        fields["options"] = data[20:hlen].hex()
    return [Layer(f"{prefix}TCP", fields), *_payload(data[hlen:], prefix)]


def _udp(protocol: int, data: bytes, prefix: str, ip: _Whole, like: bytes) -> list[Layer]:
    sport, dport, length, told = struct.unpack("!HHHH", data[:8])
    good = None if not told else _right(protocol, data, ip)
    fields = {"sport": str(sport), "dport": str(dport), "length": str(length)}
    fields["checksum"] = _sum(data, 6, good) if told else "none"
    head = Layer(f"{prefix}UDP", fields)
    inside = _gue(data[8:], like)
    return [head, *(inside or _payload(data[8:], prefix))]


def _gue(data: bytes, like: bytes) -> list[Layer]:
    """draft-ietf-intarea-gue, variant 0, if the packet that is looked for is inside; else nothing."""
    if not like or len(data) < _GUE_HLEN or data[0] >> 6 or data[1] not in (IPPROTO_IPIP, IPPROTO_IPV6):
        return []
    size = _GUE_HLEN + (data[0] & 31) * 4
    inner = data[size:]
    ends = slice(12, 20) if like[0] >> 4 == 4 else slice(8, 40)
    if inner[:1] != like[:1] or inner[ends] != like[ends]:
        return []
    fields = {"protocol": "IPv4" if data[1] == IPPROTO_IPIP else "IPv6", "flags": "0x" + data[2:4].hex()}
    if size > _GUE_HLEN:
        fields["options"] = data[_GUE_HLEN:size].hex()
    return [Layer("GUE", fields), *_ip(inner, "", b"")]


def _gre(protocol: int, data: bytes, prefix: str, ip: _Whole, like: bytes) -> list[Layer]:
    """RFC 2784; with a key, a sequence number or routing: not looked into."""
    flags, ethertype = struct.unpack("!HH", data[:4])
    if flags & 0x7FFF or ethertype not in _ETHERTYPES or (flags and len(data) < 8):
        return _payload(data, prefix)
    fields = {"protocol": "IPv4" if ethertype == 0x0800 else "IPv6"}
    if flags:
        fields["checksum"] = _sum(data, 4, checksum(data) == 0)
    return [Layer(f"{prefix}GRE", fields), *_ip(data[8 if flags else 4 :], prefix, b"")]


def _sctp(protocol: int, data: bytes, prefix: str, ip: _Whole, like: bytes) -> list[Layer]:
    sport, dport, tag = struct.unpack("!HHI", data[:8])
    fields = {"sport": str(sport), "dport": str(dport), "tag": f"0x{tag:08x}"}
    text = "0x" + data[8:12].hex()
    if ip.checked:
        good = crc32c(data[:8] + bytes(4) + data[12:]) == int.from_bytes(data[8:12], "little")
        text += " right" if good else " wrong"
    fields["checksum"] = text
    return [Layer(f"{prefix}SCTP", fields), *_payload(data[12:], prefix)]


def _icmp(protocol: int, data: bytes, prefix: str, ip: _Whole, like: bytes) -> list[Layer]:
    kind, code = data[0], data[1]
    v6 = protocol == IPPROTO_ICMPV6
    good = None
    if ip.checked:
        good = _right(protocol, data, ip) if v6 else checksum(data) == 0
    fields = {"type": str(kind), "code": str(code), "checksum": _sum(data, 2, good)}
    error = kind in (_V6_ERRORS if v6 else _V4_ERRORS)
    if error and (kind, code) == ((2, 0) if v6 else (3, 4)):
        fields["mtu"] = str(int.from_bytes(data[4:8], "big") & (0xFFFFFFFF if v6 else 0xFFFF))
    elif not error:
        fields |= {"id": str(data[4] << 8 | data[5]), "seq": str(data[6] << 8 | data[7])}
    head = Layer(f"{prefix}{PROTOCOL_NAMES[protocol]}", fields)
    if error and not prefix:
        return [head, *_ip(data[8:], "quoted ", b"")]
    return [head, *_payload(data[8:], prefix)]
