"""A small world for tests of the connection table: one service, its server by each method, a clock."""

from __future__ import annotations

from collections import Counter
from typing import Any

from support.packets import CLIENT, CLIENT6, CPORT, DPORT, SERVER, SERVER6, VIP, VIP6, VPORT, packed
from uvs.engine.core import (
    AF_INET,
    AF_INET6,
    Conn,
    ConnFlag,
    DestFlag,
    DestRecord,
    Dir,
    Hdr,
    Header,
    Table,
    ffi,
)

MASQ, TUNNEL, ROUTE = ConnFlag.MASQ, ConnFlag.TUNNEL, ConnFlag.DROUTE
SECOND = 1_000_000_000
START = 1_000 * SECOND
TCP_FLAGS = {"F": 1, "S": 2, "R": 4, "P": 8, "A": 16, "U": 32}
TCP_EVENTS = {"syn": "S", "fin": "FA", "ack": "A", "rst": "R"}


def tcp_flags(text: str) -> int:
    """`"SA"`, or an event such as `"syn"`, as the octet of the TCP header."""
    return sum(TCP_FLAGS[c] for c in TCP_EVENTS.get(text, text))


def header(
    protocol: int,
    src: bytes,
    sport: int,
    dst: bytes,
    dport: int,
    flags: int = Hdr.PORTS | Hdr.L4,
    **fields: int,
) -> Header:
    """A parsed header without a packet."""
    iph = Header()
    iph.af, iph.protocol = AF_INET if len(src) == 4 else AF_INET6, protocol
    iph.sport, iph.dport, iph.flags = sport, dport, flags
    iph.chunk = iph.next_chunk = 255
    ffi.buffer(ffi.addressof(iph._c, "saddr"))[:] = src.ljust(16, b"\0")
    ffi.buffer(ffi.addressof(iph._c, "daddr"))[:] = dst.ljust(16, b"\0")
    for name, value in fields.items():
        setattr(iph, name, value)
    return iph


