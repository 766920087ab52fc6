"""Packets and the connection table: the engine's pure part (`csrc/uvs.h`), typed.

Addresses are packed bytes in network order (4 or 16), ports are host-order integers, times are
nanoseconds of one monotonic clock unless a name says ms. Nothing here does I/O but `Table`, which
maps a file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from uvs.engine import _core  # type: ignore[attr-defined]
from uvs.engine.names import AF_INET, AF_INET6, PACKET_MAX, RECORD_SIZE, ConnFlag, DestFlag, Dir, Hdr, Why

__all__ = [
    "AF_INET",
    "AF_INET6",
    "PACKET_MAX",
    "RECORD_SIZE",
    "Conn",
    "ConnFlag",
    "DestFlag",
    "DestRecord",
    "Dir",
    "Hdr",
    "Header",
    "Packet",
    "ServiceRecord",
    "Table",
    "TableError",
    "Why",
    "checksum",
    "crc32c",
    "sctp_next",
    "state_name",
    "tcp_next",
    "why_name",
]

ffi: Any = _core.ffi
lib: Any = _core.lib


def _addr(union: Any, af: int) -> bytes:
    return bytes(ffi.buffer(union.b, 4 if af == AF_INET else 16))


def _put(union: Any, addr: bytes) -> None:
    ffi.buffer(union)[:] = addr.ljust(16, b"\0")


if TYPE_CHECKING:

    class _field:
        def __init__(self, name: str, doc: str) -> None: ...
        def __get__(self, obj: object, owner: type | None = None) -> int: ...
        def __set__(self, obj: object, value: int) -> None: ...

else:

    def _field(name: str, doc: str) -> property:
        """A number of the C struct behind an object (`_c`), as a property."""

        def put(self: Any, value: int) -> None:
            setattr(self._c, name, value)

        return property(attrgetter("_c." + name), put, doc=doc)


class Header:
    """One parsed IP header (`struct uvs_iphdr`): a packet's own, or one quoted in an ICMP error."""

    __slots__ = ("_c", "_owner")

    def __init__(self, cdata: Any = None, owner: Any = None) -> None:
        self._c = ffi.new("struct uvs_iphdr *") if cdata is None else cdata
        self._owner = owner  # keeps the packet alive that this header is a part of

    af = _field("af", "address family, 2 or 10")
    protocol = _field("protocol", "transport protocol number")
    flags = _field("flags", "`Hdr` bits; INVERSE may be set and cleared")
    off = _field("off", "offset of this IP header in the packet, bytes")
    len = _field("len", "offset of the transport header in the packet, bytes")
    end = _field("end", "offset of the datagram's readable end, bytes")
    fragoffs = _field("fragoffs", "bytes before this fragment")
    sport = _field("sport", "source port, host order")
    dport = _field("dport", "destination port, host order")
    tos = _field("tos", "TOS or traffic class")
    ttl = _field("ttl", "TTL or hop limit")
    tcp_flags = _field("tcp_flags", "TCP flag octet (with Hdr.L4)")
    icmp_type = _field("icmp_type", "ICMP type (with Hdr.L4)")
    icmp_code = _field("icmp_code", "ICMP code (with Hdr.L4)")
    chunk = _field("chunk", "type of the first SCTP chunk, 255 = none")
    next_chunk = _field("next_chunk", "type of the second SCTP chunk, 255 = none")
    segment = _field("segment", "TCP payload bytes (with Hdr.L4)")

    @property
    def saddr(self) -> bytes:
        """Source address, packed."""
        return _addr(self._c.saddr, self._c.af)

    @property
    def daddr(self) -> bytes:
        """Destination address, packed."""
        return _addr(self._c.daddr, self._c.af)

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

    __slots__ = ("_c", "iph")

    def __init__(self) -> None:
        raw = lib.uvs_packet_new()
        if raw == ffi.NULL:
            raise MemoryError("no memory for a packet buffer")
        self._c = ffi.gc(raw, lib.uvs_packet_free)
        self.iph = Header(ffi.addressof(self._c, "iph"), self._c)

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

    len = _field("len", "bytes of the IP datagram")
    mark = _field("mark", "netfilter mark")

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

    def encap_ipip(self, af: int, saddr: bytes, daddr: bytes, pmtu_disc: bool, ident: int) -> int:
        """Put an outer header in front: 0, or Why.TOO_BIG beyond 65535 bytes."""
        src, dst = ffi.new("union uvs_addr *"), ffi.new("union uvs_addr *")
        _put(src, saddr)
        _put(dst, daddr)
        return lib.uvs_encap_ipip(self._c, af, src, dst, pmtu_disc, ident)  # type: ignore[no-any-return]

    def fragments(self, mtu: int, ident: int) -> list[bytes] | None:
        """The fragments of this packet for `mtu`, or None if it cannot be cut."""
        out = ffi.new("uint8_t[]", max(mtu, 1))
        parts: list[bytes] = []
        while (n := lib.uvs_fragment(self._c, mtu, len(parts), ident, out)) > 0:
            parts.append(bytes(ffi.buffer(out, n)))
        return parts if n == 0 else None


