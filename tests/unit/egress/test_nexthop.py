"""The table of next hops, without a kernel."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest

from uvs.egress.netlink import LinkAnswer
from uvs.egress.nexthop import Row, Table, has_ethernet_header, has_no_neighbours, static_lladdr
from uvs.ipvs.route import Route

ETHER, LOOPBACK_TYPE, NONE, PPP, TUNNEL, IP6GRE, INFINIBAND = 1, 772, 0xFFFE, 512, 768, 823, 32
UP, LOOPBACK, POINTOPOINT, NOARP = 0x1, 0x8, 0x10, 0x80
MAC = bytes.fromhex("020000000001")


def row(table: Table, addr: str) -> Row:
    packed = ip_address(addr).packed
    af = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    new = Row(table.new_index(), af, packed, Route(0, False, 1500))
    table.add(new)
    return new


def test_no_index_comes_twice_and_slots_stay_small() -> None:
    table = Table(3)
    seen: list[int] = []
    for i in range(3000):
        if oldest := table.full():
            table.discard(oldest)
        seen.append(row(table, f"10.0.{i // 250}.{i % 250}").index)
    assert 0 not in seen
    assert len(set(seen)) == len(seen)
    assert {i & 0xFFFF for i in seen} == {1, 2, 3}
    assert len(table) == 3


def test_generations_wrap_within_32_bits_and_avoid_0() -> None:
    table = Table(1)
    only = row(table, "10.0.0.1")
    table.discard(only)
    table._free[0] = 0xFFFF0001  # as after 65535 uses
    last = row(table, "10.0.0.1")
    table.discard(last)
    assert (last.index, row(table, "10.0.0.1").index) == (0xFFFF0001, 1)


def test_the_oldest_row_gives_way_and_discarding_twice_is_harmless() -> None:
    table = Table(2)
    first, second = row(table, "10.0.0.1"), row(table, "10.0.0.2")
    assert table.full() is first
    table.discard(first)
    table.discard(first)
    assert table.full() is None
    assert (table.by_addr(first.addr), table.by_addr(second.addr)) == (None, second)


@pytest.mark.parametrize("limit", [0, 1 << 16])
def test_limits_that_slots_cannot_hold(limit: int) -> None:
    with pytest.raises(ValueError, match=f"limit {limit} "):
        Table(limit)


@pytest.mark.parametrize(
    ("prefix", "inside"),
    [
        ("0.0.0.0/0", ["10.0.0.1", "10.0.0.130", "192.0.2.1"]),
        ("10.0.0.0/24", ["10.0.0.1", "10.0.0.130"]),
        ("10.0.0.128/25", ["10.0.0.130"]),
        ("192.0.2.1/32", ["192.0.2.1"]),
        ("192.0.2.0/32", []),
        ("::/0", ["fd00::1", "::1"]),
        ("fd00::/64", ["fd00::1"]),
        ("::1/128", ["::1"]),
    ],
)
def test_rows_within_a_prefix(prefix: str, inside: list[str]) -> None:
    table = Table(10)
    for addr in ("10.0.0.1", "10.0.0.130", "192.0.2.1", "fd00::1", "::1"):
        row(table, addr)
    net = ip_network(prefix)
    af = socket.AF_INET if net.version == 4 else socket.AF_INET6
    found = table.within(af, net.network_address.packed, net.prefixlen)
    assert [str(ip_address(r.addr)) for r in found] == inside


@pytest.mark.parametrize(
    ("what", "kind", "flags", "lladdr", "ethernet", "no_neighbours", "static"),
    [
        ("Ethernet, veth, bridge, VLAN", ETHER, UP, MAC, True, False, None),
        ("dummy, `arp off`", ETHER, UP | NOARP, MAC, True, True, MAC),
        ("Ethernet between two", ETHER, UP | POINTOPOINT, MAC, True, True, b"\xff" * 6),
        ("lo", LOOPBACK_TYPE, UP | LOOPBACK, bytes(6), True, False, bytes(6)),
        ("tun, WireGuard", NONE, UP | POINTOPOINT | NOARP, b"", False, True, b""),
        ("ppp", PPP, UP | POINTOPOINT | NOARP, b"", False, True, b""),
        ("ipip", TUNNEL, UP | NOARP, bytes([10, 0, 0, 1]), False, True, bytes([10, 0, 0, 1])),
        ("ip6gre", IP6GRE, UP | POINTOPOINT | NOARP, bytes(16), False, True, bytes(16)),
        (
            "InfiniBand: its neighbours are resolved, but not by Ethernet headers",
            INFINIBAND,
            UP,
            bytes(20),
            False,
            False,
            None,
        ),
    ],
)
def test_kinds_of_devices(
    what: str, kind: int, flags: int, lladdr: bytes, ethernet: bool, no_neighbours: bool, static: bytes | None
) -> None:
    link = LinkAnswer(1, "x", kind, "", flags, 1500, 0, lladdr)
    assert (has_ethernet_header(link), has_no_neighbours(link), static_lladdr(link)) == (
        ethernet,
        no_neighbours,
        static,
    )
