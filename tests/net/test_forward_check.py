"""The check `forward`: a SYN by the forwarding method, with a director's rules in place.

In each mode a server that answers at its own address, but not to what the director forwards, is found out.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable

import pytest
from pydantic import TypeAdapter
from support.running import Running

from uvs.config.checks import Check
from uvs.health.checks import run
from uvs.health.checks.base import Target
from uvs.ipvs.spec import DestSpec, ServiceKey
from uvs.lab.topology import MODES, VIP

FWD = {"nat": 0, "tun": 2, "dr": 3}  # IP_VS_CONN_F_*
AF = {4: socket.AF_INET, 6: socket.AF_INET6}
LONG_S, SHORT_S = 60.0, 1.5


@pytest.fixture(scope="module", params=MODES)
def site(request: pytest.FixtureRequest, make_lab: Callable[..., Running]) -> Running:
    return make_lab(request.param, 2)


def look(mode: str, family: int, address: str, kind: str, timeout: float) -> tuple[bool, str]:
    """Run a check once, on the director."""
    af = AF[family]
    key = ServiceKey(af, socket.IPPROTO_TCP, socket.inet_pton(af, VIP[family]), 80)
    server = DestSpec(af, socket.inet_pton(af, address), 80, FWD[mode])
    settings = TypeAdapter(Check).validate_python({"type": kind, "interval": LONG_S, "timeout": timeout})
    result = asyncio.run(run(Target(key, server), settings))
    return result.ok, result.detail


class Checker:
    """Checks of the lab's servers, in its mode."""

    def __init__(self, site: Running, family: int) -> None:
        self.site, self.family = site, family

    def __call__(self, server: str, kind: str = "forward", timeout: float = LONG_S) -> tuple[bool, str]:
        address = self.site.lab.topology[server].address(self.family)
        return self.site.lab.call("director", look, self.site.mode, self.family, address, kind, timeout)


METHODS = {"nat": "NAT", "dr": "DR", "tun": "the tunnel"}


def test_forward(site: Running, family: int) -> None:
    check = Checker(site, family)
    well = (True, f"answered through {METHODS[site.mode]}")
    assert check("rs1") == well
    assert check("rs2") == well
    assert check("rs1", "ping") == (True, "answered")
    if site.mode == "nat":
        return
    # The reply comes from the director's own address: a martian, unless that is allowed.
    accept = "net.ipv4.conf.all.accept_local"
    site.lab.check("director", ["sysctl", "-qw", f"{accept}=0"])
    assert check("rs1") == well
    prefix = "/32" if family == 4 else "/128"
    site.lab.check("rs2", ["ip", "address", "delete", VIP[family] + prefix, "dev", "lo"])
    try:
        assert check("rs2", "tcp") == (True, "connected")
        ok, detail = check("rs2", timeout=SHORT_S)
        assert (ok, detail.startswith(("timed out", "unreachable"))) == (False, True), detail
        assert check("rs1") == well
    finally:
        site.lab.check("rs2", ["ip", "address", "add", VIP[family] + prefix, "dev", "lo"])
        site.lab.check("director", ["sysctl", "-qw", f"{accept}=1"])
    assert check("rs2") == well


def test_what_answers_no_more(site: Running) -> None:
    """A hung program: its kernel still answers, which other checks are for. One that is gone refuses."""
    check = Checker(site, 4)
    (server,) = (d for d in site.servers if d.host == "rs2" and d.name == "server")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        assert check("rs2")[0]
        assert check("rs2", "http", SHORT_S) == (False, f"timed out after {SHORT_S:g} s")
    finally:
        os.kill(server.pid, signal.SIGCONT)
    assert server.kill()
    assert check("rs2") == (False, "connection refused")
    site.lab.check("rs2", ["ip", "link", "set", "eth0", "down"])
    for kind in ("ping", "tcp", "forward"):
        ok, detail = check("rs2", kind, SHORT_S)
        assert (ok, "refused" in detail) == (False, False), detail


def test_a_tunnel_that_nobody_takes(site: Running) -> None:
    if site.mode != "tun":
        return
    ends = [d for d in site.servers if d.host == "rs1" and d.name != "server"]
    if not ends:
        return  # a kernel with tunnels of its own
    for end in ends:
        assert end.kill()
    ok, detail = Checker(site, 4)("rs1", timeout=SHORT_S)
    assert not ok
    assert detail.startswith(("unreachable (ICMP type 3 code 2)", "timed out"))