class Conn:
    """A view of one connection entry (`struct uvs_conn`); valid until it expires."""

    __slots__ = ("_c",)

    def __init__(self, cdata: Any) -> None:
        self._c = cdata

    af = _field("af", "family of client and virtual address")
    daf = _field("daf", "family of the real server's address")
    protocol = _field("protocol", "transport protocol; 0 for a fwmark template")
    cport = _field("cport", "client port")
    vport = _field("vport", "virtual port")
    dport = _field("dport", "real server's port")
    state = _field("state", "state of its protocol")
    flags = _field("flags", "`ConnFlag` bits")
    timeout = _field("timeout", "ms")
    deadline = _field("deadline", "ns")
    dest = _field("dest", "record of its destination, 0 = none")
    control = _field("control", "record of its controller, 0 = none")
    n_control = _field("n_control", "connections that it controls")
    in_pkts = _field("in_pkts", "packets from the client")
    fwmark = _field("fwmark", "mark of the packet that made it")
    nexthop = _field("nexthop", "index into the next-hop table, 0 = not known")

    @property
    def caddr(self) -> bytes:
        """Client address, packed."""
        return _addr(self._c.caddr, self._c.af)

    @property
    def vaddr(self) -> bytes:
        """Virtual address, packed."""
        return _addr(self._c.vaddr, self._c.af)

    @property
    def daddr(self) -> bytes:
        """Real server's address, packed."""
        return _addr(self._c.daddr, self._c.daf)

    @property
    def state_name(self) -> str:
        """As /proc/net/ip_vs_conn prints it; templates: NONE or ASSURED."""
        if self._c.flags & lib.UVS_CONN_F_TEMPLATE:
            return "ASSURED" if self._c.state & 1 else "NONE"
        return state_name(self._c.protocol, self._c.state)

    def remaining(self, now: int) -> int:
        """Milliseconds until it expires, 0 if it is due."""
        return lib.uvs_conn_remaining(self._c, now)  # type: ignore[no-any-return]


class _Record:
    __slots__ = ("_c", "_table", "index")

    def __init__(self, table: Table, index: int, cdata: Any) -> None:
        self._table, self.index, self._c = table, index, cdata

    @property
    def stats(self) -> tuple[int, int, int, int, int]:
        """conns, inpkts, outpkts, inbytes, outbytes since the record was made."""
        s = self._c.stats
        return s.conns, s.inpkts, s.outpkts, s.inbytes, s.outbytes


