"""The description of a lab: what every mode must have, and its drawing."""

import ipaddress

import pytest

from uvs.lab.topology import MODES, VIP, service, topology


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("servers", [1, 3, 9])
def test_hosts(mode: str, servers: int) -> None:
    lab = topology(mode, servers)
    assert [h.name for h in lab.servers] == [f"rs{i}" for i in range(1, servers + 1)]
    addresses = [
        a for h in lab.hosts for i in h.interfaces for a in i.addresses if not a.endswith(("/32", "/128"))
    ]
    assert len(addresses) == len(set(addresses)), "two hosts with one address"


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", [4, 6])
def test_gateways_are_neighbours(mode: str, family: int) -> None:
    """A default route leads to an address that another host has on the same segment."""
    lab = topology(mode)
    for host in lab.hosts:
        for gateway in host.gateways:
            owners = [
                h for h in lab.hosts for i in h.interfaces for a in i.addresses if a.split("/")[0] == gateway
            ]
            assert len(owners) == 1
            assert set(owners[0].segments) & set(host.segments)
        network = ipaddress.ip_network(f"{host.address(family)}/{24 if family == 4 else 64}", strict=False)
        assert any(ipaddress.ip_address(g) in network for g in host.gateways) or not host.gateways


@pytest.mark.parametrize(
    ("mode", "on_servers"), [("nat", False), ("dr", True), ("tun", True)], ids=["nat", "dr", "tun"]
)
def test_vip(mode: str, on_servers: bool) -> None:
    """The VIP is on the director's interface; on servers only on lo, and there they keep silent about it."""
    lab = topology(mode)
    for family, suffix in ((4, "/32"), (6, "/128")):
        vip = VIP[family] + suffix
        assert [i.name for i in lab["director"].interfaces if vip in i.addresses] == ["eth0"]
        for host in lab.servers:
            assert [i.name for i in host.interfaces if vip in i.addresses] == ["lo"] * on_servers
    for host in lab.servers:
        assert (host.sysctls["net/ipv4/conf/all/arp_ignore"] == "1") == (mode == "dr")


def test_draw_nat() -> None:
    assert topology("nat", 2).draw() == "\n".join(
        [
            "                           client",
            "                         192.0.2.2",
            "                       2001:db8:a::2",
            "                             |",
            "============= A: 192.0.2.0/24  2001:db8:a::/64 =============",
            "                             |",
            "                         192.0.2.1",
            "                       2001:db8:a::1",
            "                          director",
            "                        VIP on eth0",
            "                        198.51.100.1",
            "                       2001:db8:b::1",
            "                             |",
            "=========== B: 198.51.100.0/24  2001:db8:b::/64 ============",
            "                   |                   |",
            "                  rs1                 rs2",
            "             198.51.100.11       198.51.100.12",
            "             2001:db8:b::11      2001:db8:b::12",
            "               gateway .1          gateway .1",
            "",
            "VIP 192.0.2.100  2001:db8:a::100",
            "request and reply both pass the director, which translates addresses",
        ]
    )


@pytest.mark.parametrize("mode", MODES)
def test_draw_shows_everything(mode: str) -> None:
    """Plain ASCII; every host and every address is there."""
    lab = topology(mode)
    drawing = lab.draw()
    assert drawing.isascii()
    for host in lab.hosts:
        assert host.name in drawing
        for segment in host.segments:
            assert host.address(4, segment) in drawing
            assert host.address(6, segment) in drawing


@pytest.mark.parametrize(("mode", "servers"), [("lvs", 3), ("nat", 0), ("dr", 10)])
def test_refused(mode: str, servers: int) -> None:
    with pytest.raises(ValueError, match=r"lvs|real servers"):
        topology(mode, servers)


@pytest.mark.parametrize(
    ("mode", "tun_type", "title", "options"),
    [
        ("nat", "ipip", "nat", "-m"),
        ("tun", "ipip", "tun", "-i"),
        ("tun", "gue", "tun by gue", "-i --tun-type gue --tun-port 6080"),
        ("tun", "gre", "tun by gre", "-i --tun-type gre"),
    ],
)
def test_kinds_of_tunnel(mode: str, tun_type: str, title: str, options: str) -> None:
    lab = topology(mode, 3, tun_type)
    assert (lab.title, " ".join(lab.forwarding)) == (title, options)


@pytest.mark.parametrize(("mode", "tun_type"), [("dr", "gue"), ("tun", "vxlan")])
def test_tunnels_refused(mode: str, tun_type: str) -> None:
    with pytest.raises(ValueError, match=f"no tunnel '{tun_type}' in mode {mode}"):
        topology(mode, 3, tun_type)


def test_service() -> None:
    assert service(4) == "192.0.2.100:80"
    assert service(6, 7) == "[2001:db8:a::100]:7"
    assert service(6, 80, "2001:db8:b::11") == "[2001:db8:b::11]:80"
