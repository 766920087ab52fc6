"""The director as a client of its own virtual services, and as a real server of them."""

from __future__ import annotations

import socket
import time

import pytest
from support import clients

from uvs.lab import processes
from uvs.lab.topology import service

SIZE = 2_000_000
# Larger IPv6 datagrams are refused, as by ip_vs: nothing says that their own sender would have cut them.
SIZES = {4: [1, 1400, 1473, 5000, 60000], 6: [1, 1232, 1400]}


@pytest.fixture(autouse=True)
def own_source(running, family) -> None:
    """A DR or TUN server has the VIP too and would answer itself: the client uses an address of its own.

    Programs bind it; here the route says so.
    """
    if running.mode == "nat":
        return
    own = running.lab.topology["director"].address(family)
    vip = running.vip(family)
    way = ["local", vip, "dev", "eth0", "table", "local"]
    # IPv6 would keep the kernel's own beside a new one.
    running.lab.check(
        "director",
        [
            "sh",
            "-c",
            f"ip -{family} route del {' '.join(way)}; ip -{family} route add {' '.join(way)} src {own}",
        ],
    )


def stats(running, family: int, protocol: str, port: int) -> list[int]:
    """Conns, InPkts, OutPkts of a service; counters are read every 2 s."""
    virtual = [protocol, service(family, port)]
    rows = (line.split() for line in running.uvsadm("-Ln", "--stats", "--exact").splitlines())
    return next([int(word) for word in row[2:5]] for row in rows if row[:2] == virtual)


def become(running, family: int, protocol: str, port: int, wanted: list[int]) -> list[int]:
    """The counters, once they are (or as they are after 30 s)."""
    deadline = time.monotonic() + 30
    while (seen := stats(running, family, protocol, port)) != wanted and time.monotonic() < deadline:
        time.sleep(0.2)
    return seen


@pytest.mark.parametrize("direction", [clients.upload, clients.download], ids=["up", "down"])
def test_transfer(running, family, direction) -> None:
    """DR and TUN over IPv4 need accept_local: the lab has set it, `uvs doctor` tells of it."""
    name, there, here = running.lab.call("director", direction, running.vip(family), SIZE, timeout=120)
    assert there == here
    assert name in ("rs1", "rs2", "rs3")


def test_datagrams(running, family) -> None:
    failed = running.lab.call("director", clients.datagrams, running.vip(family), SIZES[family], timeout=120)
    assert failed == {}


def test_a_reply_is_counted_once(running, family) -> None:
    """It enters by LOCAL_IN, where ip_vs_out() sees it in every mode."""
    # A service without a past: no counts that come late (-Z does not forget those), no connection of the same port.
    again = [["-D", "-u", service(family, 7)], *processes.service_commands(running.lab, family, 7, "-u")]
    processes.restore(running.lab, again)
    with running.client() as director:
        director.flush_conns()
    assert running.lab.call("director", clients.echo, running.vip(family), [100]) == [True]
    assert become(running, family, "UDP", 7, [1, 1, 1]) == [1, 1, 1]


def ask_here(address: str, port: int, bound: str) -> bytes:
    """A UDP client and the server that is to answer it at `bound`, both on this host."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with (
        socket.socket(family, socket.SOCK_DGRAM) as server,
        socket.socket(family, socket.SOCK_DGRAM) as client,
    ):
        server.bind((bound, port))
        server.settimeout(15)
        client.settimeout(15)
        client.connect((address, port))
        client.send(b"hello")
        data, sender = server.recvfrom(100)
        server.sendto(data + b" yourself", sender)
        return client.recv(100)


@pytest.mark.parametrize("method", ["-m", "-g", "-i"])
def test_client_and_server_on_the_director(running, family, method) -> None:
    """What LOCAL_OUT handled is known at LOCAL_IN (ipvs_property): each packet is counted once."""
    port = {"-m": 8001, "-g": 8002, "-i": 8003}[method]
    virtual = service(family, port)
    vip, own = running.vip(family), running.lab.topology["director"].address(family)
    real = service(family, port, own)
    commands = [["-A", "-u", virtual, "-s", "rr"], ["-a", "-u", virtual, "-r", real, method]]
    processes.restore(running.lab, commands)
    try:
        answer = running.lab.call("director", ask_here, vip, port, own if method == "-m" else vip, timeout=60)
        assert answer == b"hello yourself"
        assert become(running, family, "UDP", port, [1, 1, 1]) == [1, 1, 1]
    finally:
        processes.restore(running.lab, [["-D", "-u", virtual]])
