"""The connection table against a list of Python objects: the same finds, timers, states and counters,
also after the arena was closed and taken over."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from support.table import MASQ, ROUTE, START, TUNNEL, header, tcp_flags, verify

from uvs.engine.core import AF_INET, AF_INET6, Conn, ConnFlag, DestFlag, Dir, Table, tcp_next

TICK_MS, MS = 125, 1_000_000
TCP, UDP = 6, 17
TEMPLATE, NO_CPORT, ONE_PACKET = ConnFlag.TEMPLATE, ConnFlag.NO_CPORT, ConnFlag.ONE_PACKET
TCP_ACTIVE = {1, 2, 3, 10}
TCP_MS = [s * 1000 for s in (2, 900, 120, 60, 120, 120, 10, 60, 30, 120, 120)]
EVENTS = ["syn", "fin", "ack", "rst"]
METHODS = [MASQ, ROUTE, TUNNEL]


def addr(af: int, n: int) -> bytes:
    return bytes([10, 0, 0, n]) if af == AF_INET else bytes.fromhex("fd00") + bytes(13) + bytes([n])


@dataclass(eq=False)
class Entry:
    """What IPVS knows of a connection."""

    index: int
    af: int
    protocol: int
    caddr: bytes
    cport: int
    vaddr: bytes
    vport: int
    daddr: bytes
    dport: int
    flags: int
    server: int | None
    deadline: int
    state: int = 0
    timeout: int = 3000
    control: Entry | None = None
    not_before: int = 0  # made due when the wheel had already passed: its next tick

    @property
    def due(self) -> int:
        return max(self.deadline, self.not_before)

    @property
    def template(self) -> bool:
        return bool(self.flags & TEMPLATE)

    def is_above(self, other: Entry) -> bool:
        up: Entry | None = other
        while up:
            if up is self:
                return True
            up = up.control
        return False


@dataclass
class Server:
    """What IPVS counts of a real server."""

    method: int
    u: int
    l: int  # noqa: E741
    overload: bool = False
    index: int = 0


@dataclass
class Model:
    """All entries, the newest first."""

    servers: list[Server]
    entries: list[Entry] = field(default_factory=list)

    def counts(self, n: int) -> tuple[int, int, int]:
        mine = [e for e in self.entries if e.server == n]
        plain = [e for e in mine if not e.template]
        inactive = sum(bool(e.flags & ConnFlag.INACTIVE) for e in plain)
        return len(plain) - inactive, inactive, len(mine) - len(plain)

    def children(self, entry: Entry) -> list[Entry]:
        return [e for e in self.entries if e.control is entry]

    def add(self, entry: Entry) -> None:
        self.entries.insert(0, entry)
        if entry.server is not None:
            s = self.servers[entry.server]
            if s.u and sum(self.counts(entry.server)[:2]) >= s.u:
                s.overload = True

    def remove(self, entry: Entry) -> None:
        self.entries.remove(entry)
        if entry.server is not None:
            s, total = self.servers[entry.server], sum(self.counts(entry.server)[:2])
            if total < s.l if s.l else (not s.u or total * 4 < s.u * 3):
                s.overload = False

    def expire(self, entry: Entry, now: int) -> None:
        """ip_vs_conn_expire."""
        if self.children(entry):
            entry.timeout, entry.deadline = 60_000, now + 60_000 * MS
            return
        up = entry.control
        self.remove(entry)
        entry.control = None
        if up and entry.timeout == 0 and not self.children(up) and not (up.template and up.state & 1):
            self.delete(up, now)

    def delete(self, entry: Entry, now: int) -> None:
        """ip_vs_conn_del."""
        if entry.control:
            entry.timeout = 0
        self.expire(entry, now)

    def find_in(
        self, af: int, protocol: int, caddr: bytes, cport: int, vaddr: bytes, vport: int
    ) -> Entry | None:
        rest = af, protocol, caddr, vaddr, vport
        for port in (cport, 0):
            for e in self.entries:
                same = (e.af, e.protocol, e.caddr, e.vaddr, e.vport) == rest and e.cport == port
                if same and (port == 0) == bool(e.flags & NO_CPORT) and not e.template:
                    return e
        return None

    def find_out(
        self, af: int, protocol: int, src: bytes, sport: int, dst: bytes, dport: int
    ) -> Entry | None:
        for e in self.entries:
            if (e.af, e.protocol, e.caddr, e.cport) == (af, protocol, dst, dport):
                masq = e.flags & ConnFlag.FWD_MASK == MASQ
                if (src, sport) == ((e.daddr, e.dport) if masq else (e.vaddr, e.vport)):
                    return e
        return None

    def find_template(self, af: int, protocol: int, caddr: bytes, vaddr: bytes, vport: int) -> Entry | None:
        for e in self.entries:
            key = e.af, e.protocol, e.caddr, e.vaddr, e.vport, e.cport
            if e.template and key == (af, protocol, caddr, vaddr, vport, 0):
                return e
        return None


family = st.sampled_from([AF_INET, AF_INET6])
protocol = st.sampled_from([TCP, TCP, UDP])
client = st.integers(1, 2)
cport = st.integers(1, 3)
vport = st.integers(80, 81)
server = st.integers(0, 2)


class TableMachine(RuleBasedStateMachine):
    """Times are whole ticks, so that a deadline and its visit fall together."""

    made = Bundle("made")

    @initialize(thresholds=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=3, max_size=3))
    def start(self, thresholds: list[tuple[int, int]]) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.path = str(Path(self.dir.name, "connections"))
        self.now = START
        self.turned = START - TICK_MS * MS  # the last tick that the wheel has visited
        self.table = Table(self.path, 1000, now=self.now)
        pairs = zip(METHODS, thresholds, strict=True)
        self.model = Model([Server(m, u, min(u, low)) for m, (u, low) in pairs])
        for n, s in enumerate(self.model.servers):
            dest = self.table.dest_new()
            assert dest is not None
            s.index = dest.index
            dest.af = dest.vaf = AF_INET
            dest.addr, dest.u_threshold, dest.l_threshold = addr(AF_INET, 200 + n), s.u, s.l
            dest.conn_flags = s.method | ConnFlag.INACTIVE | (0 if s.method == MASQ else ConnFlag.NOOUTPUT)

    def teardown(self) -> None:
        if hasattr(self, "dir"):
            self.table.close()
            self.dir.cleanup()

    def conn(self, entry: Entry) -> Conn:
        conn = self.table.conn_at(entry.index)
        assert conn is not None
        return conn

    def is_(self, found: Conn | None, entry: Entry | None) -> None:
        assert (self.table.index_of(found) if found else 0) == (entry.index if entry else 0)

    # ---- making

    def new(
        self, af: int, proto: int, c: int, cp: int, vp: int, n: int | None, flags: int, port: int
    ) -> Entry:
        s = self.model.servers[n] if n is not None else None
        key = (af, proto, addr(af, c), cp, addr(af, 100), vp)
        daddr = addr(af, 200 + (n or 0))
        conn = self.table.conn_new(*key, af, daddr, port, 0, flags, s.index if s else 0, self.now)
        assert conn is not None
        if s:
            flags |= s.method | ConnFlag.INACTIVE | (0 if s.method == MASQ else ConnFlag.NOOUTPUT)
        entry = Entry(self.table.index_of(conn), *key, daddr, port, flags, n, self.now + 3000 * MS)
        self.model.add(entry)
        return entry

    @rule(target=made, af=family, proto=protocol, c=client, cp=cport, vp=vport, n=server, port=vport)
    def make(self, af: int, proto: int, c: int, cp: int, vp: int, n: int, port: int) -> Any:
        return self.new(af, proto, c, cp, vp, n, 0, port)

    @rule(target=made, af=family, proto=protocol, c=client, vp=vport, n=server)
    def make_no_cport(self, af: int, proto: int, c: int, vp: int, n: int) -> Any:
        return self.new(af, proto, c, 0, vp, n, NO_CPORT, 80)

    @rule(target=made, af=family, c=client, cp=cport, vp=vport)
    def make_bypass(self, af: int, c: int, cp: int, vp: int) -> Any:
        return self.new(af, TCP, c, cp, vp, None, ConnFlag.BYPASS, 0)

    @rule(target=made, af=family, proto=protocol, c=client, vp=vport, n=server, seconds=st.integers(1, 2000))
    def make_template(self, af: int, proto: int, c: int, vp: int, n: int, seconds: int) -> Any:
        entry = self.new(af, proto, c, 0, vp, n, TEMPLATE, 80)
        self.conn(entry).timeout = entry.timeout = seconds * 1000
        self.put(entry)
        return entry

    @rule(af=family, c=client, cp=cport, vp=vport, n=server)
    def one_packet(self, af: int, c: int, cp: int, vp: int, n: int) -> None:
        entry = self.new(af, UDP, c, cp, vp, n, ONE_PACKET, 80)
        args = UDP, entry.caddr, cp, entry.vaddr, vp
        found = self.table.conn_in_get(header(*args))
        assert not found or self.table.index_of(found) != entry.index
        self.table.conn_put(self.conn(entry), self.now)
        self.model.remove(entry)

    # ---- using

    def alive(self, entry: Entry) -> bool:
        return entry in self.model.entries

    def put(self, entry: Entry) -> None:
        self.table.conn_put(self.conn(entry), self.now)
        entry.deadline = self.now + entry.timeout * MS

    @rule(entry=made, direction=st.sampled_from([Dir.INPUT, Dir.OUTPUT]), event=st.integers(0, 3))
    def packet(self, entry: Entry, direction: Dir, event: int) -> None:
        if not self.alive(entry) or entry.template:
            return
        iph = header(entry.protocol, entry.caddr, 1, entry.vaddr, 1, tcp_flags=tcp_flags(EVENTS[event]))
        self.table.set_state(self.conn(entry), direction, iph)
        column = direction
        assured = entry.protocol == UDP and direction == Dir.OUTPUT
        if entry.protocol == UDP:
            entry.timeout = 300_000
        else:
            if entry.flags & ConnFlag.NOOUTPUT and direction == Dir.OUTPUT:
                entry.flags &= ~ConnFlag.NOOUTPUT
            elif entry.flags & ConnFlag.NOOUTPUT:
                column = Dir.INPUT_ONLY
            state = tcp_next(False, column, EVENTS[event], entry.state)
            if state != entry.state and entry.server is not None:
                entry.flags &= ~ConnFlag.INACTIVE
                entry.flags |= 0 if state in TCP_ACTIVE else ConnFlag.INACTIVE
            assured = state == 1 and state != entry.state
            entry.state, entry.timeout = state, TCP_MS[state]
        if assured and entry.control and entry.control.template:
            entry.control.state |= 1
        self.put(entry)

    @rule(entry=made, other=made)
    def control(self, entry: Entry, other: Entry) -> None:
        if self.alive(entry) and self.alive(other):
            self.table.control_add(self.conn(entry), self.conn(other))
            if not entry.is_above(other):
                entry.control = other

    @rule(entry=made)
    def expire_now(self, entry: Entry) -> None:
        if self.alive(entry):
            self.table.conn_expire_now(self.conn(entry), self.now)
            entry.deadline = min(entry.deadline, self.now)
            entry.not_before = self.turned + TICK_MS * MS

    @rule(entry=consumes(made))
    def delete(self, entry: Entry) -> None:
        if self.alive(entry):
            self.table.conn_del(self.conn(entry))
            self.model.delete(entry, self.now)

    @rule(entry=made)
    def rekey(self, entry: Entry) -> None:
        """As ip_vs_sched_persist does with an invalid template; at most one such stays of a key."""
        if self.alive(entry) and entry.template:
            self.table.conn_rekey(self.conn(entry), 0, 0xFFFF, 0xFFFF)
            entry.cport, entry.vport, entry.dport = 0, 0xFFFF, 0xFFFF
            self.model.entries.remove(entry)
            self.model.entries.insert(0, entry)

    @rule(entry=made, cp=cport)
    def fill_cport(self, entry: Entry, cp: int) -> None:
        if self.alive(entry):
            self.table.conn_fill_cport(self.conn(entry), cp)
            if entry.flags & NO_CPORT:
                entry.flags &= ~NO_CPORT
                entry.cport = cp
                self.model.entries.remove(entry)
                self.model.entries.insert(0, entry)

    # ---- finding

    @rule(af=family, proto=protocol, c=client, cp=st.integers(0, 3), vp=vport)
    def look_in(self, af: int, proto: int, c: int, cp: int, vp: int) -> None:
        args = addr(af, c), cp, addr(af, 100), vp
        iph = header(proto, *args)
        self.is_(self.table.conn_in_get(iph), self.model.find_in(af, proto, *args))
        self.is_(self.table.conn_in_get_batch([iph])[0], self.model.find_in(af, proto, *args))

    @rule(af=family, proto=protocol, host=st.sampled_from([100, 200, 201, 202]), sp=vport, c=client, cp=cport)
    def look_out(self, af: int, proto: int, host: int, sp: int, c: int, cp: int) -> None:
        args = addr(af, host), sp, addr(af, c), cp
        self.is_(self.table.conn_out_get(header(proto, *args)), self.model.find_out(af, proto, *args))

    @rule(af=family, proto=protocol, c=client, vp=st.sampled_from([80, 81, 0xFFFF]))
    def look_template(self, af: int, proto: int, c: int, vp: int) -> None:
        args = af, proto, addr(af, c), addr(af, 100), vp
        self.is_(self.table.ct_in_get(*args), self.model.find_template(*args))

    @rule(entry=made, of=st.sampled_from(["server", "virtual"]), off=st.sampled_from([0, 0, 1]))
    def look_around(self, entry: Entry, of: str, off: int) -> None:
        """For the packets of an entry, there or gone, and those of a neighbour."""
        key = entry.af, entry.protocol
        args = entry.caddr, entry.cport or 3, entry.vaddr, entry.vport
        iph = header(entry.protocol, *args)
        self.is_(self.table.conn_in_get(iph), self.model.find_in(*key, *args))
        self.is_(self.table.conn_in_get_batch([iph, iph])[1], self.model.find_in(*key, *args))
        src, port = (entry.daddr, entry.dport) if of == "server" else (entry.vaddr, entry.vport)
        reply = src, (port + off) & 0xFFFF, entry.caddr, entry.cport
        self.is_(self.table.conn_out_get(header(entry.protocol, *reply)), self.model.find_out(*key, *reply))
        template = *key, entry.caddr, entry.vaddr, entry.vport
        self.is_(self.table.ct_in_get(*template), self.model.find_template(*template))

    # ---- time

    def turn(self) -> None:
        """The wheel, at a tick; of a controller and its last connection due together either may be first."""
        self.table.expire(self.now)
        self.turned = self.now
        due = [e for e in self.model.entries if e.due <= self.now]
        for entry in sorted(due, key=lambda e: sum(e.is_above(o) for o in due)):
            if not self.alive(entry):
                continue
            conn = self.table.conn_at(entry.index)
            first = bool(self.model.children(entry)) or (conn is not None and conn.deadline > self.now)
            if first and not self.model.children(entry):
                entry.timeout, entry.deadline = 60_000, self.now + 60_000 * MS
            else:
                self.model.expire(entry, self.now)

    @rule(ticks=st.sampled_from([0, 1, 1, 8, 8, 25, 500, 8000]) | st.integers(0, 20_000))
    def advance(self, ticks: int) -> None:
        end = self.now + ticks * TICK_MS * MS
        while self.model.entries:
            due = max(min(e.due for e in self.model.entries), self.now)
            if due > end:
                break
            self.now = due
            self.turn()
        self.now = end
        self.turn()

    @rule()
    def take_over(self) -> None:
        """Of equal keys the one refreshed last is found first then."""
        self.table.close()
        self.table = Table(self.path, 1000, now=self.now)
        assert self.table.message == ""
        self.turned = self.now - TICK_MS * MS
        for entry in self.model.entries:
            entry.not_before = 0
        self.model.entries.sort(key=lambda e: (e.deadline - e.timeout * MS, e.index), reverse=True)

    # ---- always

    @invariant()
    def same(self) -> None:
        if not hasattr(self, "table"):
            return
        verify(self.table)
        held = {self.table.index_of(c): c for c in self.table.conns()}
        assert set(held) == {e.index for e in self.model.entries}
        for e in self.model.entries:
            c = held[e.index]
            got = (c.caddr, c.cport, c.vaddr, c.vport, c.daddr, c.dport, c.protocol)
            assert got == (e.caddr, e.cport, e.vaddr, e.vport, e.daddr, e.dport, e.protocol)
            assert (c.state, c.timeout, c.deadline) == (e.state, e.timeout, e.deadline)
            assert c.flags == e.flags | ConnFlag.HASHED
            assert c.control == (e.control.index if e.control else 0)
        for n, s in enumerate(self.model.servers):
            dest = next(d for d in self.table.dests() if d.index == s.index)
            assert (dest.activeconns, dest.inactconns, dest.persistconns) == self.model.counts(n)
            assert bool(dest.flags & DestFlag.OVERLOAD) is s.overload


TestTable = TableMachine.TestCase
TestTable.settings = settings(
    max_examples=80, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)