class DestRecord(_Record):
    """A destination's slot (`struct uvs_dest`): what the engine must know of a real server."""

    __slots__ = ()

    weight = _field("weight", "weight")
    u_threshold = _field("u_threshold", "upper connection threshold, 0 = none")
    l_threshold = _field("l_threshold", "lower connection threshold, 0 = none")
    activeconns = _field("activeconns", "active connections")
    inactconns = _field("inactconns", "inactive connections")
    persistconns = _field("persistconns", "templates")
    refcnt = _field("refcnt", "entries that point here")
    flags = _field("flags", "`DestFlag` bits")
    conn_flags = _field("conn_flags", "`ConnFlag` bits for new connections: the method")
    service = _field("service", "record of the service")
    port = _field("port", "port")
    vport = _field("vport", "the service's port")
    vfwmark = _field("vfwmark", "the service's mark")
    protocol = _field("protocol", "the service's protocol")
    af = _field("af", "family of the address")
    vaf = _field("vaf", "the service's family")
    tun_type = _field("tun_type", "0 ipip, 1 gue, 2 gre")
    tun_port = _field("tun_port", "gue port")
    tun_flags = _field("tun_flags", "tunnel checksum flags")

    @property
    def addr(self) -> bytes:
        """Address, packed."""
        return _addr(self._c.addr, self._c.af)

    @addr.setter
    def addr(self, value: bytes) -> None:
        _put(ffi.addressof(self._c, "addr"), value)

    @property
    def vaddr(self) -> bytes:
        """The service's address, packed."""
        return _addr(self._c.vaddr, self._c.vaf)

    @vaddr.setter
    def vaddr(self, value: bytes) -> None:
        _put(ffi.addressof(self._c, "vaddr"), value)

    def free(self) -> None:
        """Give the record back; ValueError while entries point here."""
        if lib.uvs_dest_free(self._table._t, self.index):
            raise ValueError("destination still has connections")

    def overload(self) -> None:
        """OVERLOAD anew, after a threshold was set (ip_vs_dest_update_overload)."""
        lib.uvs_dest_overload(self._c)

    def clear_stats(self) -> None:
        """Counters to zero (a revived destination of another service)."""
        ffi.buffer(ffi.addressof(self._c, "stats"))[:] = bytes(ffi.sizeof("struct uvs_stats"))


class ServiceRecord(_Record):
    """A service's slot (`struct uvs_service`)."""

    __slots__ = ()

    af = _field("af", "address family")
    protocol = _field("protocol", "transport protocol")
    port = _field("port", "port")
    fwmark = _field("fwmark", "mark, 0 = none")

    @property
    def addr(self) -> bytes:
        """Address, packed."""
        return _addr(self._c.addr, self._c.af)

    @addr.setter
    def addr(self, value: bytes) -> None:
        _put(ffi.addressof(self._c, "addr"), value)

    def free(self) -> None:
        """Give the record back."""
        lib.uvs_service_free(self._table._t, self.index)


class TableError(OSError):
    """The arena cannot be opened; the text says why and what to do."""

    def __str__(self) -> str:
        return str(self.strerror)


