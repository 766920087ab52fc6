"""`uvs monitor` in a lab, with clients that ask all the time.

Whatever befalls a server, it leaves service, gets no further connection, and comes back when it is well.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from support import moody_server
from support.clients import Progress
from support.running import Running
from support.sandbox import wait_for

from uvs.ipvs.spec import ServiceKey
from uvs.lab import processes
from uvs.lab.enter import Daemon
from uvs.lab.topology import VIP

PATIENCE_S = 120.0
INTERVAL_S, TIMEOUT_S, FALL = 0.3, 0.3, 2
SLACK_S = 30.0  # a busy machine's
KEY = ServiceKey(socket.AF_INET, socket.IPPROTO_TCP, socket.inet_aton(VIP[4]), 80)
RS = {n: f"198.51.100.{10 + n}" for n in (1, 2, 3)}
FILE = "/run/uvs.toml"


def ask(count: int, stop: Progress | None = None, patience: float = 1) -> Counter[str]:
    """Requests one after the other, each on a connection of its own; who answered, in so many seconds."""
    told: Counter[str] = Counter()
    while count and not (stop and stop.value):
        count -= 1
        connection = http.client.HTTPConnection(VIP[4], 80, timeout=patience)
        try:
            connection.request("GET", "/", headers={"Connection": "close"})
            told[connection.getresponse().read().decode("latin-1").strip()] += 1
        except (OSError, http.client.HTTPException) as error:
            told[type(error).__name__] += 1
        finally:
            connection.close()
    return told


class Site:
    """The lab, its third server's moods, and the monitor."""

    def __init__(self, running: Running) -> None:
        self.running, self.lab = running, running.lab
        for server in running.servers:
            if server.name == "server":
                assert server.kill()
        self.servers = {n: self.serve(n) for n in RS}
        self.write(FALL)
        self.monitor = self.start_monitor()

    def serve(self, number: int) -> Daemon:
        argv = sys.executable, "-I", "-S", moody_server.__file__, f"rs{number}", f"/run/mood-{number}"
        return self.lab.start(f"rs{number}", "server", argv, notify=True)

    def write(self, fall: int) -> None:
        servers = "".join(f'[[service.server]]\naddress = "{address}:80"\n' for address in RS.values())
        fresh = self.lab.path(f"{FILE}.fresh")
        fresh.write_text(
            f'[[service]]\naddress = "{VIP[4]}:80"\n[[service.check]]\ntype = "http"\nbody = "^rs"\n'
            f"interval = {INTERVAL_S}\ntimeout = {TIMEOUT_S}\nfall = {fall}\nrise = 2\n{servers}"
        )
        fresh.rename(self.lab.path(FILE))

    def start_monitor(self) -> Daemon:
        argv = (*processes.UVS, "monitor", "--config", FILE)
        return self.lab.start("director", "monitor", argv, notify=True)

    def log(self) -> str:
        return self.lab.log("director", "monitor")

    def mood(self, mood: str, number: int = 3) -> None:
        self.lab.path(f"/run/mood-{number}").write_text(mood)

    def weight(self, number: int = 3) -> int:
        with self.running.client() as client:
            rows = {row["server"]: row["effective"] for row in client.get_health()}
        return rows[f"{RS[number]}:80"]

    def settled(self) -> int:
        """Connections that rs3 was ever given; what is listed follows within seconds, of all servers alike."""
        for _ in range(2):
            before = self.connections(1)
            wait_for(partial(self.beyond, before), self.log, PATIENCE_S)
        return self.connections(3)

    def beyond(self, count: int) -> bool:
        return self.connections(1) > count

    def connections(self, number: int) -> int:
        """That a server was given, as listed."""
        address = socket.inet_aton(RS[number])
        with self.running.client() as client:
            return next(d.stats.conns for d in client.dests(KEY) if d.spec.addr == address)

    def leaves(self) -> float:
        """Wait until rs3 is out of service; it gets no connection then. Seconds that it took."""
        begin = time.monotonic()
        wait_for(lambda: self.weight() == 0, self.log, PATIENCE_S)
        took = time.monotonic() - begin
        answers = self.lab.call("client", ask, 30, None, 20, timeout=PATIENCE_S)
        assert answers["rs1"] + answers["rs2"] == 30, answers
        assert took < FALL * INTERVAL_S + TIMEOUT_S + SLACK_S
        return took

    def returns(self) -> None:
        """Wait until it is back, and serves."""
        wait_for(lambda: self.weight() == 1, self.log, PATIENCE_S)
        # Another that was out meanwhile (a busy machine) may have fewer connections, and is given these first.
        wait_for(lambda: "rs3" in self.lab.call("client", ask, 12, timeout=PATIENCE_S), self.log, PATIENCE_S)


