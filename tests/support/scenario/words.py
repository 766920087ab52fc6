"""What a scenario's packets are made of: addresses, and functions that return scapy packets."""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Any

from scapy.layers.inet import ICMP, IP, TCP, UDP, IPOption_NOP
from scapy.layers.inet6 import ICMPv6EchoRequest, IPv6, IPv6ExtHdrFragment
from scapy.packet import Packet, Raw

from uvs.engine.core import checksum

ID = 7777  # IP identification of every packet made here; others are told as *
GUE_PORTS = frozenset({6080})
VIP, VIP6 = "198.18.0.100", "2001:db8:18::100"
HOSTS = ("c", "r1", "r2", "r3")

# IPv4 and IPv6 of the real servers, by topology: behind a network of their own, or beside the client.
NETWORKS = {"nat": ("198.19.0", "2001:db8:19:"), "dr": ("198.18.0", "2001:db8:18:")}


def servers(topology: str) -> tuple[dict[int, str], dict[int, str]]:
    """Addresses of r1, r2, r3, and of nobody at 9, in both families."""
    v4, v6 = NETWORKS[topology]
    return {i: f"{v4}.1{i}" for i in (1, 2, 3, 9)}, {i: f"{v6}:1{i}" for i in (1, 2, 3, 9)}


def client(i: int) -> str:
    """Address of client number i, 0 < i < 65536; all of them are the host c."""
    return f"10.9.{i >> 8}.{i & 255}"


def client6(i: int) -> str:
    """The same in IPv6."""
    return f"2001:db8:9::{i:x}"


def ip(src: str, dst: str = VIP, **fields: Any) -> Packet:
    """An IP header; `dst` VIP means the virtual address of the source's family."""
    if ":" in src:
        return IPv6(src=src, dst=VIP6 if dst == VIP else dst, **fields)
    fields.setdefault("id", ID)
    return IP(src=src, dst=dst, **fields)


def tcp(
    src: str, sport: int, dport: int, flags: str = "S", dst: str = VIP, data: bytes = b"", **fields: Any
) -> Packet:
    """A segment; seq, ack, options and chksum go to TCP, other fields to IP."""
    own = {name: fields.pop(name) for name in ("seq", "ack", "options", "chksum") if name in fields}
    own.setdefault("seq", 1000)
    return ip(src, dst, **fields) / TCP(sport=sport, dport=dport, flags=flags, **own) / Raw(data)


def udp(src: str, sport: int, dport: int, data: bytes = b"hello", dst: str = VIP, **fields: Any) -> Packet:
    """A datagram; chksum goes to UDP, other fields to IP."""
    own = {"chksum": fields.pop("chksum")} if "chksum" in fields else {}
    return ip(src, dst, **fields) / UDP(sport=sport, dport=dport, **own) / Raw(data)


def _remainder(byte: int) -> int:
    """Of Castagnoli's polynomial, bits reversed."""
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC = [_remainder(byte) for byte in range(256)]


def crc32c(data: bytes) -> bytes:
    """SCTP's checksum as it stands in the packet (RFC 9260 appendix A)."""
    word = 0xFFFFFFFF
    for byte in data:
        word = word >> 8 ^ _CRC[(word ^ byte) & 255]
    return (word ^ 0xFFFFFFFF).to_bytes(4, "little")


def sctp(
    src: str, sport: int, dport: int, *chunks: int, dst: str = VIP, bad: bool = False, **fields: Any
) -> Packet:
    """A packet with chunks of these types, 8 bytes each; `bad`: with a wrong checksum."""
    body = b"".join(bytes((kind, 0, 0, 8)) + bytes(4) for kind in chunks)
    head = sport.to_bytes(2, "big") + dport.to_bytes(2, "big") + bytes((0, 0, 0, 1))
    total = crc32c(head + bytes(4) + body)
    number = {"nh" if ":" in src else "proto": 132}
    return ip(src, dst, **number, **fields) / Raw(head + (bytes(4) if bad else total) + body)


def icmp(
    src: str, dst: str, kind: int, code: int, quote: Packet, word: int = 0, cut: int | None = None,
    bad: bool = False, **fields: Any,
) -> Packet:  # fmt: skip
    """An ICMP(v6) error about the packet `quote`, cut to `cut` bytes behind its IP header; `word`: its second word."""
    quoted = bytes(quote)
    if cut is not None:
        quoted = quoted[: (40 if quoted[0] >> 4 == 6 else 20) + cut]
    body = bytes((kind, code, 0, 0)) + word.to_bytes(4, "big") + quoted
    wrong = 0x1111 if bad else 0
    if ":" in src:
        return icmp6(src, dst, body, wrong, **fields)
    total = checksum(body) ^ wrong
    return ip(src, dst, proto=1, **fields) / Raw(body[:2] + total.to_bytes(2, "big") + body[4:])


def icmp6(src: str, dst: str, body: bytes, wrong: int = 0, **fields: Any) -> Packet:
    """An ICMPv6 message whose checksum field is 0 in `body`; `wrong`: bits to turn in the right one."""
    pseudo = ip_address(src).packed + ip_address(dst).packed + len(body).to_bytes(4, "big") + b"\0\0\0\x3a"
    total = checksum(pseudo + body) ^ wrong
    return ip(src, dst, nh=58, **fields) / Raw(body[:2] + total.to_bytes(2, "big") + body[4:])


