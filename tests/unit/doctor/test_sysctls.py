"""Sysctls of the host that are wrong for a director."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machine import (
    GOOD_FILES,
    VIP,
    VIP6,
    Fault,
    Machine,
    check,
    directing,
    of,
    real,
    service,
    with_files,
)

NAT = service(VIP, 80, real("nat", "198.51.100.11"))
NAT6 = service(VIP6, 80, real("nat", "2001:db8:b::11"))
DR = service(VIP, 80, real("dr", "192.0.2.11"))


def knobs(machine: Machine, **changes: str) -> Machine:
    """The same machine with other sysctls."""
    return replace(machine, files=with_files(**changes).files)


FAULTS: list[Fault] = [
    ("no forwarding", with_files(net__ipv4__ip_forward="0"),
     "IPv4 forwarding", "warn", "net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1"),
    ("no IPv6 forwarding", with_files(net__ipv6__conf__all__forwarding="0"),
     "IPv6 forwarding", "warn", "is 0", "sysctl -w net.ipv6.conf.all.forwarding=1"),
    ("rp_filter of one device", with_files(**{"net__ipv4__conf__eth1.7__rp_filter": "1"}),
     "rp_filter", "warn", "strict on eth1.7:", "sysctl -w net.ipv4.conf.eth1/7.rp_filter=2"),
    ("rp_filter everywhere", with_files(net__ipv4__conf__all__rp_filter="1"),
     "rp_filter", "warn", "strict on eth1.7:",
     "net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.eth1/7.rp_filter=2"),
    ("accept_local", with_files(net__ipv4__conf__all__accept_local="0"),
     "accept_local", "note", "own DR or TUN", "sysctl -w net.ipv4.conf.all.accept_local=1"),
    ("NAT without forwarding", knobs(directing(NAT), net__ipv4__ip_forward="0"),
     "IPv4 forwarding", "fail", "NAT servers (198.51.100.11) reach no client", "sysctl -w net.ipv4.ip_forward=1"),
    ("NAT without forwarding, IPv6", knobs(directing(NAT6), net__ipv6__conf__all__forwarding="0"),
     "IPv6 forwarding", "fail", "NAT servers (2001:db8:b::11)", "sysctl -w net.ipv6.conf.all.forwarding=1"),
    ("DR without forwarding", knobs(directing(DR), net__ipv4__ip_forward="0"),
     "IPv4 forwarding", "ok", "no NAT server needs it", None),
    ("accept_local for DR", knobs(directing(DR), net__ipv4__conf__all__accept_local="0"),
     "accept_local", "note", "own DR or TUN", "sysctl -w net.ipv4.conf.all.accept_local=1"),
    ("accept_local for NAT", knobs(directing(NAT), net__ipv4__conf__all__accept_local="0"),
     "accept_local", "ok", "no DR or TUN service needs it", None),
    ("one segment for clients and NAT servers", directing(service(VIP, 80, real("nat", "192.0.2.11"))),
     "send_redirects", "warn", "share eth0",
     "sysctl -w net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.eth0.send_redirects=0"),
    ("the same, silent", knobs(
        directing(service(VIP, 80, real("nat", "192.0.2.11"))), net__ipv4__conf__all__send_redirects="0"),
     "send_redirects", "ok", "no server", None),
    ("two segments", directing(NAT), "send_redirects", "ok", "no server", None),
    ("a loopback address as server", directing(service(VIP, 80, real("nat", "127.0.0.1"))),
     "route_localnet", "warn", "127.0.0.1", "sysctl -w net.ipv4.conf.all.route_localnet=1"),
    ("the same, allowed", knobs(
        directing(service(VIP, 80, real("nat", "127.0.0.1"))), net__ipv4__conf__all__route_localnet="1"),
     "route_localnet", "ok", "is 1", None),
    ("a bridge", Machine(files=GOOD_FILES | {
        "/sys/class/net/br0/bridge/bridge_id": "8000", "/proc/sys/net/bridge/bridge-nf-call-iptables": "1"}),
     "bridge netfilter", "warn", "what br0 only passes on", "sysctl -w net.bridge.bridge-nf-call-iptables=0"),
    ("br_netfilter without a bridge", Machine(files=GOOD_FILES | {
        "/proc/sys/net/bridge/bridge-nf-call-iptables": "1"}),
     "bridge netfilter", "ok", "no bridge", None),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_a_machine_without_ipv6_is_no_fault() -> None:
    machine = Machine()
    del machine.files["/proc/sys/net/ipv6/conf/all/forwarding"]
    assert [f.state for f in of(machine, "IPv6 forwarding")] == ["note"]


def test_accept_local_of_every_device_is_enough() -> None:
    """The kernel takes either (IN_DEV_ACCEPT_LOCAL)."""
    each = {f"/proc/sys/net/ipv4/conf/{device}/accept_local": "1" for device in ("eth0", "eth1.7")}
    for files, state in ((each, "ok"), (dict([*each.items()][:1]), "note")):
        machine = Machine(files=GOOD_FILES | {"/proc/sys/net/ipv4/conf/all/accept_local": "0"} | files)
        assert [f.state for f in of(machine, "accept_local")] == [state]
