"""The connection table and its records (`csrc/table.c`, `conn.c`, `timer.c`, `proto_*.c`), typed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

from uvs.engine.binding import address, ffi, lib, number, put_packed
from uvs.engine.names import Dir
from uvs.engine.packet import Header


class Conn:
    """A view of one connection entry (`struct uvs_conn`); valid until it expires."""

    __slots__ = ("_c",)

    def __init__(self, cdata: Any) -> None:
        self._c = cdata

    af = number("af", "family of client and virtual address")
    daf = number("daf", "family of the real server's address")
    protocol = number("protocol", "transport protocol; 0 for a fwmark template")
    cport = number("cport", "client port")
    vport = number("vport", "virtual port")
    dport = number("dport", "real server's port")
    state = number("state", "state of its protocol")
    flags = number("flags", "`ConnFlag` bits")
    timeout = number("timeout", "ms")
    deadline = number("deadline", "ns")
    dest = number("dest", "record of its destination, 0 = none")
    control = number("control", "record of its controller, 0 = none")
    n_control = number("n_control", "connections that it controls")
    in_pkts = number("in_pkts", "packets from the client")
    fwmark = number("fwmark", "mark of the packet that made it")
    mss = number("mss", "TCP: what packets of many segments are cut to, options included; 0 = not known")
    nexthop = number("nexthop", "index into the next-hop table, 0 = not known")

    caddr = address("caddr", "af", "client address, packed")
    vaddr = address("vaddr", "af", "virtual address, packed")
    daddr = address("daddr", "daf", "real server's address, packed")

    @property
    def state_name(self) -> str:
        """As /proc/net/ip_vs_conn prints it; templates: NONE or ASSURED."""
        if self._c.flags & lib.UVS_CONN_F_TEMPLATE:
            return "ASSURED" if self._c.state & 1 else "NONE"
        return state_name(self._c.protocol, self._c.state)

    def remaining(self, now: int) -> int:
        """Milliseconds until it expires, 0 if it is due."""
        return lib.uvs_conn_remaining(self._c, now)  # type: ignore[no-any-return]


class AppData:
    """What an application helper keeps of a connection (`struct uvs_app`)."""

    __slots__ = ("_c",)

    def __init__(self, cdata: Any) -> None:
        self._c = cdata

    mode = number("mode", "the helper's own")
    init_seq = number("init_seq", "sequence number of the last change of length")
    delta = number("delta", "bytes that what follows it was moved by")
    previous_delta = number("previous_delta", "bytes that what precedes it was moved by")

    def resized(self, seq: int, diff: int) -> None:
        """The server's payload from sequence number `seq` on grew by `diff` bytes."""
        lib.uvs_seq_resized(self._c, seq, diff)


def _taken(table: Table, counted: Any) -> Any:
    """Counters of one moment, while others count on."""
    stats = ffi.new("struct uvs_stats *")
    lib.uvs_stats_add(table._t, stats, counted)
    return stats


def _five(s: Any) -> tuple[int, int, int, int, int]:
    return s.conns, s.inpkts, s.outpkts, s.inbytes, s.outbytes


class _Record:
    __slots__ = ("_c", "_table", "index")

    def __init__(self, table: Table, index: int, cdata: Any) -> None:
        self._table, self.index, self._c = table, index, cdata

    @property
    def table(self) -> Table:
        """The table that it stands in."""
        return self._table

    @property
    def stats(self) -> tuple[int, int, int, int, int]:
        """conns, inpkts, outpkts, inbytes, outbytes since the record was made, less what was discounted."""
        return _five(_taken(self._table, ffi.addressof(self._c, "stats")))

    def discount(self, counted: tuple[int, int, int, int, int]) -> None:
        """Count from there: what was counted before a zeroing is not shown again, by a later run neither."""
        by = ffi.new("struct uvs_stats *", counted)
        lib.uvs_stats_sub(self._table._t, ffi.addressof(self._c, "stats"), by)


