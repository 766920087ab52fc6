"""Control messages, command lines and the state on disk, whatever comes."""

import struct
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.world import World

from uvs.adm.errors import Fail
from uvs.adm.grammar import parse
from uvs.adm.popt import BadOption, Known, Popt
from uvs.control import netlink, state, stateformat
from uvs.control.genetlink import IPVS_ID, UVS_ID, Dispatcher
from uvs.control.ipvs_family import IpvsFamily
from uvs.control.uvs_family import UvsFamily
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.ipvs.trash import Trash

# ------------------------------------------------------------ hostile messages


def nla(kind, payload, length=None):
    size = len(payload) + 4 if length is None else length
    return struct.pack("=HH", size & 0xFFFF, kind) + payload + b"\0" * (-len(payload) & 3)


payloads = st.one_of(
    st.binary(max_size=24),
    st.sampled_from(
        [b"\2\0", b"\x0a\0", b"rr\0", b"wlc\0", b"\0", b"\0P", b"\x0a\0\0\1", b"\xff" * 8, bytes(16)]
    ),
    st.integers(0, 2**32 - 1).map(lambda n: struct.pack("=I", n)),
)
leaves = st.builds(nla, st.integers(0, 16) | st.integers(0, 0xFFFF), payloads, st.none() | st.integers(0, 60))
nests = st.builds(
    nla,
    st.sampled_from([1, 2, 3, 0x8001, 0x8002]),
    st.lists(leaves, max_size=12).map(b"".join),
    st.none() | st.none() | st.integers(0, 200),
)
requests = st.builds(
    lambda kind, flags, command, body, size: (
        struct.pack("=IHHII", 20 + len(body) if size is None else size, kind, flags, 1, 0)
        + bytes([command, 1, 0, 0])
        + body
    ),
    st.sampled_from([IPVS_ID, IPVS_ID, UVS_ID, 0x10, 2, 3]) | st.integers(0, 0xFFFF),
    st.sampled_from([5, 1, 0x305, 0x301]) | st.integers(0, 0xFFFF),
    st.integers(0, 20) | st.integers(0, 255),
    st.lists(nests | leaves, max_size=4).map(b"".join),
    st.none() | st.none() | st.integers(0, 300),
)
datagrams = st.lists(requests | st.binary(max_size=80), max_size=4).map(b"".join)


@pytest.fixture(scope="module")
def dispatcher():
    world = World()
    yield Dispatcher([IpvsFamily(world.ipvs.services, world.table).family(), UvsFamily(world.ipvs).family()])
    world.close()


@given(st.lists(datagrams, max_size=6), st.booleans())
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
def test_hostile_messages_are_answered_or_passed_over(dispatcher, caplog, sent, admin):
    """Never an exception, never a fault of ours behind an errno, every answer well-formed."""
    for datagram in sent:
        for answer in dispatcher.handle(datagram, admin).answers:
            for part in [answer] if isinstance(answer, bytes) else answer:
                parsed = list(netlink.messages(part))
                assert parsed
                assert sum((len(m.raw) + 3) & ~3 for m in parsed) in (len(part), (len(part) + 3) & ~3)
    assert not [r for r in caplog.records if r.exc_info]


# ----------------------------------------------------------------- the grammar


@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from(["-A", "-a", "-L", "-t", "1.2.3.4:5", "-p", "-r"]), max_size=8
    )
)
@settings(max_examples=300, deadline=None)
def test_any_command_line_is_understood_or_refused(words):
    with mock.patch("socket.gethostbyname", side_effect=OSError):  # no name server is asked
        try:
            parse(words)
        except Fail as e:
            status = e.status
        else:
            status = 2
    assert status in (2, 255)


@given(st.lists(st.text(alphabet="-=abc ", max_size=6)))
def test_no_word_is_lost(words):
    """Without options every word is either refused or waits in `rest`."""
    popt = Popt(Known([]), words)
    try:
        assert popt.next() is None
    except BadOption:
        return
    assert popt.rest == [w for i, w in enumerate(words) if w != "--" or "--" in words[:i]]


# ----------------------------------------------------------------------- state


def specs(family, addr):
    full = 0xFFFFFFFF if family == 2 else 128
    netmask = st.just(full) | (
        st.integers(1, 127) if family == 10 else st.integers(1, 32).map(lambda n: -(1 << 32 - n) & full)
    )
    persistent = st.tuples(st.just(1), st.integers(1, 2678400), netmask)
    plain = st.just((0, 0, full))
    key = st.builds(
        lambda by_mark, protocol, addr, port: (
            ServiceKey(family, 6, bytes(len(addr)), 0, port)
            if by_mark
            else ServiceKey(family, protocol, addr, port)
        ),
        st.booleans(),
        st.sampled_from([6, 17, 132]),
        addr,
        st.integers(1, 65535),
    )
    return st.builds(
        lambda key, name, flags, sched, ops: ServiceSpec(
            key, name, flags[0] | sched | (4 if ops and (key.fwmark or key.protocol == 17) else 0), *flags[1:]
        ),
        key,
        st.sampled_from(["rr", "wrr", "lc", "wlc"]),
        persistent | plain,
        st.sampled_from([0, 8, 0x10, 0x38]),
        st.booleans(),
    )


