"""What is traced: a filter means the same in C as in a few lines of Python, and on both paths; rates hold, nothing is lost."""

from __future__ import annotations

from ipaddress import ip_address, ip_network
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fastworld import FastWorld, everything, told
from support.lies import director, steps
from support.world import CIP, CIP6, DROUTE, RIP, RIP6, VIP, VIP6, World, icmp_error, packed, tcp, udp

from uvs.engine.core import AF_INET, AF_INET6, Hdr, Packet, Table, Trace, Why
from uvs.engine.trace import RATE_MAX, Cond, Op, Want
from uvs.ipvs import tracing
from uvs.ipvs.skb import Hook
from uvs.ipvs.tracefilter import (
    FAMILIES,
    HOOKS,
    PROTOCOLS,
    VERDICTS,
    WHYS,
    Condition,
    Expr,
    FilterError,
    Join,
    Not,
    parse,
    program,
)

# ---- filters

V4, V6 = (CIP, VIP, RIP[1], RIP[2], "10.9.0.255", "0.0.0.0"), (CIP6, VIP6, RIP6[1], "::", "2001:db8::ff")
PORTS = (80, 8080, 1024, 53, 65535)


def ends(op: Op) -> st.SearchStrategy[Cond]:
    def made(text: str, bits: float, port: int) -> Cond:
        size = 128 if ":" in text else 32
        if port and op != Op.HOST:
            return Cond(op, 0, packed(text), size, port)
        length = round(bits * size)
        return Cond(op, 0, ip_network(f"{text}/{length}", False).network_address.packed, length)

    lengths = st.sampled_from([1, 1, 1, 0, 0.5, 0.75, 1 / 32, 31 / 32])
    return st.builds(made, st.sampled_from(V4 + V6), lengths, st.sampled_from([0, 0, *PORTS]))


def numbers(op: Op, *among: int) -> st.SearchStrategy[Cond]:
    return st.sampled_from(among).map(lambda number: Cond(op, number))


