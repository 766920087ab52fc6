"""What the commands of the family UVS do: sysctls, connections, counters, walks."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from uvs import __version__
from uvs.control import connfilter, extension, messages, proctext
from uvs.control.connfilter import ConnFilter
from uvs.control.extension import Attr, Cmd, ConnEntry
from uvs.control.genetlink import UVS_ID, Family, Op, Reply, Steps
from uvs.control.ipvs_family import stats
from uvs.control.netlink import Attrs, attribute
from uvs.control.sockopt import Sockopt
from uvs.engine.core import Conn, Why
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import IpvsError
from uvs.ipvs.tracing import Tracer
from uvs.ipvs.walk import Walk

NAME_MAX, VALUE_MAX = 63, 255
RECORD_MAX = 10_000
WALK_SNAP, WALK_SENT = 1024, 16  # bytes of a packet, packets sent: an attribute holds 64 KiB
CONNS_PER_MESSAGE = 64
DATA_PER_MESSAGE = 8192
CONNS_PER_TURN = 512  # looked at before others may go first


class UvsFamily:
    """The family UVS over one director."""

    def __init__(
        self,
        ipvs: NetnsIpvs,
        more: Mapping[int, Op] | None = None,
        asking: Callable[[], object] = lambda: None,
    ) -> None:
        """`more`: commands that others do; `asking`: whose request is at hand (`gone` ends its trace)."""
        self.ipvs, self._asking = ipvs, asking
        self.more = more or {}
        self.started = int(time.time())
        self._tracers: dict[object, Tracer] = {}
        self.sockopt = Sockopt(ipvs.services, ipvs.table)

    def family(self) -> Family:
        """Its commands."""
        ops = {
            Cmd.GET_SYSCTL: Op(self.get_sysctl, self.get_sysctls),
            Cmd.SET_SYSCTL: Op(self.set_sysctl, changes=True),
            Cmd.GET_CONNS: Op(dump=self.get_conns),
            Cmd.GET_COUNTERS: Op(dump=self.get_counters),
            Cmd.GET_TOTAL: Op(self.get_total),
            Cmd.RECORD: Op(self.record),
            Cmd.GET_WALKS: Op(dump=self.get_walks),
            Cmd.GET_PROC: Op(dump=self.get_proc),
            Cmd.SET_SOCKOPT: Op(self.set_sockopt, changes=True),
            Cmd.GET_SOCKOPT: Op(dump=self.get_sockopt),
            Cmd.FLUSH_CONNS: Op(dump=self.flush_conns),
            Cmd.GET_QUEUES: Op(dump=self.get_queues),
            Cmd.TRACE: Op(self.trace),
            Cmd.GET_TRACE: Op(self.get_trace),
        }
        return Family(
            UVS_ID,
            extension.FAMILY_NAME,
            extension.VERSION,
            max(Attr),
            {int(cmd): op for cmd, op in ops.items()} | dict(self.more),
        )

    # ---- sysctls

    def _sysctl(self, name: str) -> Reply:
        return Cmd.GET_SYSCTL, extension.name(name) + extension.value(self.ipvs.sysctl.get(name))

    def get_sysctl(self, payload: bytes, attrs: Attrs) -> Reply:
        """One value. ENOENT."""
        return self._sysctl(messages.text(attrs, Attr.NAME, NAME_MAX))

    def get_sysctls(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """All of them."""
        for name in list(self.ipvs.sysctl.names()):
            yield self._sysctl(name)

    def set_sysctl(self, payload: bytes, attrs: Attrs) -> None:
        """ENOENT: no such name; EINVAL (for CPUs also ERANGE, EOVERFLOW): no such value."""
        name = messages.text(attrs, Attr.NAME, NAME_MAX)
        self.ipvs.sysctl.set(name, messages.text(attrs, Attr.VALUE, VALUE_MAX))

    # ---- the table

    def get_conns(self, payload: bytes, attrs: Attrs) -> Iterator[Reply | None]:
        """Every connection and template that FILTER means, many to a message. EINVAL, EAFNOSUPPORT."""
        return self._listed(_filter(attrs))

    def _listed(self, wanted: ConnFilter) -> Iterator[Reply | None]:
        now = self.ipvs.clock()
        rows: list[bytes] = []
        for conn in self._found(wanted):
            if conn is None:
                yield None
                now = self.ipvs.clock()
                continue
            rows.append(extension.conn(_conn(conn, now, self.ipvs.table.pe_data(conn))))
            if len(rows) == CONNS_PER_MESSAGE:
                yield Cmd.GET_CONNS, b"".join(rows)
                rows = []
                now = self.ipvs.clock()
        if rows:
            yield Cmd.GET_CONNS, b"".join(rows)

    def _found(self, wanted: ConnFilter) -> Iterator[Conn | None]:
        """The connections that are meant; None now and then, so that a long search holds nobody up."""
        everything = wanted == ConnFilter()
        for seen, conn in enumerate(self.ipvs.table.conns(), 1):
            if everything or self._meant(conn, wanted):
                yield conn
            if not seen % CONNS_PER_TURN:
                yield None

    def _meant(self, conn: Conn, wanted: ConnFilter) -> bool:
        if not wanted.matches(conn):
            return False
        key = wanted.service
        if key is None:
            return True
        if dest := self.ipvs.services.dest_of(conn.dest):
            return dest.svc.key.lookup == key.lookup
        return not key.fwmark and (conn.protocol, conn.vaddr, conn.vport) == key[1:4]

    def flush_conns(self, payload: bytes, attrs: Attrs) -> Iterator[Reply | None]:
        """Drop the connections and templates that FILTER means; COUNT of them. EINVAL, EAFNOSUPPORT.

        A template goes with the last of its connections; a controller of others that stay, stays.
        """
        return self._flushed(_filter(attrs))

    def _flushed(self, wanted: ConnFilter) -> Iterator[Reply | None]:
        table = self.ipvs.table
        count = 0
        for conn in self._found(wanted):
            if conn is None:
                yield None
                continue
            while conn is not None and not conn.n_control:
                control = conn.control
                count += table.conn_del(conn)  # its controller may be gone with it
                controller = table.conn_at(control) if control else None
                conn = controller if controller and self._meant(controller, wanted) else None
        yield Cmd.FLUSH_CONNS, extension.count(count)

    def get_counters(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """Verdicts by reason."""
        self.ipvs.settle()
        for why in Why:
            yield Cmd.GET_COUNTERS, extension.name(why.label) + extension.count(self.ipvs.why[why])

    def get_total(self, payload: bytes, attrs: Attrs) -> Reply:
        """Counters and rates of everything (ip_vs_stats), and the table's own figures; who tells it."""
        _, stats64 = messages.stats_nests(stats(self.ipvs.services.total))
        waiting, waited = self.ipvs.unresolved()
        table = self.ipvs.table.info() | {
            "waiting": waiting,
            "waited": waited,
            "walks": self.ipvs.recorder.number,
        }
        table |= self.ipvs.tracers.totals()
        who = extension.value(__version__) + extension.count(self.started)
        return Cmd.GET_TOTAL, attribute(Attr.STATS64, stats64) + extension.json_text(table) + who

    def get_queues(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """What each queue has counted, a message for each."""
        for row in self.ipvs.queues():
            yield Cmd.GET_QUEUES, extension.json_text(row)

    # ---- walks

    def record(self, payload: bytes, attrs: Attrs) -> None:
        """Record the walks of the next COUNT packets (0 stops). EINVAL beyond RECORD_MAX."""
        count = messages.number(attrs, Attr.COUNT, 8)
        if count > RECORD_MAX:
            raise messages.invalid(f"at most {RECORD_MAX} walks")
        self.ipvs.recorder.want = count

    def get_walks(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """Hand out, oldest first, and forget walks: those of the trace of who asks, else those recorded."""
        tracer = self._tracers.get(self._asking())
        return self._recorded() if tracer is None else self._traced(tracer)

    def _recorded(self) -> Iterator[Reply]:
        walks = self.ipvs.recorder.walks
        for _ in range(len(walks)):
            if not walks:
                return
            yield _told(walks.popleft())

    def _traced(self, tracer: Tracer) -> Iterator[Reply]:
        for _ in range(len(tracer.walks)):
            if not tracer.walks:
                return
            number, walk = tracer.walks.popleft()
            yield _told(replace(walk, number=number))

    def trace(self, payload: bytes, attrs: Attrs) -> Reply | None:
        """Trace what the filter TEXT takes, COUNT walks a second (0: no more), until the connection ends.

        EINVAL: no such filter or rate; EBUSY: no room for one more.
        """
        rate = messages.number(attrs, Attr.COUNT, 8)
        try:
            words = attrs.get(Attr.TEXT, b"").decode()
        except UnicodeDecodeError:
            raise messages.invalid("a filter is a text") from None
        self.gone(self._asking())
        if rate == 0:
            return None
        self._tracers[self._asking()] = tracer = self.ipvs.tracers.add(words, rate)
        return Cmd.TRACE, extension.text(tracer.filter)

    def get_trace(self, payload: bytes, attrs: Attrs) -> Reply:
        """What the trace of who asks has come to. ENOENT: it traces nothing."""
        tracer = self._tracers.get(self._asking())
        if tracer is None:
            raise IpvsError(errno.ENOENT, "no trace")
        matched, suppressed = self.ipvs.tracers.counts(tracer)
        told = {"filter": tracer.filter, "rate": tracer.rate, "matched": matched, "suppressed": suppressed}
        return Cmd.GET_TRACE, extension.json_text(told)

    def gone(self, who: object) -> None:
        """That one traces no more."""
        if (tracer := self._tracers.pop(who, None)) is not None:
            self.ipvs.tracers.remove(tracer)

    # ---- what unmodified programs use besides netlink

    def get_proc(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """The text of /proc/net/NAME in pieces. ENOENT."""
        lines = proctext.TEXTS.get(messages.text(attrs, Attr.NAME, NAME_MAX))
        if lines is None:
            raise IpvsError(errno.ENOENT, "no such text")
        pieces = proctext.chunks(lines(self.ipvs), DATA_PER_MESSAGE)
        return (
            (Cmd.GET_PROC, attribute(Attr.TEXT, piece.encode(errors="surrogateescape"))) for piece in pieces
        )

    def set_sockopt(self, payload: bytes, attrs: Attrs) -> Steps | None:
        """setsockopt(IPPROTO_IP, IP_VS_SO_SET_*)."""
        option, size, data = _sockopt(attrs)
        if size != len(data):
            raise messages.invalid("the option's value is not whole")
        return self.sockopt.set(option, data)

    def get_sockopt(self, payload: bytes, attrs: Attrs) -> Iterator[Reply]:
        """getsockopt(IPPROTO_IP, IP_VS_SO_GET_*): what the buffer begins with then, in pieces."""
        data = self.sockopt.get(*_sockopt(attrs))
        starts = range(0, len(data), DATA_PER_MESSAGE)
        return ((Cmd.GET_SOCKOPT, attribute(Attr.DATA, data[at : at + DATA_PER_MESSAGE])) for at in starts)


def _told(walk: Walk) -> Reply:
    return Cmd.GET_WALKS, extension.json_text(walk.to_json(WALK_SNAP, WALK_SENT))


def _sockopt(attrs: Attrs) -> tuple[int, int, bytes]:
    try:
        return extension.parse_sockopt(attrs.get(Attr.SOCKOPT, b""))
    except ValueError as e:
        raise messages.invalid(str(e)) from None


def _filter(attrs: Attrs) -> ConnFilter:
    return connfilter.decode(attrs.get(Attr.FILTER, b""))


def _conn(conn: Conn, now: int, pe: bytes) -> ConnEntry:
    return ConnEntry(
        conn.af,
        conn.daf,
        conn.protocol,
        conn.cport,
        conn.vport,
        conn.dport,
        conn.flags,
        conn.remaining(now),
        conn.fwmark,
        conn.state_name,
        conn.caddr,
        conn.vaddr,
        conn.daddr,
        pe,
    )
