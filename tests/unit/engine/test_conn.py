"""Connections: lookups, life cycle, controllers, destinations' counters and thresholds (ip_vs_conn.c)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from support.packets import packed
from support.table import MASQ, ROUTE, SECOND, TUNNEL, World, header

from uvs.engine.core import AF_INET, AF_INET6, Conn, ConnFlag, DestFlag, Dir, Hdr, Header

TCP, UDP = 6, 17
MINUTE = 60 * SECOND

# what it shows, what is changed in the header of a packet that is found
MISSES: list[tuple[str, Callable[[Header], None]]] = [
    ("another client port", lambda h: setattr(h, "sport", h.sport + 1)),
    ("another virtual port", lambda h: setattr(h, "dport", h.dport + 1)),
    ("another protocol", lambda h: setattr(h, "protocol", UDP)),
    ("another family", lambda h: setattr(h, "af", AF_INET if h.af == AF_INET6 else AF_INET6)),
    ("read the wrong way round", lambda h: setattr(h, "inverse", True)),
    ("no ports", lambda h: setattr(h, "flags", 0)),
    ("a later fragment", lambda h: setattr(h, "flags", Hdr.LATER | Hdr.FRAGMENT)),
    ("client port 0", lambda h: setattr(h, "sport", 0)),
]


@pytest.fixture(params=[False, True], ids=["v4", "v6"])
def w(request: pytest.FixtureRequest) -> World:
    return World(v6=request.param)


def found(conn: Conn | None) -> int:
    """Its client port, 0 if there is none."""
    return conn.cport if conn else 0


class TestLookup:
    """ip_vs_conn_in_get, ip_vs_conn_out_get, ip_vs_ct_in_get."""

    @pytest.mark.parametrize(("what", "change"), MISSES, ids=[m[0] for m in MISSES])
    def test_in(self, w: World, what: str, change: Callable[[Header], None]) -> None:
        conn = w.new()
        iph = w.header(conn, Dir.INPUT)
        assert found(w.table.conn_in_get(iph)) == conn.cport
        assert w.table.conn_in_get_batch([iph])[0] is not None
        change(iph)
        assert w.table.conn_in_get(iph) is None, what
        assert w.table.conn_in_get_batch([iph]) == [None]

    @pytest.mark.parametrize("bit", [0, 7, 31, 64, 127])
    def test_every_bit_of_an_address_counts(self, w: World, bit: int) -> None:
        conn = w.new()
        if bit >= 8 * len(w.client):
            bit = 31
        for side in ("client", "vip"):
            addrs = {"client": w.client, "vip": w.vip}
            addrs[side] = (int.from_bytes(addrs[side]) ^ 1 << bit).to_bytes(len(w.client))
            iph = header(TCP, addrs["client"], conn.cport, addrs["vip"], conn.vport)
            assert w.table.conn_in_get(iph) is None

    @pytest.mark.parametrize("method", [MASQ, ROUTE, TUNNEL])
    def test_out(self, w: World, method: int) -> None:
        """From the real server's address and port under MASQ, from the virtual ones else."""
        conn = w.new(method=method)
        server = header(TCP, conn.daddr, conn.dport, conn.caddr, conn.cport)
        virtual = header(TCP, conn.vaddr, conn.vport, conn.caddr, conn.cport)
        want = (conn.cport, 0) if method == MASQ else (0, conn.cport)
        assert (found(w.table.conn_out_get(server)), found(w.table.conn_out_get(virtual))) == want
        for name in "sport", "dport":
            iph = w.header(conn, Dir.OUTPUT)
            setattr(iph, name, getattr(iph, name) + 1)
            assert w.table.conn_out_get(iph) is None
        assert w.table.conn_out_get(w.header(conn, Dir.INPUT)) is None

    def test_inverse(self, w: World) -> None:
        """A packet quoted in an ICMP error goes the other way."""
        conn = w.new()
        request = w.header(conn, Dir.INPUT)
        reply = header(TCP, conn.vaddr, conn.vport, conn.caddr, conn.cport)
        reply.inverse = True
        assert found(w.table.conn_in_get(reply)) == found(w.table.conn_in_get(request)) == conn.cport
        sent = header(TCP, conn.caddr, conn.cport, conn.daddr, conn.dport)
        sent.inverse = True
        assert found(w.table.conn_out_get(sent)) == conn.cport

    def test_the_newest_of_equals_wins(self, w: World) -> None:
        old = w.new(vport=80)
        new = w.new(vport=80, dport=81)
        iph = w.header(old, Dir.INPUT)
        got = w.table.conn_in_get(iph)
        assert got is not None
        assert got.dport == 81
        w.table.conn_del(new)
        got = w.table.conn_in_get(iph)
        assert got is not None
        assert got.dport == old.dport

    def test_no_cport(self, w: World) -> None:
        """Found by any client port until its own is known, but by none before a full match."""
        conn = w.new(cport=0, flags=ConnFlag.NO_CPORT)
        iph = header(TCP, w.client, 4000, w.vip, conn.vport)
        assert w.table.info()["no_cport"] == 1
        got = w.table.conn_in_get(iph)
        assert got is not None
        assert got.flags & ConnFlag.NO_CPORT
        assert w.table.conn_in_get_batch([iph])[0] is not None
        exact = w.new(cport=4000)
        assert found(w.table.conn_in_get(iph)) == 4000
        w.table.conn_del(exact)
        w.table.conn_fill_cport(conn, 4001)
        assert w.table.info()["no_cport"] == 0
        assert w.table.conn_in_get(iph) is None
        assert found(w.table.conn_in_get(w.header(conn, Dir.INPUT))) == 4001
        w.table.conn_fill_cport(conn, 4002)
        assert conn.cport == 4001

    def test_template(self, w: World) -> None:
        """Only as a template, by its whole key; never as a connection."""
        template = w.template()
        assert w.table.conn_in_get(header(TCP, w.client, 0, w.vip, template.vport)) is None
        assert w.table.conn_out_get(header(TCP, template.daddr, template.dport, w.client, 4000)) is None
        w.new()
        key = (w.af, TCP, w.client, w.vip, template.vport)
        got = w.table.ct_in_get(*key)
        assert got is not None
        assert got.flags & ConnFlag.TEMPLATE
        for i, other in (1, UDP), (2, w.vip), (3, w.client), (4, 81):
            assert w.table.ct_in_get(*key[:i], other, *key[i + 1 :]) is None  # type: ignore[arg-type]

    def test_template_of_a_mark(self, w: World) -> None:
        """Protocol 0, the mark as the first 32 bits of the virtual address; the rest is not compared."""
        mark = (7).to_bytes(4) + bytes(len(w.vip) - 4)
        conn = w.table.conn_new(
            w.af, 0, w.client, 0, mark, 0, w.af, w.rip, 0, 7, ConnFlag.TEMPLATE, w.dest.index, w.now
        )
        assert conn is not None
        assert conn.state_name == "NONE"
        assert w.table.ct_in_get(w.af, 0, w.client, mark, 0) is not None
        assert w.table.ct_in_get(w.af, 0, w.client, mark[:4] + b"\1" * (len(mark) - 4), 0) is not None
        assert w.table.ct_in_get(w.af, 0, w.client, b"\1" + mark[1:], 0) is None

    def test_rekey(self, w: World) -> None:
        """An invalid template is never found again."""
        template = w.template()
        w.table.conn_rekey(template, 0, 0xFFFF, 0xFFFF)
        assert w.table.ct_in_get(w.af, TCP, w.client, w.vip, 80) is None
        assert w.table.ct_in_get(w.af, TCP, w.client, w.vip, 0xFFFF) is not None

    def test_batch_of_many(self, w: World) -> None:
        """More than the engine takes at once, known and unknown mixed."""
        conns = [w.new(cport=1000 + i) for i in range(0, 200, 2)]
        headers = [header(TCP, w.client, 1000 + i, w.vip, 80) for i in range(200)]
        got = [found(c) for c in w.table.conn_in_get_batch(headers)]
        assert got == [1000 + i if i % 2 == 0 else 0 for i in range(200)]
        assert len(conns) == 100