class DestRecord(_Record):
    """A destination's slot (`struct uvs_dest`): what the engine must know of a real server."""

    __slots__ = ()

    weight = number("weight", "weight")
    last_weight = number("last_weight", "the last weight that was not 0, or what it was added with")
    u_threshold = number("u_threshold", "upper connection threshold, 0 = none")
    l_threshold = number("l_threshold", "lower connection threshold, 0 = none")
    activeconns = number("activeconns", "active connections")
    inactconns = number("inactconns", "inactive connections")
    persistconns = number("persistconns", "templates")
    flags = number("flags", "`DestFlag` bits")
    conn_flags = number("conn_flags", "`ConnFlag` bits for new connections: the method")
    service = number("service", "record of the service")
    port = number("port", "port")
    vport = number("vport", "the service's port")
    vfwmark = number("vfwmark", "the service's mark")
    protocol = number("protocol", "the service's protocol")
    af = number("af", "family of the address")
    vaf = number("vaf", "the service's family")
    tun_type = number("tun_type", "0 ipip, 1 gue, 2 gre")
    tun_port = number("tun_port", "gue port")
    tun_flags = number("tun_flags", "tunnel checksum flags")

    addr = address("addr", "af", "address, packed")
    vaddr = address("vaddr", "vaf", "the service's address, packed")

    @property
    def refcnt(self) -> int:
        """Entries that point here."""
        return lib.uvs_dest_refcnt(self._table._t, self._c)  # type: ignore[no-any-return]

    @property
    def route(self) -> int:
        """Tunnels: as the last packet found it, `ROUTE_*`; 0: none yet."""
        return self._c.route  # type: ignore[no-any-return]

    @route.setter
    def route(self, value: int) -> None:
        lib.uvs_dest_set_route(self._table._t, self._c, value)

    def free(self) -> None:
        """Give the record back; ValueError while entries point here."""
        if lib.uvs_dest_free(self._table._t, self.index):
            raise ValueError("destination still has connections")

    def overload(self) -> None:
        """OVERLOAD anew, after a threshold was set (as Linux 6.1.0-57 was seen to do)."""
        lib.uvs_dest_overload(self._table._t, self._c)

    def set_available(self, yes: bool) -> None:
        """IP_VS_DEST_F_AVAILABLE: it is in use, or deleted."""
        lib.uvs_dest_set_available(self._table._t, self._c, yes)

    def clear_stats(self) -> None:
        """Counters to zero (a revived destination of another service)."""
        self.discount(self.stats)


class ServiceRecord(_Record):
    """A service's slot (`struct uvs_service`)."""

    __slots__ = ()

    af = number("af", "address family")
    protocol = number("protocol", "transport protocol")
    port = number("port", "port")
    fwmark = number("fwmark", "mark, 0 = none")
    flags = number("flags", "IP_VS_SVC_F_* bits")

    addr = address("addr", "af", "address, packed")

    def free(self) -> None:
        """Give the record back."""
        lib.uvs_service_free(self._table._t, self.index)


