"""A lab whose hosts have addresses only, made an LVS by scripts/director and scripts/realserver, both families."""

from __future__ import annotations

from collections import Counter

import pytest
from support.hostscripts import SCRIPTS, SHELLS, bare, settings

from uvs.lab import processes
from uvs.lab.enter import Call
from uvs.lab.fetch import fetch
from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, VIP, topology, url

WITH_VIPS = ("--vip", VIP[4], "--vip", VIP[6])
NAT = (
    "--dip",
    "198.51.100.1",
    "--dip",
    "2001:db8:b::1",
    "--clients",
    "192.0.2.0/24",
    "--clients",
    "2001:db8:a::/64",
)


def fetched(count: int, family: int) -> Counter[str]:
    return Counter(fetch(url(family)) for _ in range(count))


@pytest.mark.parametrize("mode", MODES)
def test_requests_are_answered_and_spread(mode: str) -> None:
    whole = topology(mode)
    with Lab.create(bare(whole)) as lab:
        table = [c for f in processes.families() for c in processes.service_commands(lab, f)]
        lab.path("/run/services").write_text("".join(f"{' '.join(c)}\n" for c in table))
        if mode == "tun":  # what is between the networks is no part of LVS
            lab.check("router", ["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
            for host in whole.hosts:
                for gateway in host.gateways:
                    lab.check(host.name, ["ip", "route", "add", "default", "via", gateway])
        for server in lab.topology.servers:
            processes.start_server(lab, server.name)

        jobs = {
            rs.name: ("realserver", "--mode", mode, *(NAT if mode == "nat" else WITH_VIPS))
            for rs in lab.topology.servers
        }
        table_of = ("--table", "/run/services", "--interface", "eth0")
        jobs["director"] = ("director", "--mode", mode, *WITH_VIPS, *table_of)

        def script(host: str, action: str, turn: int = 0) -> str:
            """Each host by another shell than its neighbour."""
            shell = list(SHELLS.values())[(list(jobs).index(host) + turn) % len(SHELLS)]
            name, *options = jobs[host]
            more = options if action == "start" else ()
            return lab.check(host, [*shell, str(SCRIPTS / name), action, "--state", f"/run/{host}", *more])

        before = {host: lab.call(host, settings) for host in jobs}
        for host in jobs:
            assert script(host, "start") == ""
            assert " NO " not in script(host, "status", 1)
        for family in processes.families():
            calls: list[Call] = [lab.begin("client", fetched, 6, family) for _ in range(2)]
            answered = sum((call.result(120) for call in calls), Counter())
            assert answered == {"rs1": 4, "rs2": 4, "rs3": 4}
        for host in jobs:
            assert script(host, "stop", 1) == ""
        assert {host: lab.call(host, settings) for host in jobs} == before
