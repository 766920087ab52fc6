"""Datagrams of any size through every mode: fragments both ways, a small MTU, jumbo frames, UDP_SEGMENT."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support import clients

from uvs.lab import processes
from uvs.lab.namespaces import SWITCH

SIZES = [1, 1252, 1253, 1400, 1433, 1452, 1453, 1472, 1473, 2000, 8192, 60000]
SIZE = 20_000_000


def set_mtu(running, mtu: int) -> None:
    """Of every link of the lab."""
    for host in (SWITCH, *(h.name for h in running.lab.topology.hosts)):
        line = f"cd /sys/class/net; for i in *; do [ $i = lo ] || ip link set $i mtu {mtu} || exit 1; done"
        running.lab.check(host, ["sh", "-c", line])


def to_servers(running, what: list[str]) -> None:
    """`ip route replace` to every real server, in both families, on the director."""
    for host in running.lab.topology.servers:
        for family in (4, 6):
            address = host.address(family)
            shown = running.lab.check("director", ["ip", "-o", "route", "get", address]).split()
            way = [
                word for key in ("via", "dev") if key in shown for word in (key, shown[shown.index(key) + 1])
            ]
            running.lab.check("director", ["ip", f"-{family}", "route", "replace", address, *way, *what])


@pytest.fixture(params=["1500", "jumbo", "1400 behind 1500"])
def links(request: pytest.FixtureRequest, running) -> Iterator[str]:
    """The lab's MTU."""
    if request.param == "jumbo":
        set_mtu(running, 9000)
    elif request.param != "1500":
        to_servers(running, ["mtu", "1400"])
    yield request.param
    if request.param == "jumbo":
        set_mtu(running, 1500)
    elif request.param != "1500":
        to_servers(running, [])


def test_datagrams_and_a_transfer(running, family, links) -> None:
    """Datagrams up to 60000 bytes come back byte for byte, and so does a transfer of 20 MB."""
    vip = running.vip(family)
    sizes = [*SIZES, 8972, 8973, 9000, 18000] if links == "jumbo" else SIZES
    assert running.lab.call("client", clients.datagrams, vip, sizes, timeout=300) == {}
    _, there, here = running.lab.call("client", clients.upload, vip, SIZE, timeout=120)
    assert there == here


def test_behind_a_stateful_firewall(running, family) -> None:
    """Conntrack in the director puts fragments together too, before our rules."""
    program = {4: "iptables", 6: "ip6tables"}[family]
    rule = ["FORWARD", "-m", "conntrack", "--ctstate", "ESTABLISHED", "-j", "ACCEPT"]
    running.lab.check("director", [program, "-I", *rule])
    try:
        assert running.lab.call("client", clients.datagrams, running.vip(family), SIZES, timeout=300) == {}
    finally:
        running.lab.check("director", [program, "-D", *rule])


def test_udp_segment(running, family) -> None:
    """Ten datagrams in one call, as QUIC sends them, arrive as ten."""
    assert running.lab.call("client", clients.segmented, running.vip(family), 1200, 10) == 10


# A director whose kernel puts no fragments together for it: the rule that would turn it on is refused.
WITHOUT_DEFRAG = """
import os, sys
from uvs.netfilter import iptables
os.environ["UVS_BACKEND"] = "iptables"
iptables.defragmented = lambda af: {"PREROUTING": ["-m no-such-match -j ACCEPT"]}
from uvs.cli import main
sys.exit(main(["run"]))
"""


def test_fragments_that_nobody_puts_together_before(make_lab) -> None:
    """Later fragments reach the director by rules of their own, and it puts them together itself."""
    running = make_lab("nat", program=(*processes.PYTHON[:2], "-c", WITHOUT_DEFRAG))
    for family in (4, 6):
        failed = running.lab.call("client", clients.datagrams, running.vip(family), SIZES, timeout=300)
        assert failed == {}, f"IPv{family}"
        program = "iptables-save" if family == 4 else "ip6tables-save"
        rules = running.lab.check("director", [program, "-c", "-t", "security"]).splitlines()
        match = "-m u32" if family == 4 else "-m frag"
        hooks = {line.split()[2] for line in rules if match in line and not line.startswith("[0:0]")}
        assert "UVS-FORWARD" in hooks
        assert family == 4 or "UVS-INPUT" in hooks, "IPv4 is whole there"
    assert "fragments" not in running.log()