class TestLife:
    """ip_vs_conn_expire, ip_vs_control_del."""

    def test_new(self, w: World) -> None:
        conn = w.new()
        assert (conn.state, conn.timeout, conn.in_pkts, conn.n_control, conn.control) == (0, 3000, 0, 0, 0)
        assert (conn.caddr, conn.vaddr, conn.daddr) == (w.client, w.vip, w.rip)
        assert conn.flags == ConnFlag.HASHED | ConnFlag.INACTIVE
        assert w.dest.refcnt == 1

    def test_tunnel_to_another_family(self) -> None:
        """The real server's address has its own family."""
        with World() as w:
            w.dest.af, w.dest.addr = AF_INET6, packed("fd00::2")
            conn = w.new(method=TUNNEL)
            assert (conn.af, conn.daf, conn.daddr) == (AF_INET, AF_INET6, packed("fd00::2"))

    def test_put_restarts_the_timer(self, w: World) -> None:
        conn = w.new()
        w.now += 2 * SECOND
        w.table.conn_put(conn, w.now)
        assert conn.remaining(w.now) == 3000
        assert conn.remaining(w.now + 1_500_000) == 2998
        assert conn.remaining(w.now + MINUTE) == 0

    def test_one_packet(self, w: World) -> None:
        """Not in the hash, gone after its packet, whatever its template; counted meanwhile."""
        template = w.template(protocol=UDP)
        conn = w.new(protocol=UDP, flags=ConnFlag.ONE_PACKET)
        assert not conn.flags & ConnFlag.HASHED
        assert w.table.conn_in_get(w.header(conn, Dir.INPUT)) is None
        w.table.control_add(conn, template)
        assert (w.counters, template.n_control) == ((0, 1, 1), 1)
        w.table.conn_put(conn, w.now)
        assert (w.counters, template.n_control) == ((0, 0, 1), 0)
        assert w.table.info()["conns"] == 0

    @pytest.mark.parametrize(
        ("protocol", "flags", "inherits"), [(UDP, 0, True), (TCP, 0, False), (UDP, ConnFlag.TEMPLATE, False)]
    )
    def test_one_packet_from_the_destination(self, protocol: int, flags: int, inherits: bool) -> None:
        """Only UDP takes it, and no template, which has to be found again."""
        with World() as w:
            w.dest.conn_flags = ConnFlag.INACTIVE | ConnFlag.ONE_PACKET
            args = (w.af, protocol, w.client, 0, w.vip, 80, w.af, w.rip, 80, 0, flags, w.dest.index, w.now)
            conn = w.table.conn_new(*args)
            assert conn is not None
            assert bool(conn.flags & ConnFlag.ONE_PACKET) is inherits

    def test_synced(self, w: World) -> None:
        """A connection of a sync message keeps its activity and takes method and NOOUTPUT from here."""
        conn = w.new(method=MASQ, flags=ConnFlag.SYNC | ConnFlag.DROUTE | ConnFlag.NOOUTPUT)
        assert conn.flags == ConnFlag.SYNC | ConnFlag.HASHED
        assert w.counters == (1, 0, 0)

    def test_expire_now(self, w: World) -> None:
        """Due at once, but the wheel takes it: lookups find it until then."""
        conn = w.new()
        w.play(conn, "in syn SYN_RECV")
        w.table.conn_expire_now(conn, w.now)
        assert w.table.conn_in_get(w.header(conn, Dir.INPUT)) is not None
        w.now += SECOND // 8
        w.table.expire(w.now)
        assert w.table.info()["conns"] == 0

    def test_template_that_controls_lives_on_by_the_minute(self, w: World) -> None:
        """Worked example 8: re-armed by 60 s, which is its time-out from then on."""
        template = w.template(timeout=360_000)
        conn = w.new()
        w.table.control_add(conn, template)
        w.play(conn, "in syn SYN_RECV, in ack ESTABLISHED")
        w.now += 361 * SECOND
        w.table.expire(w.now)
        assert (template.timeout, template.remaining(w.now)) == (60_000, 60_000)
        later = w.new(cport=4001)
        w.table.control_add(later, template)
        w.table.conn_put(template, w.now)
        assert template.remaining(w.now) == 60_000
        assert template.n_control == 2
        for entry in conn, later:
            w.table.conn_del(entry)
        w.now += 61 * SECOND
        w.table.expire(w.now)
        assert w.table.info()["templates"] == 0

    def test_expiry_leaves_the_controller_to_its_own_timer(self, w: World) -> None:
        template, conn = w.template(), w.new()
        w.table.control_add(conn, template)
        w.now += 4 * SECOND
        w.table.expire(w.now)
        assert (w.counters, template.n_control) == ((0, 0, 1), 0)

    @pytest.mark.parametrize("assured", [False, True])
    def test_deletion_takes_controllers_along(self, w: World, assured: bool) -> None:
        """FTP data, its control connection, their template: up to an assured template."""
        template, control, data = w.template(), w.new(), w.new(cport=2000)
        w.table.control_add(control, template)
        w.table.control_add(data, control)
        template.state = int(assured)
        w.table.conn_del(data)
        assert w.counters == (0, 0, int(assured))

    def test_deletion_stops_at_a_controller_in_use(self, w: World) -> None:
        template, a, b = w.template(), w.new(), w.new(cport=2000)
        for conn in a, b:
            w.table.control_add(conn, template)
        w.table.conn_del(a)
        assert (template.n_control, w.counters) == (1, (0, 1, 1))

    def test_deletion_of_a_controller_waits(self, w: World) -> None:
        template, conn = w.template(), w.new()
        w.table.control_add(conn, template)
        w.table.conn_del(template)
        assert (template.timeout, template.remaining(w.now), w.counters) == (60_000, 60_000, (0, 1, 1))

    def test_a_new_controller_replaces_the_old_one(self, w: World) -> None:
        one, two, conn = w.template(vport=1), w.template(vport=2), w.new()
        w.table.control_add(conn, one)
        w.table.control_add(conn, two)
        assert (one.n_control, two.n_control, conn.control) == (0, 1, w.table.index_of(two))

    def test_no_ring_of_controllers(self, w: World) -> None:
        a, b = w.new(cport=1), w.new(cport=2)
        w.table.control_add(a, b)
        w.table.control_add(b, a)
        w.table.control_add(a, a)
        assert (a.n_control, b.n_control, b.control) == (0, 1, 0)

    def test_full(self) -> None:
        """A table of one segment: refused and counted, and room again after an expiry."""
        with World(conn_max=1) as w:
            room = w.table.info()["conn_max"] - 2
            for i in range(room):
                w.new(cport=i % 60_000, client=bytes([10, 1, i // 60_000, 1]))
            args = (w.af, TCP, w.client, 9, w.vip, 80, w.af, w.rip, 80, 0, 0, w.dest.index, w.now)
            assert w.table.conn_new(*args) is None
            assert w.table.dest_new() is None
            assert w.table.info()["full"] == 2
            assert w.counters == (0, room, 0)
            w.now += 4 * SECOND
            while w.table.expire(w.now, 100) == 100:
                pass
            assert w.counters == (0, 0, 0)
            assert w.table.conn_new(*args) is not None


class TestDestination:
    """ip_vs_bind_dest, ip_vs_unbind_dest."""

    def test_what_counts_where(self, w: World) -> None:
        w.template()
        conn = w.new(protocol=UDP)
        assert w.counters == (0, 1, 1)
        w.new(bound=False, flags=ConnFlag.BYPASS, cport=2000)
        assert (w.counters, w.dest.refcnt, w.table.info()["conns"]) == ((0, 1, 1), 2, 2)
        w.table.conn_del(conn)
        assert w.counters == (0, 0, 1)

    @pytest.mark.parametrize(
        ("u", "l", "set_at", "cleared_at"),
        [(4, 0, 4, 2), (4, 3, 4, 2), (4, 1, 4, 0), (1, 0, 1, 0), (8, 0, 8, 5)],
    )
    def test_thresholds(self, w: World, u: int, l: int, set_at: int, cleared_at: int) -> None:  # noqa: E741
        """Worked example 6 and its neighbours: at how many connections OVERLOAD comes and goes."""
        w.dest.u_threshold, w.dest.l_threshold = u, l
        conns: list[Conn] = []
        while not w.dest.flags & DestFlag.OVERLOAD:
            conns.append(w.new(cport=1000 + len(conns)))
        assert len(conns) == set_at
        while w.dest.flags & DestFlag.OVERLOAD:
            w.table.conn_del(conns.pop())
        assert len(conns) == cleared_at

    def test_templates_test_but_do_not_count(self, w: World) -> None:
        w.dest.u_threshold = 1
        w.template()
        assert not w.dest.flags & DestFlag.OVERLOAD
        w.dest.u_threshold = 0
        w.new()
        assert not w.dest.flags & DestFlag.OVERLOAD
        w.dest.u_threshold = 1
        w.template(vport=81)
        assert w.dest.flags & DestFlag.OVERLOAD

    def test_without_thresholds_any_unbind_clears(self, w: World) -> None:
        conn = w.new()
        w.dest.flags |= DestFlag.OVERLOAD
        w.table.conn_del(conn)
        assert not w.dest.flags & DestFlag.OVERLOAD

    def test_statistics(self, w: World) -> None:
        """Destination, service and total; packets only while the destination is there."""
        conn = w.new()
        w.table.conn_stats(conn)
        w.table.in_stats(conn, 100)
        w.table.in_stats(conn, 50)
        w.table.out_stats(conn, 1500)
        w.dest.flags &= ~DestFlag.AVAILABLE
        w.table.in_stats(conn, 7)
        w.table.out_stats(conn, 7)
        want = (1, 2, 1, 150, 1500)
        assert (w.dest.stats, w.service.stats, w.table.total.raw) == (want, want, want)
        w.table.in_stats(w.new(bound=False), 7)
        assert w.table.total.raw == want

    def test_worked_example_13(self, w: World) -> None:
        """A deleted server keeps its connections, and cannot be freed until the last has expired."""
        w.new()
        w.dest.flags &= ~DestFlag.AVAILABLE
        with pytest.raises(ValueError, match="still has connections"):
            w.dest.free()
        w.now += 4 * SECOND
        w.table.expire(w.now)
        w.dest.free()
        assert w.table.info()["dests"] == 0


def test_records() -> None:
    """Iteration sees each kind; a record that came back is used again."""
    with World() as w:
        conns = [w.new(cport=i) for i in range(1, 5)]
        index = w.table.index_of(conns[2])
        w.table.conn_del(conns[2])
        assert sorted(c.cport for c in w.table.conns()) == [1, 2, 4]
        assert [d.index for d in w.table.dests()] == [w.dest.index]
        assert [s.port for s in w.table.services()] == [80]
        assert w.table.conn_at(index) is None
        assert w.table.conn_at(w.dest.index) is None
        assert w.table.conn_at(0) is w.table.conn_at(1 << 31) is None
        assert w.table.index_of(w.new(cport=9)) == index
        w.service.free()
        assert w.table.info()["services"] == 0