class Total:
    """The counters of everything, in the arena's header."""

    __slots__ = ("_counted", "_table", "_zeroed")

    def __init__(self, table: Table) -> None:
        self._table = table
        self._counted, self._zeroed = lib.uvs_table_total(table._t), lib.uvs_table_zeroed(table._t)

    @property
    def raw(self) -> tuple[int, int, int, int, int]:
        """conns, inpkts, outpkts, inbytes, outbytes since the arena was made, zeroed or not."""
        return _five(_taken(self._table, self._counted))

    @property
    def stats(self) -> tuple[int, int, int, int, int]:
        """The same without what was discounted."""
        shown = _taken(self._table, self._counted)
        lib.uvs_stats_sub(self._table._t, shown, self._zeroed)
        return _five(shown)

    def discount(self, counted: tuple[int, int, int, int, int]) -> None:
        """Count from there."""
        lib.uvs_stats_add(self._table._t, self._zeroed, ffi.new("struct uvs_stats *", counted))


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
        self._key = ffi.new("struct uvs_iphdr *")
        self._key.flags = lib.UVS_HDR_PORTS
        self._pe = ffi.new("uint8_t[]", lib.UVS_PE_MAX)
        self._info = ffi.new("struct uvs_table_info *")

    def close(self) -> None:
        """Unmap; the file stays."""
        if self._t is not None:
            lib.uvs_table_close(self._t)
            self._t = None  # a call on a closed table is a TypeError, not a crash

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def info(self) -> dict[str, int]:
        """conns, templates, no_cport, dests, services, records, conn_max, attached, bytes, full."""
        lib.uvs_table_info(self._t, self._info)
        return {name: getattr(self._info, name) for name, _ in ffi.typeof("struct uvs_table_info").fields}

    @property
    def total(self) -> Total:
        """The counters of everything."""
        return Total(self)

    def next_ident(self) -> int:
        """An IP identification for a packet of the director's own (16 bits, never 0)."""
        return lib.uvs_idents(self._t, 1)  # type: ignore[no-any-return]

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

    def conn_between(
        self, af: int, protocol: int, src: bytes, sport: int, dst: bytes, dport: int, direction: Dir
    ) -> Conn | None:
        """The connection that a packet with these ends would belong to, in that direction."""
        key = self._key
        key.af, key.protocol, key.sport, key.dport = af, protocol, sport, dport
        put_packed(key.saddr, src)
        put_packed(key.daddr, dst)
        get = lib.uvs_conn_in_get if direction == Dir.INPUT else lib.uvs_conn_out_get
        c = get(self._t, key)
        return Conn(c) if c else None

    def ct_in_get(
        self, af: int, protocol: int, caddr: bytes, vaddr: bytes, vport: int, pe: bytes = b""
    ) -> Conn | None:
        """ip_vs_ct_in_get: the persistence template of a client (already masked).

        `pe`: what a persistence engine knows it by: its name, a blank and its data, PE_MAX bytes at most.
        """
        self._fill(af, protocol, caddr, 0, vaddr, vport, af, b"", 0, 0, pe)
        c = lib.uvs_ct_in_get(self._t, self._param)
        return Conn(c) if c else None

    def pe_data(self, conn: Conn) -> bytes:
        """What a persistence engine knows a template by, as for `ct_in_get`; empty without one."""
        if not conn._c.ext or not conn._c.flags & lib.UVS_CONN_F_TEMPLATE:
            return b""
        return bytes(ffi.buffer(self._pe, lib.uvs_conn_pe(self._t, conn._c, self._pe)))

    def app_data(self, conn: Conn, make: bool = False) -> AppData | None:
        """What a helper keeps of a connection; None: nothing yet or, with `make`, the table is full."""
        a = (lib.uvs_conn_app_new if make else lib.uvs_conn_app)(self._t, conn._c)
        return AppData(a) if a else None

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
        pe: bytes = b"",
        found: int = -1,
    ) -> Conn | None:
        """ip_vs_conn_new: bound to destination record `dest` (0 = none); None when the table is full.

        `found`: record that the packet's own lookup found, 0 for none. If another was made for the same
        packets meanwhile (workers make connections too), it is that one.
        """
        self._fill(af, protocol, caddr, cport, vaddr, vport, daf, daddr, dport, fwmark, pe)
        self._param.once = found >= 0
        self._param.found = max(found, 0)
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
        pe: bytes = b"",
    ) -> None:
        p = self._param
        p.af, p.daf, p.protocol, p.fwmark = af, daf, protocol, fwmark
        p.cport, p.vport, p.dport = cport, vport, dport
        p.pe_len = len(pe)
        if pe:
            ffi.buffer(p.pe)[: len(pe)] = pe
        for name, addr in ("caddr", caddr), ("vaddr", vaddr), ("daddr", daddr):
            put_packed(ffi.addressof(p, name), addr)

    def conn_put(self, conn: Conn, now: int) -> None:
        """ip_vs_conn_put: release, restarting its timer."""
        lib.uvs_conn_put(self._t, conn._c, now)

    def conn_expire_now(self, conn: Conn, now: int) -> None:
        """ip_vs_conn_expire_now: due at the next turn of the wheel."""
        lib.uvs_conn_expire_now(self._t, conn._c, now)

    def conn_del(self, conn: Conn) -> int:
        """ip_vs_conn_del: gone at once, and its controllers as they become free; returns how many went."""
        return lib.uvs_conn_del(self._t, conn._c)  # type: ignore[no-any-return]

    def expire_nodest(self) -> int:
        """ip_vs_expire_nodest_conn_flush: connections of deleted destinations are gone; returns how many."""
        return lib.uvs_expire_nodest(self._t)  # type: ignore[no-any-return]

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

    def drop_entry(self, now: int, random: int) -> int:
        """ip_vs_random_dropentry: a look at a part of the table, from a random record on; how many went."""
        return lib.uvs_drop_entry(self._t, now, random)  # type: ignore[no-any-return]

    def set_state(self, conn: Conn, direction: Dir, iph: Header) -> None:
        """ip_vs_set_state: state, time-out, counters."""
        lib.uvs_set_state(self._t, conn._c, direction, iph._c)

    def in_stats(self, conn: Conn, size: int) -> None:
        """ip_vs_in_stats: a packet of `size` bytes from the client."""
        lib.uvs_in_stats(self._t, conn._c, size)

    def out_stats(self, conn: Conn, size: int) -> None:
        """ip_vs_out_stats: a packet of `size` bytes to the client."""
        lib.uvs_out_stats(self._t, conn._c, size)

    def count_in(self, conn: Conn) -> None:
        """A packet more from the client; the counter wraps, as the kernel's."""
        lib.uvs_conn_count_in(self._t, conn._c)

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
        """Use the second TCP table (ip_vs_proto_tcp.c, tcp_states_dos)."""
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