class Table:
    """The connection table (`struct uvs_table`): connections, templates, destination counters."""

    def __init__(
        self, path: str | None = None, conn_max: int = 1 << 20, boot_id: bytes = bytes(16), now: int = 0
    ) -> None:
        """Open or make the arena at `path` (None: private memory). `message` says what was set aside."""
        msg = ffi.new("char[1024]")
        name = ffi.NULL if path is None else os.fsencode(path)
        self._t = lib.uvs_table_open(name, conn_max, boot_id, now, msg, 1024)
        self.message: str = ffi.string(msg).decode(errors="replace")
        if self._t == ffi.NULL:
            raise TableError(ffi.errno, self.message, path)
        self._param = ffi.new("struct uvs_conn_param *")
        self._info = ffi.new("struct uvs_table_info *")

    def close(self) -> None:
        """Unmap; the file stays."""
        if self._t != ffi.NULL:
            lib.uvs_table_close(self._t)
            self._t = ffi.NULL

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def info(self) -> dict[str, int]:
        """conns, templates, no_cport, dests, services, records, conn_max, attached, bytes, full."""
        lib.uvs_table_info(self._t, self._info)
        return {name: getattr(self._info, name) for name, _ in ffi.typeof("struct uvs_table_info").fields}

    @property
    def total(self) -> tuple[int, int, int, int, int]:
        """conns, inpkts, outpkts, inbytes, outbytes of everything."""
        s = lib.uvs_table_total(self._t)
        return s.conns, s.inpkts, s.outpkts, s.inbytes, s.outbytes

    # ---- records

    def dest_new(self) -> DestRecord | None:
        """An empty destination record; None when the table is full."""
        i = lib.uvs_dest_new(self._t)
        return DestRecord(self, i, lib.uvs_dest_at(self._t, i)) if i else None

    def service_new(self) -> ServiceRecord | None:
        """An empty service record; None when the table is full."""
        i = lib.uvs_service_new(self._t)
        return ServiceRecord(self, i, lib.uvs_service_at(self._t, i)) if i else None

    def dests(self) -> Iterator[DestRecord]:
        """All destination records (after re-attaching: to be claimed by identity)."""
        for i in self._records(lib.UVS_KIND_DEST):
            yield DestRecord(self, i, lib.uvs_dest_at(self._t, i))

    def services(self) -> Iterator[ServiceRecord]:
        """All service records."""
        for i in self._records(lib.UVS_KIND_SERVICE):
            yield ServiceRecord(self, i, lib.uvs_service_at(self._t, i))

    def conns(self) -> Iterator[Conn]:
        """All connections and templates."""
        for i in self._records(lib.UVS_KIND_CONN):
            yield Conn(lib.uvs_conn_at(self._t, i))

    def _records(self, kind: int) -> Iterator[int]:
        cursor = ffi.new("uint32_t *")
        while i := lib.uvs_record_next(self._t, kind, cursor):
            yield i

    def conn_at(self, index: int) -> Conn | None:
        """The connection in record `index`, None if there is none."""
        c = lib.uvs_conn_at(self._t, index)
        return Conn(c) if c else None

    def index_of(self, conn: Conn) -> int:
        """The record that a connection stands in."""
        return lib.uvs_record_index(self._t, conn._c)  # type: ignore[no-any-return]

    # ---- connections

    def conn_in_get(self, iph: Header) -> Conn | None:
        """ip_vs_conn_in_get: client to VIP."""
        c = lib.uvs_conn_in_get(self._t, iph._c)
        return Conn(c) if c else None

    def conn_in_get_batch(self, headers: Sequence[Header]) -> list[Conn | None]:
        """The same for many packets at once, as the fast path looks them up."""
        iph, out = ffi.new("struct uvs_iphdr[]", len(headers)), ffi.new("uint32_t[]", len(headers))
        for i, header in enumerate(headers):
            iph[i] = header._c[0]
        lib.uvs_conn_in_get_batch(self._t, iph, len(headers), out)
        return [self.conn_at(i) for i in out]

    def conn_out_get(self, iph: Header) -> Conn | None:
        """ip_vs_conn_out_get: real server to client."""
        c = lib.uvs_conn_out_get(self._t, iph._c)
        return Conn(c) if c else None

    def ct_in_get(self, af: int, protocol: int, caddr: bytes, vaddr: bytes, vport: int) -> Conn | None:
        """ip_vs_ct_in_get: the persistence template of a client (already masked)."""
        self._fill(af, protocol, caddr, 0, vaddr, vport, af, b"", 0, 0)
        c = lib.uvs_ct_in_get(self._t, self._param)
        return Conn(c) if c else None

    def conn_new(
        self,
        af: int,
        protocol: int,
        caddr: bytes,
        cport: int,
        vaddr: bytes,
        vport: int,
        daf: int,
        daddr: bytes,
        dport: int,
        fwmark: int,
        flags: int,
        dest: int,
        now: int,
    ) -> Conn | None:
        """ip_vs_conn_new: bound to destination record `dest` (0 = none); None when the table is full."""
        self._fill(af, protocol, caddr, cport, vaddr, vport, daf, daddr, dport, fwmark)
        c = lib.uvs_conn_new(self._t, self._param, flags, dest, now)
        return Conn(c) if c else None

    def _fill(
        self,
        af: int,
        protocol: int,
        caddr: bytes,
        cport: int,
        vaddr: bytes,
        vport: int,
        daf: int,
        daddr: bytes,
        dport: int,
        fwmark: int,
    ) -> None:
        p = self._param
        p.af, p.daf, p.protocol, p.fwmark = af, daf, protocol, fwmark
        p.cport, p.vport, p.dport = cport, vport, dport
        for name, addr in ("caddr", caddr), ("vaddr", vaddr), ("daddr", daddr):
            _put(ffi.addressof(p, name), addr)

    def conn_put(self, conn: Conn, now: int) -> None:
        """ip_vs_conn_put: release, restarting its timer."""
        lib.uvs_conn_put(self._t, conn._c, now)

    def conn_expire_now(self, conn: Conn, now: int) -> None:
        """ip_vs_conn_expire_now: due at the next turn of the wheel."""
        lib.uvs_conn_expire_now(self._t, conn._c, now)

    def conn_del(self, conn: Conn) -> None:
        """ip_vs_conn_del: gone at once, and its controllers as they become free."""
        lib.uvs_conn_del(self._t, conn._c)

    def control_add(self, conn: Conn, controller: Conn) -> None:
        """ip_vs_control_add."""
        lib.uvs_control_add(self._t, conn._c, controller._c)

    def conn_rekey(self, conn: Conn, cport: int, vport: int, dport: int) -> None:
        """Give an entry other ports and hash it again."""
        lib.uvs_conn_rekey(self._t, conn._c, cport, vport, dport)

    def conn_fill_cport(self, conn: Conn, cport: int) -> None:
        """ip_vs_conn_fill_cport: the client's port becomes known."""
        lib.uvs_conn_fill_cport(self._t, conn._c, cport)

    def expire(self, now: int, budget: int = 10_000) -> int:
        """Turn the timer wheel; returns how many entries were looked at (== budget: call again)."""
        return lib.uvs_expire(self._t, now, budget)  # type: ignore[no-any-return]

    def set_state(self, conn: Conn, direction: Dir, iph: Header) -> None:
        """ip_vs_set_state: state, time-out, counters."""
        lib.uvs_set_state(self._t, conn._c, direction, iph._c)

    def in_stats(self, conn: Conn, size: int) -> None:
        """ip_vs_in_stats: a packet of `size` bytes from the client."""
        lib.uvs_in_stats(self._t, conn._c, size)

    def out_stats(self, conn: Conn, size: int) -> None:
        """ip_vs_out_stats: a packet of `size` bytes to the client."""
        lib.uvs_out_stats(self._t, conn._c, size)

    def conn_stats(self, conn: Conn) -> None:
        """ip_vs_conn_stats: one connection more."""
        lib.uvs_conn_stats(self._t, conn._c)

    # ---- settings

    def timeouts(self, protocol: int) -> list[int]:
        """Time-outs of a protocol's states, ms, by state number."""
        n = {6: lib.UVS_TCP_STATES, 17: lib.UVS_UDP_STATES, 132: lib.UVS_SCTP_STATES}[protocol]
        return list(lib.uvs_timeouts(self._t, protocol)[0:n])

    def set_timeout(self, protocol: int, state: int, ms: int) -> None:
        """Set one of them (SET_CONFIG); running timers keep going."""
        lib.uvs_timeouts(self._t, protocol)[state] = ms

    def secure_tcp(self, on: bool) -> None:
        """Use the second TCP table (reference 3.2)."""
        lib.uvs_secure_tcp(self._t, on)


