"""Save, clear, restore: whatever the table, it is the same again; by numbers and by names."""

import io
import socket
import sys
from functools import partial
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paper_client import PaperClient, dispatcher
from support.world import World

from uvs.adm import cli
from uvs.control import messages
from uvs.control.messages import Cmd
from uvs.ipvs import scheduling
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, DestSpec, ServiceKey, ServiceSpec

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
TCP, UDP, SCTP = 6, 17, 132
MASQ, TUNNEL, DROUTE = 0, 2, 3
IPIP, GUE, GRE = 0, 1, 2
INT_MAX = 2**31 - 1
MONTH = 2678400  # seconds, the longest persistence that the grammar takes

# ------------------------------------------------------------------ random tables

v4 = st.tuples(st.integers(1, 223), *[st.integers(0, 255)] * 3).map(bytes)
v6 = st.binary(min_size=14, max_size=14).map(lambda b: b"\x20\x01" + b)
ADDRESSES = {AF_INET: v4, AF_INET6: v6}
ports = st.integers(1, 65535) | st.sampled_from([21, 53, 80, 443, 5060])
masks = {
    AF_INET: st.integers(0, 0xFFFFFFFF) | st.integers(1, 32).map(lambda n: -(1 << 32 - n) & 0xFFFFFFFF),
    AF_INET6: st.integers(1, 128),
}
WHOLE = {AF_INET: 0xFFFFFFFF, AF_INET6: 128}


@st.composite
def services(draw):
    """Whatever -A can make."""
    af = draw(st.sampled_from([AF_INET, AF_INET6]))
    protocol = draw(st.sampled_from([TCP, UDP, SCTP, None]))
    flags = draw(st.sampled_from([0, 0, 8, 0x10, 0x18, 0x20, 0x38]))
    timeout, netmask = 0, WHOLE[af]
    if draw(st.booleans()):
        flags |= SVC_F_PERSISTENT
        timeout, netmask = draw(st.integers(1, MONTH)), draw(st.just(netmask) | masks[af])
    if protocol in (UDP, None) and draw(st.booleans()):
        flags |= SVC_F_ONEPACKET
    if protocol is None:
        key = ServiceKey(af, TCP, bytes(4 if af == AF_INET else 16), 0, draw(st.integers(1, 0xFFFFFFFF)))
    else:
        port = draw(ports | st.just(0) if flags & SVC_F_PERSISTENT else ports)
        key = ServiceKey(af, protocol, draw(ADDRESSES[af]), port)
    pe = draw(st.sampled_from(["", "", "sip"]))
    return ServiceSpec(key, draw(st.sampled_from([*scheduling.names(), "none"])), flags, timeout, netmask, pe)


@st.composite
def servers(draw, key):
    """Whatever -a can make for a service."""
    af = draw(st.sampled_from([key.af, key.af, AF_INET, AF_INET6]))
    method = draw(st.sampled_from([MASQ, TUNNEL, DROUTE])) if af == key.af else TUNNEL
    port = draw(ports | st.just(0)) if method == MASQ or key.fwmark else key.port
    upper = draw(st.just(0) | st.integers(0, INT_MAX))
    lower = draw(st.just(0) | st.integers(0, upper))
    kind, tun_port, tun_flags = (
        draw(
            st.sampled_from([(IPIP, 0, 0), (GRE, 0, 0), (GRE, 0, 1)])
            | st.tuples(st.just(GUE), st.integers(1, 65535), st.integers(0, 2))
        )
        if method == TUNNEL
        else (IPIP, 0, 0)
    )
    weight = draw(st.integers(0, 100) | st.integers(0, INT_MAX))
    return DestSpec(af, draw(ADDRESSES[af]), port, method, weight, upper, lower, kind, tun_port, tun_flags)


def rows(spec):
    found = st.lists(servers(spec.key), max_size=4, unique_by=lambda d: (d.af, d.addr, d.port))
    return st.tuples(st.just(spec), found)


tables = st.lists(services().flatmap(rows), max_size=6, unique_by=lambda row: row[0].key.lookup)

# ------------------------------------------------------------------------- a director

NAMES = {}  # of the resolver: addresses by name


def look_up(text):
    """gethostbyaddr: every second address has a name."""
    addr = socket.inet_pton(AF_INET6 if ":" in text else AF_INET, text)
    if addr[-1] % 2:
        raise socket.herror
    name = f"h{addr.hex()}.example"
    NAMES[name] = addr
    return name, [], [text]


