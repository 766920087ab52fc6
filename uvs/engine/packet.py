"""Packets: parsed headers, checksums, rewriting (`csrc/packet.c`, `csum.c`, `xmit_*.c`, `frag.c`), typed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from uvs.engine.binding import address, ffi, lib, number, put_packed
from uvs.engine.names import AF_INET, TUN_IPIP

if TYPE_CHECKING:
    from uvs.engine.table import AppData, Conn


LOOPBACK6 = bytes(15) + b"\1"
_LITTLE = bytes(ffi.buffer(ffi.new("uint16_t *", 1))) == b"\1\0"


class Header:
    """One parsed IP header (`struct uvs_iphdr`): a packet's own, or one quoted in an ICMP error."""

    __slots__ = ("_c", "_owner")

    def __init__(self, cdata: Any = None, owner: Any = None) -> None:
        self._c = ffi.new("struct uvs_iphdr *") if cdata is None else cdata
        self._owner = owner  # keeps the packet alive that this header is a part of

    af = number("af", "address family, 2 or 10")
    protocol = number("protocol", "transport protocol number")
    flags = number("flags", "`Hdr` bits; INVERSE may be set and cleared")
    off = number("off", "offset of this IP header in the packet, bytes")
    len = number("len", "offset of the transport header in the packet, bytes")
    end = number("end", "offset of the datagram's readable end, bytes")
    fragoffs = number("fragoffs", "bytes before this fragment")
    sport = number("sport", "source port, host order")
    dport = number("dport", "destination port, host order")
    tos = number("tos", "TOS or traffic class")
    ttl = number("ttl", "TTL or hop limit")
    tcp_flags = number("tcp_flags", "TCP flag octet (with Hdr.L4)")
    icmp_type = number("icmp_type", "ICMP type (with Hdr.L4)")
    icmp_code = number("icmp_code", "ICMP code (with Hdr.L4)")
    chunk = number("chunk", "type of the first SCTP chunk, 255 = none")
    next_chunk = number("next_chunk", "type of the second SCTP chunk, 255 = none")
    segment = number("segment", "TCP payload bytes (with Hdr.L4)")

    saddr = address("saddr", "af", "source address, packed")
    daddr = address("daddr", "af", "destination address, packed")

    @property
    def ends(self) -> tuple[bytes, int, bytes, int]:
        """Address and port of the sender, then of the receiver; swapped when it is read inversely."""
        if self.inverse:
            return self.daddr, self.dport, self.saddr, self.sport
        return self.saddr, self.sport, self.daddr, self.dport

    @property
    def to_many(self) -> bool:
        """Is the destination multicast or the limited broadcast address?"""
        first: int = self._c.daddr.b[0]
        return first >= 224 if self._c.af == AF_INET else first == 0xFF

    @property
    def from_loopback(self) -> bool:
        """Is the source 127.0.0.0/8 or ::1?"""
        first: int = self._c.saddr.b[0]
        return first == 127 if self._c.af == AF_INET else first == 0 and self.saddr == LOOPBACK6

    @property
    def inverse(self) -> bool:
        """Are addresses and ports read swapped (the kernel's ip_vs_iph_inverse)?"""
        return bool(self._c.flags & lib.UVS_HDR_INVERSE)

    @inverse.setter
    def inverse(self, on: bool) -> None:
        if on:
            self._c.flags |= lib.UVS_HDR_INVERSE
        else:
            self._c.flags &= ~lib.UVS_HDR_INVERSE


