"""Real servers: the way there, the way back, what they answer."""

from __future__ import annotations

import socket

import pytest
from support.machine import (
    VIP,
    VIP6,
    Fault,
    Machine,
    check,
    conn,
    directing,
    of,
    real,
    service,
)

from uvs.doctor.host import Asked, Route

RS1, RS2 = "198.51.100.11", "198.51.100.12"
ROUTED = Route(False, "eth0", "192.0.2.254", 1500, "192.0.2.1")
SENT = (9, 0)  # packets that went there; none came back


def nat(*addresses: str, **more: object) -> Machine:
    """NAT servers that got packets and gave none back."""
    return directing(service(VIP, 80, *(real("nat", a, packets=SENT) for a in addresses)), **more)


def one(method: str, address: str, vip: str = VIP, **more: object) -> Machine:
    return directing(service(vip, 80, real(method, address)), **more)


def narrow(mtu: int, **tunnel: int) -> Machine:
    """A tunnel on a route of that MTU."""
    return directing(
        service(VIP, 80, real("tun", RS1, **tunnel)),
        routes={RS1: Route(False, "eth1.7", None, mtu, "198.51.100.1")},
    )


FAULTS: list[Fault] = [
    ("no route", one("nat", "203.0.113.9", routes={"203.0.113.9": None}),
     "way to servers", "fail", "no route to server 203.0.113.9", "ip route add 203.0.113.9 via GATEWAY"),
    ("mute", one("nat", RS1, answers={Asked("eth1.7", RS1): []}),
     "way to servers", "warn", f"server {RS1} does not answer ARP", f"uvsadm -d -t {VIP}:80 -r {RS1}:80"),
    ("mute, IPv6", one("nat", "2001:db8:b::11", VIP6, unanswered={"2001:db8:b::11": "2001:db8:b::11 does not answer ND"}),
     "way to servers", "warn", "does not answer neighbour discovery", "uvsadm -d -t [2001:db8:a::100]:80"),
    ("all answer", nat(RS1), "way to servers", "ok", "", None),
    ("who is asked nothing", one("nat", RS1, answers=None, unanswered=None), "way to servers", "ok", "", None),
    ("DR behind a router", one("dr", "203.0.113.9", routes={"203.0.113.9": ROUTED}),
     "DR off link", "fail", "server 203.0.113.9 is behind a router", f"uvsadm -e -t {VIP}:80 -r 203.0.113.9:80 -i -w 1"),
    ("DR on the link", one("dr", "192.0.2.11"), "DR off link", "ok", "", None),
    ("replies that go elsewhere", nat(RS1, conns=[conn("192.0.2.2", RS1)]),
     "NAT replies", "fail", f"9 packets went to server {RS1}, none came back through this host, 1 connections wait",
     "ip route replace default via 198.51.100.1"),
    ("replies that come", directing(service(VIP, 80, real("nat", RS1, packets=(9, 8))), conns=[conn("192.0.2.2", RS1)]),
     "NAT replies", "ok", "", None),
    ("nobody waits", nat(RS1, conns=[conn("192.0.2.2", RS1, "ESTABLISHED")]), "NAT replies", "ok", "", None),
    ("it does not answer us either", nat(RS1, conns=[conn("192.0.2.2", RS1)], unanswered={RS1: "no answer"}),
     "NAT replies", "ok", "", None),
    ("a client beside it", nat(RS1, conns=[conn(RS2, RS1), conn(RS2, RS1)]),
     "client beside servers", "fail", f"{RS2}, client of server {RS1}, is on its own network",
     f"ip route replace {RS2} via 198.51.100.1"),
    ("a client beside it, IPv6", directing(
        service(VIP6, 80, real("nat", "2001:db8:b::11")), conns=[conn("2001:db8:b::9", "2001:db8:b::11", vip=VIP6)] * 2),
     "client beside servers", "fail", "2001:db8:b::9", "ip -6 route replace 2001:db8:b::9 via 2001:db8:b::1"),
    ("this host as client", nat(RS1, conns=[conn("198.51.100.1", RS1)]), "client beside servers", "ok", "", None),
    ("a client beside it, just now", nat(RS1, conns=[conn(RS2, RS1)]), "client beside servers", "ok", "", None),
    ("a client beside it that is answered", nat(RS1, conns=[conn(RS2, RS1)] * 2 + [conn(RS2, RS1, "ESTABLISHED")]),
     "client beside servers", "ok", "", None),
    ("clients elsewhere", nat(RS1, conns=[conn("192.0.2.2", RS1)]), "client beside servers", "ok", "", None),
    ("a DR server without the VIP", one("dr", "192.0.2.11", unanswered={"192.0.2.11": "no answer"}),
     "silent server", "fail", "server 192.0.2.11 of TCP 192.0.2.100:80, by a SYN as direct routing sends it: no answer",
     "ip addr add 192.0.2.100/32 dev lo"),
    ("the same, IPv6", one("dr", "2001:db8:a::11", VIP6, unanswered={"2001:db8:a::11": "no answer"}),
     "silent server", "fail", "the VIP is not on its lo", f"ip addr add {VIP6}/128 dev lo"),
    ("a TUN server", one("tun", RS1, unanswered={RS1: "no answer"}),
     "silent server", "fail", "or the tunnel has no end there", "arp_announce=2; ip addr add 192.0.2.100/32 dev lo"),
    ("nothing listens", one("dr", "192.0.2.11", unanswered={"192.0.2.11": "connection refused"}),
     "silent server", "warn", "nothing listens at 192.0.2.100:80", "start the program"),
    ("nothing listens, NAT", one("nat", RS1, unanswered={RS1: "connection refused"}),
     "silent server", "warn", f"nothing listens at {RS1}:80", "start the program"),
    ("stuck connections", one("dr", "192.0.2.11", unanswered=None, conns=[conn("192.0.2.2", "192.0.2.11")] * 2),
     "silent server", "fail", "all its 2 connections are half open", "dev lo"),
    ("all answer a SYN", one("dr", "192.0.2.11"), "silent server", "ok", "1 SYNs", None),
    ("room", narrow(1500), "tunnel MTU", "ok", "room for 1480 bytes", None),
    ("room in gre with checksum", directing(
        service(VIP, 80, real("tun", RS1, tun_type=2)), routes={RS1: Route(False, "eth0", None, 1500, "")}),
     "tunnel MTU", "ok", "room for 1476 bytes", None),
    ("too narrow", narrow(590), "tunnel MTU", "fail", "room for 570 bytes, every IPv4 link must have 576",
     "ip link set dev eth1.7 mtu 1500"),
    ("too narrow for IPv6", directing(
        service(VIP6, 80, real("tun", RS1)), routes={RS1: Route(False, "eth0", None, 1299, "")}),
     "tunnel MTU", "fail", "room for 1279 bytes, every IPv6 link must have 1280", "ip link set dev eth0 mtu 1500"),
    ("refused packets", directing(service(VIP, 80, real("tun", RS1)), reasons={"too_big": 5}),
     "tunnel MTU", "note", "5 packets were larger than their way", "advmss 1440"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("silent server", one("dr", "192.0.2.11", unanswered=None)),  # not allowed, and nothing is known
        (
            "silent server",
            one("dr", "192.0.2.11", unanswered={"192.0.2.11": "192.0.2.11 does not answer ARP"}),
        ),
        ("silent server", directing(service(VIP, 53, real("dr", "192.0.2.11"), protocol=17))),
        ("silent server", directing(service(VIP, 80, real("dr", "192.0.2.11", weight=0)))),
        ("silent server", one("nat", "192.0.2.1")),  # this host
        ("NAT replies", one("dr", "192.0.2.11")),
        ("tunnel MTU", one("dr", "192.0.2.11")),
        ("DR off link", one("nat", RS1)),
        ("way to servers", Machine()),
    ],
)
def test_what_is_not_known_or_does_not_matter(name: str, machine: Machine) -> None:
    assert [f for f in of(machine, name) if f.state != "ok"] == []


def test_connections_that_are_stuck_and_others() -> None:
    conns = [conn("192.0.2.2", "192.0.2.11"), conn("192.0.2.2", "192.0.2.11", "ESTABLISHED")]
    assert of(one("dr", "192.0.2.11", unanswered=None, conns=conns), "silent server") == []


def test_servers_that_are_asked_are_not_all_of_thousands() -> None:
    asked = []

    class Counting(Machine):
        def knock(self, knocks):  # type: ignore[no-untyped-def]
            asked.extend(knocks)
            return {}

    servers = [real("dr", socket.inet_ntoa(bytes([10, 0, i // 250, i % 250 + 1]))) for i in range(1000)]
    machine = directing(service(VIP, 80, *servers))
    of(Counting(told=machine.told), "silent server")
    assert len(set(asked)) == 32
