"""uvs flush: which connections it means, and what it tells."""

import itertools
import json

import pytest
from support.control import running
from support.world import CIP, CIP6, MASQ, RIP, RIP6, VIP, VIP6, tcp

from uvs import cli
from uvs.engine.core import Table
from uvs.ipvs.spec import SVC_F_PERSISTENT


@pytest.fixture
def director(tmp_path, monkeypatch):
    with running(tmp_path) as it:
        monkeypatch.setenv("UVS_SOCKET", it.path)
        it.do(lambda: traffic(it.world))
        yield it


def traffic(w):
    """Of each family: a persistent service with a server, one client with ports 1024 and 1025."""
    for vip, rip, cip in ((VIP, RIP[1], CIP), (VIP6, RIP6[1], CIP6)):
        svc = w.service(vip, flags=SVC_F_PERSISTENT, timeout=300)
        w.server(svc, rip, 8080, MASQ)
        for port in (1024, 1025):
            w.local_in(tcp(cip, port, vip, 80))


def left(director):
    return sorted((c.af, c.cport) for c in director.client().conns())


V4, V6 = [(2, 0), (2, 1024), (2, 1025)], [(10, 0), (10, 1024), (10, 1025)]


@pytest.mark.parametrize(
    ("words", "gone"),
    [
        (["--all"], V4 + V6),
        (["-t", f"{VIP}:80"], V4),
        (["-t", f"[{VIP6}]:80"], V6),
        (["-u", f"{VIP}:80"], []),
        (["-f", "7"], []),
        (["-r", RIP[1]], V4),
        (["-r", f"{RIP[1]}:8080"], V4),
        (["-r", f"{RIP[1]}:80"], []),
        (["-r", RIP6[1]], V6),
        (["-c", CIP], V4),
        (["-c", f"{CIP}/24"], V4),
        (["-c", f"{CIP6}/64"], V6),
        (["-c", "::/0"], V6),
        (["-c", RIP[1]], []),
        (["--client-port", "1024"], [(2, 1024), (10, 1024)]),
        (["--client-port", "1024", "-c", CIP], [(2, 1024)]),
        (["--client-port", "0"], []),  # templates that others hang on
        (["-t", f"{VIP}:80", "-c", CIP6], []),
    ],
)  # fmt: skip
def test_drops_what_is_meant_and_no_more(director, capsys, words, gone):
    assert cli.main(["flush", *words]) == 0
    assert capsys.readouterr().out == f"{len(gone)} connection{'' if len(gone) == 1 else 's'} dropped\n"
    assert left(director) == sorted(set(V4 + V6) - set(gone))


def test_a_server_s_counters_follow(director):
    cli.main(["flush", "-r", RIP[1]])
    dests = {d.spec.af: d.rec for svc in director.ipvs.services for d in svc.dests}
    assert [(d.activeconns + d.inactconns, d.persistconns, d.refcnt) for d in (dests[2], dests[10])] == [
        (0, 0, 0),
        (2, 1, 3),
    ]


def test_dry_run_lists_and_drops_nothing(director, capsys):
    assert cli.main(["flush", "-n", "-c", CIP]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert rows[0] == "IPVS connection entries"
    assert len(rows) == 2 + len(V4)
    assert cli.main(["flush", "-n", "--client-port", "1024", "-c", CIP6, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["client"] == {"address": CIP6, "port": 1024}
    assert row["server"] == {"address": RIP6[1], "port": 8080}
    assert len(left(director)) == len(V4 + V6)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "choose connections, or say --all"),
        (["--all", "-c", CIP], "--all goes with no other choice"),
        (["-6", "--all"], "-6 goes with -f"),
        (["-f", "0"], "-f takes a mark of 1..4294967295, not 0"),
        (["--client-port", "65536"], "--client-port takes 0..65535, not 65536"),
        (["-c", "192.0.2.1/33"], "192.0.2.1/33: no client's address or network"),
        (["-r", "192.0.2.1:65536"], "192.0.2.1:65536: no real server's address[:port]"),
        (["-t", "192.0.2.1:x:"], "192.0.2.1:x:: no virtual service's address[:port]"),
    ],
)
def test_wrong_use(capsys, words, message):
    assert cli.main(["flush", *words]) == 2
    assert capsys.readouterr().err == f"uvs flush: {message}\n"


def test_no_director(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none"))
    assert cli.main(["flush", "--all"]) == 1
    assert "no director listens on" in capsys.readouterr().err


def test_connections_that_begin_meanwhile(director, capsys, monkeypatch):
    """The engine's threads make some while others are dropped: what is told is what was dropped."""
    delete, ports = Table.conn_del, itertools.count(5000)

    def and_one_more(table, conn):
        gone = delete(table, conn)
        director.world.local_in(tcp("10.9.9.9", next(ports), VIP, 80))
        return gone

    monkeypatch.setattr(Table, "conn_del", and_one_more)
    assert cli.main(["flush", "-c", CIP]) == 0
    assert capsys.readouterr().out == f"{len(V4)} connections dropped\n"