conds = st.one_of(
    *map(ends, (Op.CLIENT, Op.SERVICE, Op.SERVER, Op.HOST)),
    numbers(Op.PORT, *PORTS),
    numbers(Op.PROTO, *PROTOCOLS.values(), 47, 0),
    numbers(Op.FAMILY, *FAMILIES.values()),
    numbers(Op.MARK, 0, 7, 0xFFFFFFFF),
    numbers(Op.HOOK, *HOOKS.values()),
    numbers(Op.VERDICT, *VERDICTS.values()),
    numbers(Op.WHY, *WHYS.values()),
)
filters: st.SearchStrategy[Expr] = st.recursive(
    conds.map(Condition),
    lambda inner: st.builds(Not, inner) | st.builds(Join, st.sampled_from(["and", "or"]), inner, inner),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(filters)
def test_a_filter_written_out_is_read_as_the_same(expr: Expr) -> None:
    assert parse(str(expr)) == expr
    assert parse(str(expr).upper().replace("AND", "&&")) == expr


@settings(max_examples=300, deadline=None)
@given(st.text() | st.lists(st.sampled_from([*"()!", "&&", "or", "not", "tcp", "port", "80", "client", "::1", "[", "why"])).map(" ".join))  # fmt: skip
def test_any_text_is_a_filter_or_one_line(text: str) -> None:
    try:
        parse(text)
    except FilterError as error:
        said = str(error)
    else:
        said = "a filter"
    assert said
    assert said.isprintable()


# ---- what they mean


class Facts(NamedTuple):
    """What is known of a packet in the end."""

    packet: Any
    hook: int
    mark: int
    conn: tuple[Any, ...] | None  # client, service, server: address and port each
    verdict: int
    why: int


def meant(expr: Expr, facts: Facts) -> bool:
    """Slowly, as docs/reference/trace.md says it."""
    if isinstance(expr, Not):
        return not meant(expr.of, facts)
    if isinstance(expr, Join):
        both = meant(expr.left, facts), meant(expr.right, facts)
        return all(both) if expr.word == "and" else any(both)
    op, number, addr, bits, port = expr.cond
    iph = facts.packet.iph
    ported = bool(iph.flags & Hdr.PORTS)
    source, destination = (
        (iph.saddr, iph.sport if ported else None),
        (iph.daddr, iph.dport if ported else None),
    )
    request = facts.hook != Hook.FORWARD
    client, service, server = facts.conn or ((source, destination, None) if request else (None, None, source))

    def within(end: Any) -> bool:
        if end is None or len(end[0]) != len(addr):
            return False
        inside = ip_address(end[0]) in ip_network((addr, bits), False)
        return inside and port in (0, end[1])

    match op:
        case Op.CLIENT | Op.SERVICE | Op.SERVER:
            return within({Op.CLIENT: client, Op.SERVICE: service, Op.SERVER: server}[op])
        case Op.HOST:
            return within(source) or within(destination)
        case Op.PORT:
            return ported and number in (iph.sport, iph.dport)
    of = {Op.PROTO: iph.protocol, Op.FAMILY: iph.af, Op.MARK: facts.mark, Op.HOOK: facts.hook,
          Op.VERDICT: facts.verdict, Op.WHY: facts.why}  # fmt: skip
    return of[op] == number


PACKETS = [
    bytes(each)
    for each in (
        tcp(CIP, 1024, VIP, 80), udp(CIP, 53, VIP, 53), tcp(RIP[1], 8080, CIP, 1024, "SA"), tcp(CIP6, 1024, VIP6, 80),
        udp(RIP6[1], 53, CIP6, 65535), icmp_error(RIP[2], VIP, 3, 4, tcp(VIP, 80, CIP, 1024)),
        bytes.fromhex("4500001c00072001402f0000") + packed(CIP) + packed(VIP) + bytes(8),
    )
]  # fmt: skip
CONNS = [None, (CIP, VIP, RIP[1]), (CIP, VIP, RIP6[1]), (CIP6, VIP6, RIP6[1]), (RIP[2], VIP, RIP[2])]


@settings(max_examples=400, deadline=None)
@given(
    filters,
    st.sampled_from(PACKETS),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 7, 8]),
    st.sampled_from(CONNS),
    st.sampled_from(PORTS),
    st.sampled_from([0, 1, 2]),
    st.sampled_from(sorted(WHYS.values())),
)
def test_in_c_it_means_what_it_says(expr, data, hook, mark, conn, port, verdict, why):  # type: ignore[no-untyped-def]
    packet = Packet.of(data)
    with Table(None, 10) as table:
        trace = Trace(table)
        trace.begin(packet, hook, mark, 0, 0)
        facts = None
        if conn is not None:
            client, service, server = map(packed, conn)
            af, daf = (AF_INET if len(a) == 4 else AF_INET6 for a in (client, server))
            made = table.conn_new(af, 6, client, port, service, 80, daf, server, 8080, 0, 0, 0, 0)
            assert made
            trace.found(made)
            facts = (client, port), (service, 80), (server, 8080)
        trace.end(verdict, why, False, 0)  # from here on nothing is open any more
        so = trace.judge(program(expr), verdict, why)
    assert so == meant(expr, Facts(packet, hook, mark, facts, verdict, why))


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.builds(
            Cond, st.sampled_from(Op), st.just(0), st.just(b"\1\2\3\4"), st.integers(0, 255), st.just(0)
        )
    )
)
def test_what_is_no_program_is_refused(conds: list[Cond]) -> None:
    depth, right = 0, len(conds) <= 64
    for cond in conds:
        needs = 1 if cond.op == Op.NOT else 2 if cond.op in (Op.AND, Op.OR) else 0
        addressed = cond.op in (Op.CLIENT, Op.SERVICE, Op.SERVER, Op.HOST)
        right = right and depth >= needs and not (addressed and cond.bits > 32)
        depth += 1 - needs
        right = right and depth <= 16
    right = right and (depth == 1 or not conds)
    with Table(None, 10) as table:
        trace = Trace(table)
        if right:
            assert trace.add(conds, 1) == 0
        else:
            with pytest.raises(OSError, match="no program"):
                trace.add(conds, 1)


# ---- on both paths


def walks(tracer: tracing.Tracer) -> list[dict[str, Any]]:
    return [dict(walk.to_json(), number=number) for number, walk in tracer.walks]


def judged(world: World) -> None:
    """From now on what is known of a packet at first must still be so in the end."""
    tracers = world.ipvs.tracers
    programs = {which: program(parse(each.filter)) for which, each in tracers._all.items()}
    early: dict[int, bool | None] = {}
    begin, end = tracers.begin, tracers.end

    def first(*what: Any) -> Want:
        wanted = begin(*what)
        early.update({which: tracers.trace.judge(each) for which, each in programs.items()})
        return Want(max(wanted, Want.JUDGE))  # what nobody wants is judged too

    def last(verdict: int, why: int, *more: Any) -> None:
        end(verdict, why, *more)
        late = {which: tracers.trace.judge(each, verdict, why) for which, each in programs.items()}
        assert all(so in (None, late[which]) for which, so in early.items())

    tracers.begin, tracers.end = first, last  # type: ignore[method-assign]


