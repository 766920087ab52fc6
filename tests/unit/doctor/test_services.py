"""Virtual services whose packets cannot come, or that have no server for them."""

from __future__ import annotations

import pytest
from support.machine import (
    ADDRESSES,
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
)

from uvs.doctor.host import Address, Route

SERVER = real("nat", "198.51.100.11")
DR = real("dr", "192.0.2.11")
AWAY = Route(False, "eth0", None, 1500, "192.0.2.1")
ON_LO = [a for a in ADDRESSES if a.address not in (VIP, VIP6)]
SILENT = GOOD_FILES | {"/proc/sys/net/ipv4/conf/all/arp_ignore": "1"}
# /proc/net/tcp: 192.0.2.100:80 and 0.0.0.0:22 listen, a connection of port 81
TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue
   0: 640200C0:0050 00000000:0000 0A 00000000:00000000
   1: 00000000:0016 00000000:0000 0A 00000000:00000000
   2: 640200C0:0051 020200C0:8000 01 00000000:00000000"""
TCP6 = """\
  sl  local_address rem_address st
   0: B80D0120000000000000000000010000:0050 00000000000000000000000000000000:0000 0A 0
   1: 00000000000000000000000000000000:1F90 00000000000000000000000000000000:0000 0A 0"""
UDP = "  sl local_address rem_address st\n   0: 00000000:0035 00000000:0000 07 0\n   1: 640200C0:0036 020200C0:0001 01 0"
HEARD = GOOD_FILES | {"/proc/net/tcp": TCP, "/proc/net/tcp6": TCP6, "/proc/net/udp": UDP}


def listening(port: int, address: str = VIP, protocol: int = 6, *more: object) -> Machine:
    return directing(service(address, port, *(more or (SERVER,)), protocol=protocol), files=HEARD)  # type: ignore[arg-type]


FAULTS: list[Fault] = [
    ("a VIP of this host", directing(service(VIP, 80, SERVER)), "VIP", "ok", VIP, None),
    ("a VIP of nobody", directing(service("192.0.2.7", 80, SERVER), routes={"192.0.2.7": AWAY}),
     "VIP", "fail", "192.0.2.7 is no address of this host", "ip addr add 192.0.2.7/32 dev eth0"),
    ("a VIP without a route", directing(service("2001:db8:b::7", 80, SERVER), routes={"2001:db8:b::7": None}),
     "VIP", "fail", "2001:db8:b::7", "ip addr add 2001:db8:b::7/128 dev eth1.7"),
    ("a VIP of no network of ours", directing(service("203.0.113.7", 80, SERVER), routes={"203.0.113.7": None}),
     "VIP", "fail", "203.0.113.7", "ip addr add 203.0.113.7/32 dev eth0"),
    ("a VIP on lo that is silent", directing(service(VIP, 80, SERVER), own=[*ON_LO, Address("lo", VIP, 32)], files=SILENT),
     "VIP on lo", "warn", "arp_ignore on eth0, eth1.7",
     "ip addr add 192.0.2.100/32 dev eth0; ip addr del 192.0.2.100/32 dev lo"),
    ("a VIP on lo that is told", directing(service(VIP, 80, SERVER), own=[*ON_LO, Address("lo", VIP, 32)]),
     "VIP on lo", "ok", "", None),
    ("a silent VIP on a device", directing(service(VIP, 80, SERVER), files=SILENT), "VIP on lo", "ok", "", None),
    ("an IPv6 VIP on lo", directing(service(VIP6, 80, SERVER), own=[*ON_LO, Address("lo", VIP6, 128)]),
     "VIP on lo", "warn", VIP6, f"ip addr add {VIP6}/128 dev eth0 nodad"),
    ("no server", directing(service()), "no server", "warn", "TCP 192.0.2.100:80", "uvsadm -a -t 192.0.2.100:80"),
    ("no server, by mark", directing(service(mark=7)), "no server", "warn", "FWM 7", "uvsadm -a -f 7"),
    ("servers", directing(service(VIP, 80, SERVER)), "no server", "ok", "every", None),
    ("weight 0", directing(service(VIP6, 80, real("tun", "2001:db8:b::11", weight=0))),
     "weight 0", "warn", "TCP [2001:db8:a::100]:80", "uvsadm -e -t [2001:db8:a::100]:80 -r [2001:db8:b::11]:80 -i -w 1"),
    ("weight 0 of one", directing(service(VIP, 80, SERVER, real("nat", "198.51.100.12", weight=0))),
     "weight 0", "ok", "", None),
    ("above the threshold", directing(service(VIP, 80, real("nat", "198.51.100.11", threshold=5, conns=5))),
     "overload", "warn", "TCP 192.0.2.100:80: every server", "-x N"),
    ("one above it", directing(service(VIP, 80, SERVER, real("nat", "198.51.100.12", threshold=5, conns=6))),
     "overload", "note", "198.51.100.12:80: above", "-x N"),
    ("below it", directing(service(VIP, 80, real("nat", "198.51.100.11", threshold=5, conns=4))),
     "overload", "ok", "", None),
    ("a program at the VIP", listening(80), "port in use", "note", "listens on TCP 192.0.2.100:80", "ss -lnp"),
    ("a program everywhere", listening(22), "port in use", "note", "TCP 192.0.2.100:22", "ss -lnp"),
    ("a program everywhere in both families", listening(8080), "port in use", "note", ":8080", "ss -lnp"),
    ("a program, IPv6", listening(80, VIP6), "port in use", "ok", "no program", None),
    ("a program, IPv6 everywhere", listening(8080, VIP6), "port in use", "note", ":8080", "ss -lnp"),
    ("a program, UDP", listening(53, VIP, 17), "port in use", "note", "UDP 192.0.2.100:53", "ss -lnp"),
    ("a connection only", listening(81), "port in use", "ok", "", None),
    ("a connection only, UDP", listening(54, VIP, 17), "port in use", "ok", "", None),
    ("a program that is the server", listening(80, VIP, 6, real("nat", "192.0.2.1")), "port in use", "ok", "", None),
    ("DR to another port", directing(service(VIP, 80, real("dr", "192.0.2.11", 8080))),
     "server's port", "warn", "192.0.2.11:8080 of TCP 192.0.2.100:80", "-m"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_servers_of_all_ports_and_of_marks_have_no_wrong_port() -> None:
    machine = directing(
        service(VIP, 0, real("dr", "192.0.2.11", 0)), service(VIP, 80, DR), service(VIP, 0, DR, mark=7)
    )
    assert of(machine, "server's port") == []


def test_a_thousand_services_are_one_line() -> None:
    machine = directing(*(service(VIP, port) for port in range(1, 1001)))
    (finding,) = of(machine, "no server")
    assert "TCP 192.0.2.100:4 and 996 more" in finding.detail
