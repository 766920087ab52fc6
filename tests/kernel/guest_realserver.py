"""scripts/realserver on a kernel that has tunnels: its own devices, no `uvs decap`. Run by test_realserver.py in the machine.

director 10.0.0.1 v0 ─── eth0 10.0.0.2 real server, VIPs on lo   (fd00::1, fd00::2)
"""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from support.hostscripts import SHELLS, Script, difference, settings
from support.sandbox import Host, addressed, ip, link_up, sandboxed, sysctl

VIP = {4: "192.0.2.100", 6: "2001:db8:a::100"}
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}
PORT = 7777


@pytest.mark.parametrize("shell", SHELLS)
@sandboxed
def test_the_kernels_tunnels(shell: str, tmp_path: Path) -> None:
    """Modules, devices, rp_filter; packets of a tunnel reach the VIP; stop leaves what start found."""
    director = Host()
    ip(f"link add eth0 type veth peer name v0 netns {director.netns}")
    addressed("eth0", {4: "10.0.0.2", 6: "fd00::2"})
    with director:
        addressed("v0", {4: "10.0.0.1", 6: "fd00::1"})
    link_up("eth0", "v0", director)
    sysctl("ipv4/conf/all/rp_filter", 1)
    before = settings()
    script = Script("realserver", shell, tmp_path)
    start = ("start", "--mode", "tun", "--vip", VIP[4], "--vip", VIP[6])
    for _ in range(2):
        assert script.run(*start) == (0, "", "")
    status, said, wrong = script.run("status")
    assert (status, wrong, "NO" in said, "decap" in said) == (0, "", False, False)
    assert "  yes  device tunl0 is up\n" in said
    assert "  yes  device ip6tnl0 is up\n" in said
    assert "  yes  net/ipv4/conf/eth0/rp_filter = 1\n" in said, "others keep what `all` gave them"

    for family in (4, 6):
        with socket.socket(FAMILY[family], socket.SOCK_DGRAM) as server:
            server.bind((VIP[family], PORT))
            server.settimeout(60)
            client = {4: "203.0.113.9", 6: "2001:db8:c::9"}[
                family
            ]  # behind whom there is no route: filtered it would be
            head = IP(src=client, dst=VIP[4]) if family == 4 else IPv6(src=client, dst=VIP[6])
            packet = bytes(head / UDP(sport=5555, dport=PORT) / b"inside")
            with director, socket.socket(FAMILY[family], socket.SOCK_RAW, 4 if family == 4 else 41) as tunnel:
                tunnel.sendto(packet, ("10.0.0.2" if family == 4 else "fd00::2", 0))
            data, peer = server.recvfrom(100)
            assert (data, peer[0]) == (b"inside", client)
    assert script.run("stop") == (0, "", "")
    assert difference(before, settings()) == {}