some = st.lists(filters, min_size=1, max_size=4)
SAID = [
    (Hook.LOCAL_IN, bytes(each))
    for each in (
        *(tcp(CIP, port, VIP, 80, flags) for port in (1024, 8080) for flags in ("S", "A", "FA", "R")),
        tcp(CIP, 1024, VIP, 81), tcp(CIP6, 1024, VIP6, 80), tcp(CIP6, 1024, VIP6, 80, "A"), udp(CIP, 1024, VIP, 53),
        tcp(CIP, 1024, VIP, 9), tcp(CIP, 1024, VIP, 9, "A"), icmp_error(CIP, VIP, 3, 4, tcp(VIP, 80, CIP, 1024)),
    )
] + [
    (Hook.FORWARD, bytes(each))
    for each in (tcp(RIP[1], 8080, CIP, 1024, "SA"), tcp(RIP[2], 8080, CIP, 1024, "SA"), udp(RIP[1], 53, CIP, 1024),
                 icmp_error(RIP[1], CIP, 3, 3, tcp(CIP, 1024, RIP[1], 8080)))
]  # fmt: skip
flows = st.lists(
    st.tuples(st.sampled_from(SAID), st.sampled_from([0, 0, 7]), st.sampled_from([0, 0, 1, 130])).map(
        lambda t: (*t[0], *t[1:])
    ),
    min_size=1,
    max_size=40,
)


@settings(max_examples=120, deadline=None)
@given(flows | steps, some, st.sampled_from([(), ("conn_reuse_mode",), ("expire_nodest_conn",)]))
def test_both_paths_trace_the_same(packets, filters, knobs):  # type: ignore[no-untyped-def]
    """And what is traced is treated as if it were not."""
    slow, fast, plain = director(), FastWorld(director()), director()
    try:
        traced = [[world.ipvs.tracers.add(str(each), RATE_MAX) for each in filters] for world in (slow, fast)]
        for world in (slow, fast, plain):
            for name in knobs:
                world.ipvs.sysctl.set(name, 1)
        judged(slow)
        for hook, data, mark, seconds in packets:
            outcomes = [told(world.at(hook, data, mark=mark)) for world in (slow, fast, plain)]
            assert outcomes[0] == outcomes[1] == outcomes[2]
            assert everything(slow) == everything(fast) == everything(plain)
            for world in (slow, fast, plain):
                world.pass_time(seconds)
        for by_hook_path, by_fast_path in zip(*traced, strict=True):
            counts = slow.ipvs.tracers.counts(by_hook_path)
            assert counts == fast.ipvs.tracers.counts(by_fast_path)
            assert counts == (len(by_hook_path.walks), 0)
            assert walks(by_hook_path) == walks(by_fast_path)
    finally:
        for world in (slow, fast, plain):
            world.close()