v4 = st.tuples(st.integers(1, 223), *[st.integers(0, 255)] * 3).map(bytes)
v6 = st.binary(min_size=14, max_size=14).map(lambda b: b"\x20\x01" + b)
families = {2: v4, 10: v6}


def servers(af):
    def dest(daf):
        methods = st.sampled_from([0, 2, 3]) if daf == af else st.just(2)
        bounds = st.tuples(st.integers(5, 99), st.integers(0, 5))
        return st.builds(
            lambda addr, port, fwd, weight, ul: DestSpec(daf, addr, port, fwd, weight, *ul),
            families[daf],
            st.integers(1, 65535),
            methods,
            st.integers(0, 2**31 - 1),
            bounds,
        )

    return st.lists(dest(af) | dest(12 - af), max_size=4, unique_by=lambda d: (d.af, d.addr, d.port))


rows = st.sampled_from([2, 10]).flatmap(lambda af: st.tuples(specs(af, families[af]), servers(af)))
tables = st.lists(rows, max_size=5, unique_by=lambda r: r[0].key.lookup)


def put(services, table):
    services.flush()
    services.trash = Trash()
    for spec, dests in table:
        services.add_service(spec)
        for dest in dests:
            if dest.fwd != 0 and not spec.key.fwmark:
                dest.port = spec.key.port  # as uvsadm and ipvsadm force it
            if services.get(spec.key).dest(dest.af, dest.addr, dest.port) is None:
                services.add_dest(spec.key, dest)


def content(services):
    return {
        svc.key.lookup: (svc.spec.sched_name, svc.spec.flags, svc.spec.timeout, svc.spec.netmask, {d.id: d.spec for d in svc.dests})
        for svc in services
    }  # fmt: skip


@given(tables)
@settings(max_examples=60, deadline=None)
def test_a_saved_table_comes_back(table):
    one, other = World(), World()
    try:
        put(one.ipvs.services, table)
        _, *texts = stateformat.lines(stateformat.capture(one.ipvs), 1, "")
        saved = stateformat.replay(text[:-1] for text in texts)
        other.ipvs.services.attach(saved.services)
        assert content(other.ipvs.services) == content(one.ipvs.services)
        assert [[d.id for d in svc.dests] for svc in other.ipvs.services] == [
            [d.id for d in svc.dests] for svc in one.ipvs.services
        ]
    finally:
        one.close()
        other.close()


changes = st.lists(
    st.tuples(st.sampled_from(["service", "gone", "dest", "dest", "dest", "off", "save"]), st.integers(0, 3), st.integers(0, 3)),
    max_size=40,
)  # fmt: skip


@given(changes=changes)
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_table_and_its_journal_are_the_table(changes, tmp_path_factory):
    """However services and servers come, change, go and come again: what is read back is what was saved last."""
    path = tmp_path_factory.mktemp("state") / "table"
    world = World()
    services = world.ipvs.services

    def act(what, key, n):
        there = next((svc for svc in services if svc.key == key), None)
        dest = DestSpec(2, bytes([10, 2, 0, n + 1]), 80, weight=n + len(services))
        if what == "service":
            (services.edit_service if there else services.add_service)(ServiceSpec(key, timeout=n))
        elif there and what == "gone":
            services.del_service(key)
        elif there and what == "dest":
            known = there.dest(*dest_id(dest))
            (services.edit_dest if known else services.add_dest)(key, dest)
        elif there and what == "off" and there.dest(*dest_id(dest)):
            services.del_dest(key, *dest_id(dest))

    try:
        with mock.patch.object(state, "JOURNAL_MIN", 8):
            saved = state.SavedTable(path)
            saved.restore(world.ipvs)
            saved.save(world.ipvs)
            for what, m, n in changes:
                if what == "save":
                    saved.save(world.ipvs)
                    if saved.long:
                        rewriting = saved.rewrite(world.ipvs)
                        for _ in rewriting.steps():
                            pass
                        rewriting.finish()
                else:
                    act(what, ServiceKey(2, 6, b"\x0a\0\0\1", m + 1), n)
            saved.save(world.ipvs)
        found = state.SavedTable(path).load()
        assert found.whole
        assert [(spec.key, spec.timeout, dests) for spec, dests in found.saved.services] == [
            (svc.key, svc.spec.timeout, [d.spec for d in svc.dests]) for svc in services
        ]
    finally:
        world.close()


def dest_id(spec):
    return spec.af, spec.addr, spec.port