def resolve(name):
    """gethostbyname: IPv4 alone."""
    addr = NAMES.get(name, b"")
    if len(addr) != 4:
        raise socket.gaierror
    return socket.inet_ntop(AF_INET, addr)


def resolve6(name, port, family=0, *_, **__):
    """getaddrinfo for IPv6."""
    assert family == AF_INET6
    addr = NAMES.get(name, b"")
    if len(addr) != 16:
        raise socket.gaierror
    return [(AF_INET6, 1, 6, "", (socket.inet_ntop(AF_INET6, addr), 0, 0, 0))]


@pytest.fixture(scope="module")
def director():
    world = World()
    handler = dispatcher(world)
    resolver = {"gethostbyaddr": look_up, "gethostbyname": resolve, "getaddrinfo": resolve6}
    with (
        mock.patch.multiple(socket, **resolver),
        mock.patch.object(cli, "Client", partial(PaperClient, handler)),
    ):
        yield PaperClient(handler)
    world.close()


def run(program, *words, stdin=""):
    """Run one of the programs in this process; what it prints. It must succeed and say nothing else."""
    main = {"save": cli.save_main, "restore": cli.restore_main}.get(program.rpartition("-")[2], cli.main)
    out, err = io.StringIO(), io.StringIO()
    with (
        mock.patch.object(sys, "argv", [program]),
        mock.patch.object(sys, "stdin", io.StringIO(stdin)),
        mock.patch.object(sys, "stdout", out),
        mock.patch.object(sys, "stderr", err),
    ):
        status = main(list(words))
    assert (status, err.getvalue()) == (0, ""), (program, words, stdin)
    return out.getvalue()


def put(client, table):
    """Make it by the protocol, as keepalived would."""
    client.flush()
    changes = [(Cmd.NEW_SERVICE, messages.service(spec)) for spec, _ in table]
    changes += [
        (Cmd.NEW_DEST, messages.service_id(spec.key) + messages.dest(dest))
        for spec, dests in table
        for dest in dests
    ]
    refused = []
    client.batch(changes, lambda index, error: refused.append((changes[index], error)))
    assert refused == []


def listed(client):
    """Everything that a table is, by the protocol: services, and servers of each, in no order."""
    found = client.services()
    servers = client.all_dests([entry.spec.key for entry in found])
    return {
        entry.spec.key.lookup: (entry.spec, {(d.spec.af, d.spec.addr, d.spec.port): d.spec for d in dests})
        for entry, dests in zip(found, servers, strict=True)
    }


LISTINGS = ["", "--thresholds", "--tun-info", "--persistent-conn", "--json"]


def lines(text):
    """In no order: ipvsadm's way to sort addresses makes none of those that are 2^31 apart."""
    return sorted(line.rstrip(",") for line in text.splitlines())


def shown():
    return {listing: lines(run("uvsadm", "-Ln", *listing.split())) for listing in LISTINGS}


@given(table=tables, plain=st.booleans())
@settings(max_examples=120)
def test_save_clear_restore_is_the_identity(director, table, plain):
    put(director, table)
    before, texts = listed(director), shown()
    assert len(before) == len(table)
    saved = run("uvsadm-save", *["-n"] * plain)
    run("uvsadm", "-C")
    assert listed(director) == {}
    run("uvsadm-restore", stdin=saved)
    assert listed(director) == before
    assert shown() == texts
    assert lines(run("uvsadm-save", *["-n"] * plain)) == lines(saved)


@given(table=tables)
@settings(max_examples=30)
def test_a_saved_table_put_over_itself_changes_nothing(director, table):
    """`--atomic` over a table that holds other services: what is saved is what is there then."""
    put(director, table)
    before = listed(director)
    saved = run("uvsadm", "-Sn")
    director.flush()
    director.add_service(ServiceSpec(ServiceKey(AF_INET, TCP, b"\x0a\0\0\1", 80)))
    run("uvsadm-restore", "--atomic", stdin=saved)
    assert listed(director) == before


@given(table=tables)
@settings(max_examples=30)
def test_ipvsadm_s_own_form_loses_the_thresholds_alone(director, table):
    """Called as ipvsadm, `-S` writes what ipvsadm 1.31 writes: that has no -x and -y."""
    put(director, table)
    before = listed(director)
    saved = run("ipvsadm", "-Sn")
    director.flush()
    run("ipvsadm", "-R", stdin=saved)
    for _, dests in before.values():
        for spec in dests.values():
            spec.u_threshold = spec.l_threshold = 0
    assert listed(director) == before
