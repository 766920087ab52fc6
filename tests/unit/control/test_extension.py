"""The family UVS: sysctls, connections, counters, walks."""

import errno
import json
import time

import pytest
from support.world import CIP, CIP6, MASQ, RIP, RIP6, VIP, VIP6, packed, tcp

from uvs import __version__
from uvs.control import extension
from uvs.control.extension import ConnEntry
from uvs.control.netlink import attributes
from uvs.engine.core import ConnFlag, Why
from uvs.ipvs.spec import IpvsError

pytestmark = pytest.mark.usefixtures("director")


def test_sysctls(client, director):
    found = client.sysctls()
    assert list(found) == director.ipvs.sysctl.names()
    assert found["conn_reuse_mode"] == client.sysctl("conn_reuse_mode") == "1"
    client.set_sysctl("conn_reuse_mode", "0")
    assert director.ipvs.sysctl.conn_reuse_mode == 0
    assert director.commits == 1


@pytest.mark.parametrize(
    ("name", "value", "number"),
    [
        ("nosuch", "1", errno.ENOENT),
        ("__class__", "1", errno.ENOENT),
        ("drop_entry", "4", errno.EINVAL),
        ("pmtu_disc", "", errno.EINVAL),
        ("pmtu_disc", "x", errno.EINVAL),
        ("x" * 64, "1", errno.EINVAL),
    ],
)
def test_sysctls_refused(client, name, value, number):
    with pytest.raises(IpvsError) as caught:
        client.set_sysctl(name, value)
    assert caught.value.errno == number


def test_connections(client, director):
    def traffic():
        w = director.world
        for vip, rip, cip in ((VIP, RIP[1], CIP), (VIP6, RIP6[1], CIP6)):
            w.server(w.service(vip), rip, 8080, MASQ)
            w.local_in(tcp(cip, 1024, vip, 80))

    director.do(traffic)
    four, six = sorted(client.conns(), key=lambda c: c.af)
    assert four == ConnEntry(
        2, 2, 6, 1024, 80, 8080, four.flags, 60_000, 0, "SYN_RECV", packed(CIP), packed(VIP), packed(RIP[1])
    )
    assert six[10:] == (packed(CIP6), packed(VIP6), packed(RIP6[1]), b"")
    assert four.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ


def test_a_template_s_engine_data(client, director):
    def make():
        table, now = director.ipvs.table, director.world.now
        table.conn_new(
            2, 17, bytes(4), 0, b"\1\2\3\4", 53, 2, b"\5\6\7\x08", 53, 0, ConnFlag.TEMPLATE, 0, now, b"sip a"
        )

    director.do(make)
    assert [c.pe for c in client.conns()] == [b"sip a"]


def test_connections_by_the_thousand(client, director):
    def many():
        for i in range(20_000):
            director.ipvs.table.conn_new(
                2,
                17,
                i.to_bytes(4, "big"),
                1,
                b"\1\2\3\4",
                53,
                2,
                b"\5\6\7\x08",
                53,
                0,
                0,
                0,
                director.world.now,
            )

    director.do(many)
    assert {int.from_bytes(c.caddr, "big") for c in client.conns()} == set(range(20_000))


@pytest.mark.parametrize("pe", [b"", b"sip a@b", b"sip " + b"x" * 255])
def test_a_connection_comes_back(pe):
    addrs = bytes(16), b"\1" * 16, b"\2" * 4
    entry = ConnEntry(10, 2, 132, 1, 2, 65535, 0x1100, 5, 9, "ESTABLISHED", *addrs, pe)
    (attr,) = attributes(extension.conn(entry)).values()
    assert extension.parse_conn(attr) == entry
    with pytest.raises(ValueError, match="short"):
        extension.parse_conn(bytes(extension.CONN_SIZE - 1))


def test_counters(client, director):
    director.do(lambda: director.world.local_in(tcp(CIP, 1024, VIP, 80)))
    found = client.counters()
    assert list(found) == [why.label for why in Why]
    assert found["no_service"] == 1
    assert sum(found.values()) == 1


def test_total(client, director):
    director.do(lambda: director.ipvs.services.total.sample((1, 2, 3, 4, 5)))
    stats, table = client.total()
    assert stats[:5] == (1, 2, 3, 4, 5)
    assert json.loads(table)["conns"] == 0


def test_walks(client, director):
    assert client.walks() == []
    client.record(1)
    for _ in range(2):
        director.do(lambda: director.world.local_in(tcp(CIP, 1024, VIP, 80)))
    (walk,) = client.walks()
    assert json.loads(walk)["why"] == "no_service"
    assert client.walks() == []  # handed out once
    with pytest.raises(IpvsError, match="Invalid argument"):
        client.record(10_001)


def test_a_walk_of_a_large_packet_fits_into_a_message(client, director):
    """64 KiB is what an attribute holds; the packet and each of its segments would be more in hex."""

    def large() -> None:
        world = director.world
        world.server(world.service(), RIP[1])
        world.local_in(tcp(CIP, 1024, VIP, 80))
        world.local_in(tcp(CIP, 1024, VIP, 80, "A", b"x" * 60_000), gso=True)

    client.record(2)
    director.do(large)
    _, walk = (json.loads(text) for text in client.walks())
    assert (walk["length"], len(walk["data"])) == (60_040, 2048)
    assert len(walk["sent"]) == 16
    assert walk["omitted"] > 16
    assert {s["length"] for s in walk["sent"]} == {576}


def test_what_queues_have_counted(client, director):
    """A row for each, as the driver words it; of a director without queues none."""
    assert client.queues() == []
    rows = [{"queue": 7, "class": "other", "packets": 1 << 40, "dropped": None}, {"queue": 8, "class": "tcp"}]
    director.ipvs.queues = lambda: rows
    assert client.queues() == rows


def test_queues_of_an_older_director(client, director):
    """One that is still to be restarted knows no such command: nothing to show is no failure."""
    director.ipvs.queues = lambda: [{"queue": 7}]
    (family,) = [f for f in director.server.dispatcher.families if f.name == extension.FAMILY_NAME]
    del family.ops[extension.Cmd.GET_QUEUES]
    assert client.queues() == []


def test_figures_of_the_table(client, director):
    director.ipvs.unresolved = lambda: (3, 14)
    figures = json.loads(client.total()[1])
    assert figures == director.ipvs.table.info() | {
        "waiting": 3, "waited": 14, "walks": 0, "traces": 0, "traced": 0, "untold": 0
    }  # fmt: skip


def test_who_answers(client, director, monkeypatch):
    """Its version, and when it began; a director that does not say has none."""
    version, started = client.about()
    assert version == __version__
    assert abs(started - time.time()) < 3600
    monkeypatch.setattr(
        client, "_uvs", lambda command: [{extension.Attr.STATS64: b"", extension.Attr.JSON: b"{}"}]
    )
    assert client.about() == ("", 0)
