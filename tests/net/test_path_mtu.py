"""Path MTU discovery through a virtual service: a narrow hop behind the director, and TCP that must find out."""

from __future__ import annotations

import pytest
from support import clients
from support.sandbox import wait_for

from uvs.lab import processes
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology

SIZE = 2_000_000
NARROW = 1400  # MTU of the hop; all else has 1500


def narrow(lab: Lab, host: str) -> None:
    lab.check(host, ["ip", "link", "set", "eth1", "mtu", str(NARROW)])


def learnt(lab: Lab, address: str) -> str:
    """The path MTU that the client's kernel has for an address."""
    words = lab.check("client", ["ip", "route", "get", address]).split()
    return words[words.index("mtu") + 1] if "mtu" in words else ""


def carry(mode: str, family: int, tun_type: str, host: str, told: int) -> None:
    """An upload whose sender must make its segments smaller.

    They come one by one: what comes as a packet of many is never too big, but cut to what fits.
    """
    with Lab.create(topology(mode, 1, tun_type)) as lab:
        lab.offload(False)
        processes.start_servers(lab)
        processes.start_director(lab)
        processes.add_services(lab)
        narrow(lab, host)
        vip = VIP[family]
        _, there, here = lab.call("client", clients.upload, vip, SIZE, timeout=120)
        assert there == here
        wait_for(lambda: learnt(lab, vip) == str(told), f"the client knows an MTU of {told}")


@pytest.mark.parametrize(("tun_type", "overhead"), [("ipip", 20), ("gue", 32), ("gre", 24)])
def test_a_router_behind_the_director(tun_type: str, overhead: int) -> None:
    """The router tells the director of the tunnel's packet, and the director the client of its own."""
    carry("tun", 4, tun_type, "router", NARROW - overhead)


@pytest.mark.parametrize("mode", ["nat", "tun"])
@pytest.mark.parametrize("family", [4, 6])
def test_packets_of_many_segments(mode: str, family: int) -> None:
    """With offloads on, a sender's packets are cut to what fits the director's link, or a tunnel."""
    with Lab.create(topology(mode, 1)) as lab:
        processes.start_servers(lab)
        processes.start_director(lab)
        processes.add_services(lab)
        if mode == "nat":
            narrow(lab, "director")
        _, there, here = lab.call("client", clients.upload, VIP[family], SIZE, timeout=120)
        assert there == here


@pytest.mark.parametrize("family", [4, 6])
def test_the_directors_own_link(family: int) -> None:
    """By NAT: the director itself says how much fits."""
    carry("nat", family, "ipip", "director", NARROW)
