"""Who else has the VIP."""

from __future__ import annotations

import pytest
from support.machine import VIP, VIP6, Fault, Machine, check, directing, mac_of, of, real, service

from uvs.doctor.host import Asked
from uvs.doctor.segment import questions

DR = service(VIP, 80, real("dr", "192.0.2.11"), real("dr", "192.0.2.12"))
OUTSIDE, INSIDE = Asked("eth0", VIP), Asked("eth1.7", VIP)
FAULTS: list[Fault] = [
    ("a DR server", directing(DR, answers={OUTSIDE: [mac_of("192.0.2.12")]}),
     "VIP elsewhere", "fail", "server 192.0.2.12 (02:00:c0:00:02:0c) answers ARP for 192.0.2.100 on eth0",
     "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"),
    ("somebody", directing(DR, answers={INSIDE: ["02:00:00:00:00:99"]}),
     "VIP elsewhere", "fail", "02:00:00:00:00:99 answers ARP for 192.0.2.100 on eth1.7: another director",
     "ip addr del 192.0.2.100/32"),
    ("nobody", directing(DR), "VIP elsewhere", "ok", "nobody else", None),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_two_servers_are_two_findings_each_mended_there() -> None:
    both = [mac_of(a) for a in ("192.0.2.11", "192.0.2.12")]
    assert [f.on for f in of(directing(DR, answers={OUTSIDE: both}), "VIP elsewhere")] == [
        "192.0.2.11",
        "192.0.2.12",
    ]


@pytest.mark.parametrize(
    "machine",
    [
        directing(DR, answers=None),  # not allowed to ask
        directing(service(VIP6, 80, real("dr", "2001:db8:a::11"))),
        directing(service(mark=7)),
        Machine(),
    ],
)
def test_what_is_not_asked_is_not_told(machine: Machine) -> None:
    assert of(machine, "VIP elsewhere") == []


def test_whom_is_asked_for() -> None:
    """The VIP on each segment, servers on their own; not those behind a router, nor ourselves."""
    from uvs.doctor.host import Route

    machine = directing(
        service(VIP, 80, real("nat", "198.51.100.11"), real("nat", "203.0.113.9"), real("nat", "192.0.2.1")),
        service(VIP, 443, real("nat", "198.51.100.11")),
        routes={"203.0.113.9": Route(False, "eth0", "192.0.2.254", 1500, "192.0.2.1")},
    )
    assert questions(machine) == [OUTSIDE, INSIDE, Asked("eth1.7", "198.51.100.11")]


def test_thousands_are_not_asked_for() -> None:
    servers = [real("nat", f"198.51.100.{i}") for i in range(2, 250)]
    assert len(questions(directing(service(VIP, 80, *servers)))) == 64