def ping(src: str, dst: str = VIP, **fields: Any) -> Packet:
    """An echo request."""
    request = ICMPv6EchoRequest(id=1, seq=1, data=b"ping") if ":" in src else ICMP(id=1, seq=1) / b"ping"
    return ip(src, dst, **fields) / request


def raw(src: str, protocol: int, data: bytes = bytes(16), dst: str = VIP, **fields: Any) -> Packet:
    """Any protocol."""
    number = {"nh" if ":" in src else "proto": protocol}
    return ip(src, dst, **number, **fields) / Raw(data)


def ipip(src: str, dst: str, inner: Packet, **fields: Any) -> Packet:
    """A tunnel packet, as the director sends it: for errors about it."""
    number = 41 if isinstance(inner, IPv6) else 4
    return ip(src, dst, **{"nh" if ":" in src else "proto": number}, **fields) / inner


def gue(src: str, dst: str, inner: Packet, port: int = 6080, **fields: Any) -> Packet:
    """The same by GUE."""
    number = 41 if isinstance(inner, IPv6) else 4
    head = bytes((0, number, 0, 0))
    return ip(src, dst, **fields) / UDP(sport=50000, dport=port, chksum=0) / Raw(head + bytes(inner))


def gre(src: str, dst: str, inner: Packet, **fields: Any) -> Packet:
    """The same by GRE."""
    kind = b"\x86\xdd" if isinstance(inner, IPv6) else b"\x08\x00"
    return raw(src, 47, b"\0\0" + kind + bytes(inner), dst, **fields)


def pieces(packet: Packet, size: int = 1480, ident: int = ID) -> list[Packet]:
    """The fragments of a packet, `size` bytes of payload each (a multiple of 8)."""
    v6 = isinstance(packet, IPv6)
    data = bytes(packet)
    head, body = (data[:40], data[40:]) if v6 else (data[:20], data[20:])
    out = []
    for start in range(0, len(body), size):
        part, more = body[start : start + size], start + size < len(body)
        if v6:
            kind = IPv6(head)
            out.append(
                IPv6(src=kind.src, dst=kind.dst, hlim=kind.hlim, tc=kind.tc, nh=44)
                / IPv6ExtHdrFragment(nh=kind.nh, offset=start // 8, m=int(more), id=ident)
                / Raw(part)
            )
        else:
            kind = IP(head)
            out.append(
                IP(src=kind.src, dst=kind.dst, ttl=kind.ttl, tos=kind.tos, proto=kind.proto, id=ident,
                   frag=start // 8, flags="MF" if more else 0) / Raw(part)
            )  # fmt: skip
    return out


def behind(packet: Packet, *headers: int) -> Packet:
    """An IPv6 packet with extension headers (0, 43, 60; 8 bytes each) before its payload."""
    data = bytes(packet)
    body, number = data[40:], data[6]
    for kind in reversed(headers):
        body = bytes((number, 0, *((0, 0, 0, 0, 0, 0) if kind == 43 else (1, 4, 0, 0, 0, 0)))) + body
        number = kind
    head = data[:4] + len(body).to_bytes(2, "big") + bytes((number,)) + data[7:40]
    return IPv6(head + body)


def changed(packet: Packet, **fields: Any) -> Packet:
    """A packet with other fields in its IP header: flags="DF", options=nops(4) …"""
    for name, value in fields.items():
        setattr(packet, name, value)
    return packet


def df(packet: Packet) -> Packet:
    """With don't fragment."""
    return changed(packet, flags="DF")


def nops(count: int) -> list[Packet]:
    """IPv4 options that do nothing."""
    return [IPOption_NOP() for _ in range(count)]


class Vocabulary(dict[str, Any]):
    """The names that a scenario's expressions know."""

    def __init__(self, topology: str) -> None:
        v4, v6 = servers(topology)
        nets = NETWORKS[topology]
        super().__init__(
            VIP=VIP, VIP6=VIP6, RIP=v4, RIP6=v6, DIP="198.18.0.1", DIP6="2001:db8:18::1",
            SIP=f"{nets[0]}.1", SIP6=f"{nets[1]}:1",
            client=client, client6=client6, ip=ip, tcp=tcp, udp=udp, sctp=sctp, icmp=icmp, ping=ping, raw=raw,
            ipip=ipip, gue=gue, gre=gre, pieces=pieces, behind=behind, changed=changed,
            df=df, nops=nops, syns=self.syns, range=range, enumerate=enumerate,
            reversed=reversed, bytes=bytes, __builtins__={},
        )  # fmt: skip
        self._clients = 0x8000

    def syns(self, count: int, dport: int = 80, six: bool = False, **fields: Any) -> list[Packet]:
        """SYNs of as many clients that were never seen before."""
        first = self._clients = self._clients + 1
        self._clients += count
        name = client6 if six else client
        return [tcp(name(first + i), 1024, dport, **fields) for i in range(count)]

    def packets(self, expression: str) -> list[Packet]:
        """The packets of an expression: one, or any number."""
        made = eval(expression, self)
        return list(made) if isinstance(made, Iterable) and not isinstance(made, Packet) else [made]

    def expand(self, text: str) -> str:
        """$VIP, $VIP6, $R1, $R1_6 … in a command."""
        v4, v6 = self["RIP"], self["RIP6"]
        names = {"$VIP6": VIP6, "$VIP": VIP}
        names |= {f"$R{i}_6": v6[i] for i in v6} | {f"$R{i}": v4[i] for i in v4}
        for name in sorted(names, key=len, reverse=True):
            text = text.replace(name, names[name])
        return text
