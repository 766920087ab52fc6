"""A packet in a line, with what no two senders choose alike left out.

`10.9.0.1>198.19.0.11 tos=00 ttl=63 id=7777 len=40 | TCP 1024>80 S seq=1000 ack=0 data=0 sum=ok`: addresses, IP
header, then layer by layer. Identifications other than 0 and the scenarios' own are `*`, as is the UDP
source port of GUE.
"""

from __future__ import annotations

from ipaddress import ip_address
from struct import Struct, unpack_from

from support.scenario.words import GUE_PORTS, ID, crc32c
from uvs.engine.core import checksum

FLOWS = (0x12345, 0x54321)  # that scenarios send; a kernel gives its own packets labels by chance
TCP_FLAGS = "FSRPAUEC"
V4_ERRORS = (3, 4, 5, 11, 12)
_V4, _V6 = Struct("!BBHHHBBH4s4s"), Struct("!IHBB16s16s")


def tell(data: bytes, quoted: bool = False) -> str:
    """One line. `quoted`: inside an ICMP error, where it may be cut short and its sums are not looked at."""
    return (_v4 if data[0] >> 4 == 4 else _v6)(data, quoted)


def _v4(data: bytes, quoted: bool) -> str:
    first, tos, total, ident, fragment, ttl, protocol, _, src, dst = _V4.unpack_from(data)
    size = (first & 15) * 4
    head = [f"{ip_address(src)}>{ip_address(dst)}", f"tos={tos:02x}", f"ttl={ttl}"]
    head.append(f"id={ident if ident in (0, ID) else '*'}")
    if fragment & 0x4000:
        head.append("DF")
    if fragment & 0x3FFF:
        head.append(f"frag={(fragment & 0x1FFF) * 8}{'+' if fragment & 0x2000 else ''}")
    head.append(f"len={total}")
    if size > 20:
        head.append(f"options={data[20:size].hex()}")
    if checksum(data[:size]):
        head.append("IPSUM-BAD")
    whole = not fragment & 0x3FFF and len(data) >= total
    body = data[size:] if quoted else data[size:total]
    if fragment & 0x1FFF:
        return f"{' '.join(head)} | part of protocol {protocol}, {len(body)} bytes"
    return f"{' '.join(head)} | {_layer4(src, dst, protocol, body, whole, quoted)}"


def _v6(data: bytes, quoted: bool) -> str:
    first, length, protocol, hops, src, dst = _V6.unpack_from(data)
    head = [f"{ip_address(src)}>{ip_address(dst)}", f"tc={first >> 20 & 255:02x}", f"hlim={hops}"]
    if first & 0xFFFFF in FLOWS:
        head.append(f"flow={first & 0xFFFFF:05x}")
    head.append(f"plen={length}")
    body = data[40:] if quoted else data[40 : 40 + length]
    whole = len(data) >= 40 + length
    while protocol in (0, 43, 60) and len(body) >= 8:
        head.append(f"ext={protocol}")
        protocol, body = body[0], body[(body[1] + 1) * 8 :]
    if protocol == 44:
        protocol, offset = body[0], int.from_bytes(body[2:4], "big")
        head.append(f"frag={offset & 0xFFF8}{'+' if offset & 1 else ''}")
        body, whole = body[8:], False
        if offset & 0xFFF8:
            return f"{' '.join(head)} | part of protocol {protocol}, {len(body)} bytes"
    return f"{' '.join(head)} | {_layer4(src, dst, protocol, body, whole, quoted)}"


def _pseudo(src: bytes, dst: bytes, protocol: int, length: int) -> bytes:
    if len(src) == 4:
        return src + dst + bytes((0, protocol)) + length.to_bytes(2, "big")
    return src + dst + length.to_bytes(4, "big") + bytes((0, 0, 0, protocol))


def _layer4(src: bytes, dst: bytes, protocol: int, body: bytes, whole: bool, quoted: bool) -> str:
    def right(good: bool) -> str:
        return "" if quoted else " sum=?" if not whole else f" sum={'ok' if good else 'BAD'}"

    over_pseudo = not checksum(_pseudo(src, dst, protocol, len(body)) + body)
    if protocol == 6 and len(body) >= 8:
        sport, dport, seq = unpack_from("!HHI", body)
        if len(body) < 20:
            return f"TCP {sport}>{dport} seq={seq}"
        size, flags = (body[12] >> 4) * 4, "".join(c for i, c in enumerate(TCP_FLAGS) if body[13] >> i & 1)
        ack = int.from_bytes(body[8:12], "big")
        options = f" options={body[20:size].hex()}" if size > 20 else ""
        text = _text(body[size:]) if not quoted else ""
        return f"TCP {sport}>{dport} {flags} seq={seq} ack={ack}{options}{text}{right(over_pseudo)}"
    if protocol == 17 and len(body) >= 8:
        sport, dport, length, total = unpack_from("!HHHH", body)
        good = " sum=0" if not total and not quoted else right(over_pseudo)
        if dport in GUE_PORTS and not quoted:
            return f"UDP *>{dport} len={length}{good} | GUE {body[8:12].hex()} | {tell(body[12 + (body[8] & 31) * 4 :])}"
        return f"UDP {sport}>{dport} len={length}{good}"
    if protocol == 132 and len(body) >= 12:
        sport, dport = unpack_from("!HH", body)
        zeroed = body[:8] + bytes(4) + body[12:]
        chunk = body[12] if len(body) > 12 else "-"
        return f"SCTP {sport}>{dport} chunk={chunk}{right(crc32c(zeroed) == body[8:12])}"
    if protocol in (1, 58) and len(body) >= 8:
        return _icmp(protocol, body, right(over_pseudo if protocol == 58 else not checksum(body)))
    if protocol in (4, 41) and len(body) >= 20:
        return f"{'IPIP' if protocol == 4 else 'IPV6'} | {tell(body, quoted)}"
    if protocol == 47 and len(body) >= 24:
        size = 8 if body[0] & 0x80 else 4
        good = right(not checksum(body)) if size == 8 else ""
        return f"GRE {body[:4].hex()}{good} | {tell(body[size:], quoted)}"
    return f"protocol {protocol}, {len(body)} bytes"


def _icmp(protocol: int, body: bytes, good: str) -> str:
    kind, code, info = unpack_from("!BBxxI", body)
    six = protocol == 58
    name = f"ICMP{'6' if six else ''} {kind}/{code}"
    if not (kind < 128 if six else kind in V4_ERRORS):
        return name + good
    if info:
        name += f" mtu={info}" if (kind, code) == (3, 4) or (six and kind == 2) else f" word={info:08x}"
    return f"{name}{good} [{tell(body[8:], True) if len(body) >= 28 else body[8:].hex()}]"


def _text(data: bytes) -> str:
    """A payload: short text as it is, else its length."""
    if 0 < len(data) <= 80 and all(32 <= c < 127 or c in b"\r\n" for c in data) and b"\r\n" in data:
        return f" {data.decode()!r}"
    return f" data={len(data)}"