def state_name(protocol: int, state: int) -> str:
    """As ip_vs_state_name: `ERR!` outside the protocol's range or without states, NONE for protocol 0."""
    name = lib.uvs_state_name(protocol, state)
    if name == ffi.NULL:
        return "ERR!" if protocol else "NONE"
    return ffi.string(name).decode()  # type: ignore[no-any-return]


def tcp_next(secure: bool, direction: Dir, event: str, state: int) -> int:
    """One cell of TCP's tables; `event` is syn, fin, ack or rst."""
    return lib.uvs_tcp_next(secure, direction, ("syn", "fin", "ack", "rst").index(event), state)  # type: ignore[no-any-return]


def sctp_next(direction: Dir, event: int, state: int) -> int:
    """One cell of SCTP's tables: data, init, init-ack, cookie-echo, cookie-ack, shutdown, its ack, its
    completion, error, abort are events 0 to 9."""
    return lib.uvs_sctp_next(direction, event, state)  # type: ignore[no-any-return]


def why_name(why: int) -> str:
    """uvs_why_name: `no_service` for Why.NO_SERVICE, `?` for a number that is no reason."""
    return ffi.string(lib.uvs_why_name(why)).decode()  # type: ignore[no-any-return]


def checksum(data: bytes) -> int:
    """RFC 1071 checksum of bytes, as the number that stands in the packet (big-endian)."""
    value: int = lib.uvs_csum(ffi.from_buffer(data), len(data), 0)
    return int.from_bytes(value.to_bytes(2, "little" if _LITTLE else "big"), "big")


def crc32c(data: bytes) -> int:
    """CRC32c of RFC 9260 appendix A (SCTP puts it into the packet little-endian)."""
    return lib.uvs_crc32c(ffi.from_buffer(data), len(data))  # type: ignore[no-any-return]


_LITTLE = bytes(ffi.buffer(ffi.new("uint16_t *", 1))) == b"\1\0"