class Packet:
    """A packet in a buffer of the engine, reused from packet to packet."""

    __slots__ = ("_c", "_tunnel", "iph")

    def __init__(self) -> None:
        raw = lib.uvs_packet_new()
        if raw == ffi.NULL:
            raise MemoryError("no memory for a packet buffer")
        self._c = ffi.gc(raw, lib.uvs_packet_free)
        self.iph = Header(ffi.addressof(self._c, "iph"), self._c)
        self._tunnel = ffi.new("struct uvs_tunnel *")

    @classmethod
    def of(cls, data: bytes) -> Packet:
        """A packet in a buffer of its own; ValueError if it cannot be parsed."""
        packet = cls()
        if packet.load(data):
            raise ValueError("no IP datagram")
        return packet

    def load(self, data: bytes, mark: int = 0) -> int:
        """Copy an IP datagram in and parse it: 0, or Why.SHORT or Why.MALFORMED."""
        return lib.uvs_packet_load(self._c, ffi.from_buffer(data), len(data), mark)  # type: ignore[no-any-return]

    def parse(self) -> int:
        """Parse again what is in the buffer; returns as `load`."""
        return lib.uvs_packet_parse(self._c)  # type: ignore[no-any-return]

    def quoted(self) -> Header | None:
        """The header quoted in this ICMP error, or None if it cannot be read."""
        inner = Header()
        return None if lib.uvs_quoted_parse(self._c, inner._c) else inner

    def quoted_at(self, off: int, af: int) -> Header | None:
        """The header of family `af` that starts `off` bytes into the packet, or None."""
        inner = Header()
        return None if lib.uvs_quoted_parse_at(self._c, off, af, inner._c) else inner

    @property
    def data(self) -> bytes:
        """The IP datagram."""
        return bytes(ffi.buffer(self._c.data, self._c.len))

    @property
    def view(self) -> Any:
        """The IP datagram as a writable buffer, valid until the next load or encapsulation."""
        return ffi.buffer(self._c.data, self._c.len)

    len = number("len", "bytes of the IP datagram")
    mark = number("mark", "netfilter mark")
    traced = number("traced", "what the fast path was told of it: `Trace.begin`")
    frag_max = number("frag_max", "bytes of the largest fragment that `Reassembler` made it from; 0: none")

    def l4_csum_ok(self) -> bool:
        """Is the transport (or ICMP) checksum right? False for fragments."""
        return bool(lib.uvs_l4_csum_ok(self._c))

    def csum_fill(self) -> None:
        """Compute the IPv4 header checksum and the transport checksum."""
        lib.uvs_csum_fill(self._c)

    def decrease_ttl(self) -> int:
        """TTL or hop limit less one: 0, or Why.TTL with the packet untouched."""
        return lib.uvs_decrease_ttl(self._c)  # type: ignore[no-any-return]

    def dnat(self, conn: Conn) -> None:
        """Request: destination := real server (ip_vs_nat_xmit)."""
        lib.uvs_dnat(self._c, conn._c)

    def snat(self, conn: Conn) -> None:
        """Reply: source := virtual service (handle_response)."""
        lib.uvs_snat(self._c, conn._c)

    def nat_icmp(self, quoted: Header, conn: Conn, inout: int) -> None:
        """ip_vs_nat_icmp: an ICMP error and the header it quotes; inout 1 = from the server."""
        lib.uvs_nat_icmp(self._c, quoted._c, conn._c, inout)

    def mangle_tcp(self, off: int, size: int, text: bytes) -> int:
        """Replace `size` bytes of the TCP payload, `off` from the packet's start: 0, Why.TOO_BIG,
        or Why.MALFORMED where that is no place in it."""
        return lib.uvs_mangle_tcp(self._c, off, size, text, len(text))  # type: ignore[no-any-return]

    def seq_out(self, app: AppData) -> None:
        """A server's packet: its sequence number by what a helper changed."""
        lib.uvs_seq_out(self._c, app._c)

    def seq_in(self, app: AppData) -> int:
        """A client's packet: its acknowledgements, back. 0, or Why.MALFORMED for bad TCP options."""
        return lib.uvs_seq_in(self._c, app._c)  # type: ignore[no-any-return]

    def encap(
        self,
        af: int,
        saddr: bytes,
        daddr: bytes,
        ident: int = 0,
        *,
        pmtu_disc: bool = True,
        tun_type: int = TUN_IPIP,
        tun_flags: int = 0,
        ports: tuple[int, int] = (0, 0),
    ) -> int:
        """Put outer headers in front (ip_vs_tunnel_xmit): 0, or Why.TOO_BIG beyond 65535 bytes.

        `af`: of the outer header; `tun_type`, `tun_flags`: `TUN_*`; `ports`: source and destination for gue.
        """
        t = self._tunnel
        put_packed(t.saddr, saddr)
        put_packed(t.daddr, daddr)
        t.af, t.type, t.flags, t.pmtu_disc = af, tun_type, tun_flags, pmtu_disc
        t.id, (t.sport, t.dport) = ident, ports
        return lib.uvs_encap(self._c, t)  # type: ignore[no-any-return]

    def flow_src_port(self, seed: int, low: int, high: int) -> int:
        """A port in [low, high) for the outer header of this packet's flow (udp_flow_src_port)."""
        return lib.uvs_flow_src_port(ffi.addressof(self._c, "iph"), seed, low, high)  # type: ignore[no-any-return]

    def fragments(self, mtu: int, ident: int) -> list[bytes] | None:
        """The fragments of this packet for `mtu`, or None if it cannot be cut."""
        out = ffi.new("uint8_t[]", max(mtu, 1))
        parts: list[bytes] = []
        while (n := lib.uvs_fragment(self._c, mtu, len(parts), ident, out)) > 0:
            parts.append(bytes(ffi.buffer(out, n)))
        return parts if n == 0 else None

    gso = number("gso", "TCP: it stands for several segments (skb_is_gso)")
    partial = number("partial", "TCP: the checksum is the pseudo header's sum (CHECKSUM_PARTIAL)")

    def csum_finish(self) -> None:
        """Finish a partial checksum."""
        lib.uvs_csum_finish(self._c)

    def segments(self, conn: Conn, mtu: int) -> list[bytes]:
        """TCP segments of this packet that fit `mtu`, none larger than its sender's; [] if none does."""
        size = lib.uvs_segment_size(self._c, conn._c, mtu)
        if not size:
            return []
        out = ffi.new("uint8_t[]", mtu)
        parts: list[bytes] = []
        while n := lib.uvs_segment(self._c, size, len(parts), out):
            parts.append(bytes(ffi.buffer(out, n)))
        return parts


def checksum(data: bytes | memoryview) -> int:
    """RFC 1071 checksum of bytes, as the number that stands in the packet (big-endian)."""
    value: int = lib.uvs_csum(ffi.from_buffer(data), len(data), 0)
    return int.from_bytes(value.to_bytes(2, "little" if _LITTLE else "big"), "big")


def tunnel_hlen(tun_type: int, tun_flags: int) -> int:
    """Bytes that a tunnel puts between the outer IP header and the inner packet."""
    return lib.uvs_tunnel_hlen(tun_type, tun_flags)  # type: ignore[no-any-return]


def crc32c(data: bytes) -> int:
    """CRC32c of RFC 9260 appendix A (SCTP puts it into the packet little-endian)."""
    return lib.uvs_crc32c(ffi.from_buffer(data), len(data))  # type: ignore[no-any-return]