@pytest.fixture(scope="module")
def site(make_lab: Callable[..., Running]) -> Site:
    running = make_lab("nat", 3, services=False)
    running.uvsadm("-A", "-t", f"{VIP[4]}:80", "-s", "rr")
    for address in RS.values():
        running.uvsadm("-a", "-t", f"{VIP[4]}:80", "-r", address, "-m")
    return Site(running)


@pytest.fixture(autouse=True)
def clients(site: Site) -> Iterator[None]:
    """Two that ask all the time."""
    site.mood("well")
    site.returns()
    stop = Progress()
    with contextlib.ExitStack() as stack:
        calls = [
            stack.enter_context(contextlib.closing(site.lab.begin("client", ask, -1, stop))) for _ in range(2)
        ]
        yield
        stop.value = 1
        for call in calls:
            told = call.result(PATIENCE_S)
            assert told["rs1"] > 0
            assert told["rs2"] > 0


@pytest.mark.parametrize("mood", ["busy", "slow", "cut", "garbage"])
def test_a_server_that_answers_wrongly(site: Site, mood: str) -> None:
    site.mood(mood)
    site.leaves()
    site.mood("well")
    site.returns()


def test_a_server_that_hangs(site: Site) -> None:
    os.kill(site.servers[3].pid, signal.SIGSTOP)
    try:
        site.leaves()
    finally:
        os.kill(site.servers[3].pid, signal.SIGCONT)
    site.returns()


def test_a_server_that_is_stopped(site: Site) -> None:
    """It refuses. No reload and no restart of the monitor brings it back before it lives."""
    assert site.servers[3].kill()
    site.leaves()
    assert f"{RS[3]} is gone: tcp {VIP[4]}:80, http check: connection refused" in site.log()
    before = site.settled()
    for fall in (5, 1, FALL) * 3:
        site.write(fall)
        os.kill(site.monitor.pid, signal.SIGHUP)
        time.sleep(0.05)
    assert site.monitor.kill(signal.SIGTERM)
    site.monitor = site.start_monitor()
    site.lab.call("client", ask, 12, timeout=PATIENCE_S)
    assert (site.weight(), site.settled()) == (0, before)
    site.servers[3] = site.serve(3)
    site.returns()


def test_a_director_that_is_killed(site: Site) -> None:
    """It comes back with what was told; what happens meanwhile it is told when it is there."""
    assert site.servers[3].kill()
    site.leaves()
    assert site.running.director.kill()
    site.running.restart()
    assert site.weight() == 0
    site.servers[3] = site.serve(3)
    site.returns()
    assert "is told everything again" in site.log()


def test_a_server_that_has_lost_its_cable(site: Site) -> None:
    """Neither an answer nor a refusal."""
    site.lab.check("rs3", ["ip", "link", "set", "eth0", "down"])
    try:
        site.leaves()
    finally:
        site.lab.check("rs3", ["ip", "link", "set", "eth0", "up"])
        site.lab.check("rs3", ["ip", "route", "replace", "default", "via", "198.51.100.1"])
    site.returns()