class World:
    """A table with one service and one destination; entries are made and sent packets by name."""

    def __init__(
        self, path: str | None = None, conn_max: int = 1000, v6: bool = False, **kwargs: Any
    ) -> None:
        self.now = START
        self.v6 = v6
        self.table = Table(path, conn_max, now=self.now, **kwargs)
        self.client, self.vip, self.rip = map(
            packed, (CLIENT6, VIP6, SERVER6) if v6 else (CLIENT, VIP, SERVER)
        )
        self.af = AF_INET6 if v6 else AF_INET
        if self.table.info()["attached"]:
            self.dest = next(self.table.dests())
            return
        service = self.table.service_new()
        assert service is not None
        service.af, service.protocol, service.port, service.addr = self.af, 6, VPORT, self.vip
        self.service = service
        self.dest = self.server(self.rip)

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.table.close()

    def server(self, addr: bytes) -> DestRecord:
        """One real server more."""
        dest = self.table.dest_new()
        assert dest is not None
        dest.af, dest.vaf, dest.addr, dest.port = self.af, self.af, addr, DPORT
        dest.vaddr, dest.vport, dest.protocol, dest.weight = self.vip, VPORT, 6, 1
        dest.flags, dest.service = DestFlag.AVAILABLE, self.service.index
        return dest

    @property
    def counters(self) -> tuple[int, int, int]:
        """activeconns, inactconns, persistconns of the destination."""
        return self.dest.activeconns, self.dest.inactconns, self.dest.persistconns

    def new(
        self,
        method: int = MASQ,
        protocol: int = 6,
        cport: int = CPORT,
        vport: int = VPORT,
        dport: int = DPORT,
        flags: int = 0,
        dest: DestRecord | None = None,
        client: bytes | None = None,
        bound: bool = True,
        pe: bytes = b"",
    ) -> Conn:
        """ip_vs_conn_new to the destination; the method is set on it first, as the service would."""
        dest = dest or self.dest
        dest.conn_flags = method | ConnFlag.INACTIVE | (0 if method == MASQ else ConnFlag.NOOUTPUT)
        conn = self.table.conn_new(
            self.af, protocol, client or self.client, cport, self.vip, vport, dest.af, dest.addr, dport, 0, flags,
            dest.index if bound else 0, self.now, pe,
        )  # fmt: skip
        assert conn is not None
        return conn

    def template(
        self, protocol: int = 6, timeout: int = 360_000, vport: int = VPORT, pe: bytes = b""
    ) -> Conn:
        """A persistence template of the client, its timer started."""
        conn = self.new(protocol=protocol, cport=0, vport=vport, flags=ConnFlag.TEMPLATE, pe=pe)
        conn.timeout = timeout
        self.table.conn_put(conn, self.now)
        return conn

    def force(self, conn: Conn, state: int, active: bool) -> None:
        """Put a connection into a state, its counters with it."""
        conn.state = state
        if active and conn.flags & ConnFlag.INACTIVE:
            conn.flags &= ~ConnFlag.INACTIVE
            self.dest.activeconns += 1
            self.dest.inactconns -= 1

    def header(self, conn: Conn, direction: Dir, protocol: int = 0, **fields: int) -> Header:
        """The header of a packet of this connection."""
        protocol = protocol or conn.protocol
        if direction != Dir.OUTPUT:
            return header(protocol, conn.caddr, conn.cport, conn.vaddr, conn.vport, **fields)
        if conn.flags & ConnFlag.FWD_MASK == MASQ:
            return header(protocol, conn.daddr, conn.dport, conn.caddr, conn.cport, **fields)
        return header(protocol, conn.vaddr, conn.vport, conn.caddr, conn.cport, **fields)

    def packet(
        self, conn: Conn, direction: Dir, flags: str = "", readable: bool = True, chunk: int = 255,
        next_chunk: int = 255,
    ) -> None:  # fmt: skip
        """A packet passes: state and timer."""
        iph = self.header(conn, direction, tcp_flags=tcp_flags(flags), chunk=chunk, next_chunk=next_chunk)
        if not readable:
            iph.flags = Hdr.PORTS
        self.table.set_state(conn, direction, iph)
        self.table.conn_put(conn, self.now)

    def play(self, conn: Conn, text: str) -> None:
        """`"in syn SYN_RECV 60 1:0, ..."`: packets, and state, seconds, active:inactive after each."""
        for step in text.split(","):
            direction, event, state, *rest = step.split()
            self.now += SECOND
            self.packet(conn, Dir.INPUT if direction == "in" else Dir.OUTPUT, event)
            got = [conn.state_name]
            if rest:
                got.append(str(conn.timeout // 1000))
                assert conn.remaining(self.now) == conn.timeout, step
            if len(rest) > 1:
                got.append("{}:{}".format(*self.counters))
            assert got == [state, *rest], step


def template_key(conn: Conn) -> tuple[int, int, bytes, bytes, int]:
    """What a template is looked up by, besides a persistence engine's data."""
    return conn.af, conn.protocol, conn.caddr, conn.vaddr, conn.vport


def verify(table: Table) -> int:
    """What the table counts is what it holds, and each entry is found. Returns how many it holds."""
    conns = {table.index_of(c): c for c in table.conns()}
    templates = [c for c in conns.values() if c.flags & ConnFlag.TEMPLATE]
    info = table.info()
    assert (info["conns"], info["templates"]) == (len(conns) - len(templates), len(templates))
    assert info["no_cport"] == sum(bool(c.flags & ConnFlag.NO_CPORT) for c in conns.values())
    for dest in table.dests():
        mine = [c for c in conns.values() if c.dest == dest.index]
        plain = [c for c in mine if not c.flags & ConnFlag.TEMPLATE]
        inactive = sum(bool(c.flags & ConnFlag.INACTIVE) for c in plain)
        counted = (dest.refcnt, dest.activeconns, dest.inactconns, dest.persistconns)
        assert counted == (len(mine), len(plain) - inactive, inactive, len(mine) - len(plain))
    controlled = Counter(c.control for c in conns.values() if c.control)
    assert {i: c.n_control for i, c in conns.items() if c.n_control} == controlled
    for conn in conns.values():
        found: Conn | None
        if conn.flags & ConnFlag.TEMPLATE:
            found = table.ct_in_get(*template_key(conn), table.pe_data(conn))
        else:
            found = table.conn_in_get(header(conn.protocol, conn.caddr, conn.cport, conn.vaddr, conn.vport))
        assert found is not None
        assert (found.caddr, found.cport, found.vport) == (conn.caddr, conn.cport, conn.vport)
    return len(conns)
