"""NAT, direct routing and tunnelling with real TCP, UDP and ICMP, in both families."""

from __future__ import annotations

from collections import Counter

import pytest
from support import clients

from uvs.lab import processes
from uvs.lab.namespaces import Lab

SIZE = 20_000_000
UNHEARD = 9999  # a UDP service on whose port no real server listens


@pytest.mark.parametrize("direction", [clients.upload, clients.download], ids=["up", "down"])
def test_transfer(running, family, direction) -> None:
    """20 MB arrive as they were sent."""
    name, there, here = running.lab.call("client", direction, running.vip(family), SIZE, timeout=120)
    assert there == here
    assert name in ("rs1", "rs2", "rs3")


def reassembled(lab: Lab, family: int) -> int:
    """Fragments that the client has had to put together."""
    text = lab.check("client", ["cat", "/proc/net/snmp6" if family == 6 else "/proc/net/snmp"])
    if family == 6:
        return int(dict(line.split() for line in text.splitlines())["Ip6ReasmReqds"])
    names, values = (line.split() for line in text.splitlines() if line.startswith("Ip:"))
    return int(dict(zip(names, values, strict=True))["ReasmReqds"])


@pytest.mark.parametrize("running", ["nat"], indirect=True)
def test_replies_under_policy_routing(running, family) -> None:
    """They are taken out at FORWARD and sent by the virtual address's route (snat_reroute), in segments."""
    lab, vip = running.lab, running.vip(family)
    rule = ["ip", f"-{family}", "rule"]
    by = ["from", vip, "lookup", "main", "priority", "100"]
    before = reassembled(lab, family)
    lab.check("director", [*rule, "add", *by])
    try:
        _, there, here = lab.call("client", clients.download, vip, SIZE, timeout=120)
    finally:
        lab.check("director", [*rule, "delete", *by])
    assert there == here
    assert reassembled(lab, family) == before


def test_parallel(running, family) -> None:
    """200 connections open at the same time, spread evenly over three servers."""
    names = running.lab.call("client", clients.parallel, running.vip(family), 200)
    assert sorted(Counter(names).values()) == [66, 67, 67]


def test_udp_echo(running, family) -> None:
    sizes = [0, 1, 2, 511, 1400]
    assert running.lab.call("client", clients.echo, running.vip(family), sizes) == [True] * len(sizes)


def test_ping_vip(running, family) -> None:
    """The director's own stack answers for the VIP."""
    assert running.lab.call("client", clients.ping, running.vip(family), 3) == 3


def test_stray_segment(running, family) -> None:
    """A segment of no connection is the local stack's, which answers RST."""
    assert running.lab.call("client", clients.stray_segment, running.vip(family), 80) == "R"


def test_port_unreachable(running, family) -> None:
    """A real server's port-unreachable reaches the socket of the client as if the VIP had sent it."""
    processes.restore(running.lab, processes.service_commands(running.lab, family, UNHEARD, "-u"))
    error = running.lab.call("client", clients.send_to_closed_port, running.vip(family), UNHEARD)
    assert error == "ConnectionRefusedError"