@pytest.mark.parametrize("kind", [World, lambda: FastWorld(World())], ids=["hook path", "fast path"])
@pytest.mark.parametrize(
    "words", ["", "service 198.18.0.100:80", "verdict stolen", "why no_service", "not why forwarded"]
)
def test_a_rate_holds_and_what_it_keeps_back_is_counted(kind: Any, words: str) -> None:
    rate, seconds, at_once = 5, 4, 40
    world = kind()
    try:
        world.server(world.service(), RIP[1], 80, DROUTE)
        world.local_in(tcp(CIP, 1024, VIP, 80))
        tracer = world.ipvs.tracers.add(words, rate)
        other = world.ipvs.tracers.add("server 198.19.0.11", 1)
        for _ in range(seconds):
            for n in range(at_once):
                world.local_in(tcp(CIP, 1024, VIP, 80 if n % 2 else 81, "A" if n % 2 else "S"))
                world.pass_time(1 / at_once)
        packets = seconds * at_once
        matched, suppressed = world.ipvs.tracers.counts(tracer)
        assert matched == (packets if not words else packets // 2)
        assert rate * seconds <= tracer.number <= rate * (seconds + 1)
        assert matched == tracer.number + suppressed
        assert world.ipvs.tracers.counts(other)[0] == packets // 2
        assert seconds <= other.number <= seconds + 1
        if isinstance(world, FastWorld) and "no_service" not in words and "not" not in words:
            assert world.fast >= packets // 2 - rate * (seconds + 1), "the rest was left to the fast path"
    finally:
        world.close()


def test_what_is_not_fetched_in_time_is_counted() -> None:
    world = World()
    tracer = world.ipvs.tracers.add("tcp", RATE_MAX)
    for _ in range(tracing.KEPT + 7):
        world.local_in(tcp(CIP, 1024, VIP, 80))
    assert [number for number, _ in tracer.walks] == list(range(8, tracing.KEPT + 8))
    assert world.ipvs.tracers.counts(tracer) == (tracing.KEPT + 7, 7)
    world.close()


def test_walks_in_vain_are_bounded() -> None:
    """Of packets whose verdict is to be waited for, so many are recorded a second, and the others judged without."""
    world = World()
    tracer = world.ipvs.tracers.add("why weight_0", RATE_MAX)
    recorded = []
    seen = world.ipvs.tracers.end

    def end(verdict: int, why: int, walk: Any, now: int) -> None:
        recorded.append(walk is not None)
        seen(verdict, why, walk, now)

    world.ipvs.tracers.end = end  # type: ignore[method-assign]
    for _ in range(600):
        world.local_in(tcp(CIP, 1024, VIP, 81))
    assert sum(recorded) == 500
    world.server(world.service(), RIP[1], weight=0)
    assert world.local_in(tcp(CIP, 1024, VIP, 80)).why == Why.WEIGHT_0
    assert world.ipvs.tracers.counts(tracer) == (1, 1), "seen, and not shown"
    world.pass_time(1)
    world.local_in(tcp(CIP, 1024, VIP, 80))
    assert [walk.why for _, walk in tracer.walks] == ["weight_0"]
    world.close()


def test_a_connection_that_leaves_its_server() -> None:
    """Whose the packet is shows in the end: the client uses its port again."""
    slow, fast = World(), FastWorld(World())
    for world in (slow, fast):
        svc = world.service()
        world.server(svc, RIP[1])
        world.server(svc, RIP[2])
        for flags in ("S", "A", "R"):
            world.local_in(tcp(CIP, 1024, VIP, 80, flags))
        (first,) = (str(ip_address(conn.daddr)) for conn in world.table.conns())
        (other,) = {RIP[1], RIP[2]} - {first}
        tracer = world.ipvs.tracers.add(f"server {other}", 10)
        world.local_in(tcp(CIP, 1024, VIP, 80))
        assert world.ipvs.tracers.counts(tracer) == (1, 0)
        assert len(tracer.walks) == 1
        world.close()


@pytest.mark.parametrize("kind", [World, FastWorld], ids=["hook path", "fast path"])
def test_a_full_table(kind: Any) -> None:
    """The fast path finds that out when it has been told who traces already: the hook path counts it, once."""
    world = World(conn_max=1)
    world = world if kind is World else kind(world)
    world.server(world.service(), RIP[1])
    for _ in range(2):
        world.local_in(tcp(CIP, 8, VIP, 80))  # the way is known now
    count = 0
    while world.table.conn_new(
        2, 6, count.to_bytes(4), 1, packed(VIP), 80, 2, packed(RIP[1]), 80, 0, 0, 0, world.now
    ):
        count += 1
    forwarded, refused = (world.ipvs.tracers.add(words, 1) for words in ("why forwarded", "why table_full"))
    assert world.local_in(tcp(CIP, 9, VIP, 80)).why == Why.TABLE_FULL
    assert world.ipvs.tracers.counts(forwarded) == (0, 0)
    assert world.ipvs.tracers.counts(refused) == (1, 0)
    assert world.local_in(tcp(CIP, 9, VIP, 80)).why == Why.TABLE_FULL
    assert world.ipvs.tracers.counts(forwarded) == (0, 0)
    assert world.ipvs.tracers.counts(refused) == (2, 1), "its one of this second it has had"
    for tracer in (forwarded, refused):
        world.ipvs.tracers.remove(tracer)
    all_of_it = world.ipvs.tracers.add("", 1)
    for port in (1, 2, 3):
        world.local_in(tcp(CIP, port, VIP, 80))
    assert world.ipvs.tracers.counts(all_of_it) == (3, 2)
    world.close()


@pytest.mark.parametrize("kind", [World, lambda: FastWorld(World())], ids=["hook path", "fast path"])
def test_an_unreadable_packet(kind: Any) -> None:
    world = kind()
    told = [
        world.ipvs.tracers.add(words, 10) for words in ("why short", "why malformed", "host 0.0.0.0/0", "")
    ]
    world.local_in(b"\x45\0\0\x14")
    assert [tracer.number for tracer in told] == [1, 0, 0, 1]
    assert told[0].walks[0][1].steps[0].function == "ip_rcv"
    world.close()
