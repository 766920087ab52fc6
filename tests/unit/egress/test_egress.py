"""Egress against a kernel on paper: what it asks, what waits, what is counted."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from support.paper_kernel import (
    ETH0,
    ETH1,
    INET,
    INET6,
    MAC,
    OTHER,
    OWN,
    SECOND,
    SERVER,
    World,
    a,
    direct,
    link,
    neighbour,
)

from uvs.egress import egress, netlink
from uvs.egress.netlink import (
    AnyChange,
    Event,
    LinkChange,
    PrefixChange,
)
from uvs.egress.nexthop import Table
from uvs.engine.core import Why
from uvs.ipvs.route import Route


@pytest.fixture(name="world")
def _world() -> World:
    return World()


def test_a_known_address_is_not_asked_for_again(world: World) -> None:
    first = world.find()
    assert first == Route(first.index, False, 1500, a("10.0.0.1"))
    assert [world.find(), world.egress.find(INET, SERVER), world.egress.at(first.index)] == [first] * 3
    assert world.asked == [("route", SERVER)]
    assert world.egress.at(0) is None


def test_no_route_is_believed_for_a_second_or_until_news(world: World) -> None:
    def asks() -> int:
        world.asked.clear()
        assert world.egress.find(INET, a("192.0.2.1")) is None
        return len(world.asked)

    assert (asks(), asks()) == (1, 0)
    world.happens(PrefixChange(INET, a("198.51.100.0"), 24))
    assert (asks(), asks()) == (1, 0)
    world.egress.tick(10 * SECOND)
    world.egress.tick(11 * SECOND)
    assert (asks(), asks()) == (1, 0)


def test_what_is_for_this_host_goes_round_by_the_loopback_device(world: World) -> None:
    world.routes[a("10.0.0.1")] = direct(1, type=netlink.RTN_LOCAL)
    world.links[1] = link(1, mtu=65536)
    route = world.find(a("10.0.0.1"))
    assert (route.local, route.mtu) == (True, 65535)
    world.egress.send(route.index, b"x")
    assert (world.sent, world.told, world.why) == ([], [(INET, a("10.0.0.1"), b"x")], [])
    world.error = errno.EPERM
    world.egress.send(route.index, b"x")
    assert world.why == [Why.SEND]


def test_a_state_of_doubt_is_used_and_asked_about_once_a_second(world: World) -> None:
    for state in (netlink.NUD_STALE, netlink.NUD_DELAY, netlink.NUD_PROBE):
        world.known(neighbour(state))
        world.happens(neighbour(state))
        index = world.find().index
        world.asked.clear()
        for tick in range(21):
            world.egress.tick(100 * SECOND * state + tick * SECOND // 10)
            world.egress.send(index, b"x")
        assert world.uses() == 3, f"state {state:#x}: at the start, after one and after two seconds"
        world.egress.tick(100 * SECOND * state + 5 * SECOND)
    assert len(world.sent) == 63
    for state in (netlink.NUD_REACHABLE, netlink.NUD_PERMANENT, netlink.NUD_NOARP):
        world.happens(neighbour(state))
        world.asked.clear()
        world.egress.send(index, b"x")
        assert world.uses() == 0


def test_an_unresolved_neighbour_is_asked_for_once_and_then_gets_everything_in_order(world: World) -> None:
    index = world.find().index
    for data in (b"1", b"2", b"3"):
        world.egress.send(index, data)
    assert (world.sent, world.uses()) == ([], 1)
    world.happens(neighbour(netlink.NUD_INCOMPLETE, b""))
    assert world.sent == []
    world.happens(neighbour(netlink.NUD_REACHABLE))
    assert world.sent == [(ETH0, MAC, b"1"), (ETH0, MAC, b"2"), (ETH0, MAC, b"3")]
    assert world.why == []


def test_a_kernel_that_never_says_failed(world: World) -> None:
    index = world.find().index
    world.egress.send(index, b"x")
    for tick in range(30):
        world.egress.tick(50 * SECOND + tick * SECOND // 10)
    assert world.unreachable == []
    world.egress.tick(53 * SECOND)
    assert (world.unreachable, world.why) == ([b"x"], [Why.NO_NEIGHBOUR])
    assert world.uses() == 4, "asked again every second"


def test_an_entry_deleted_while_packets_wait_is_asked_for_again(world: World) -> None:
    index = world.find().index
    world.egress.send(index, b"x")
    world.happens(neighbour(0, b""))
    assert (world.uses(), world.unreachable) == (2, [])


def test_256_packets_wait_in_all(world: World) -> None:
    addresses = [bytes([10, 0, 1, i]) for i in range(20)]
    for addr in addresses:
        world.routes[addr] = direct()
        for _ in range(16):
            world.egress.send(world.find(addr).index, addr)
    assert world.why == [Why.NO_NEIGHBOUR] * (20 * 16 - 256)
    assert world.egress.unresolved() == (256, 256)
    world.happens(*(neighbour(netlink.NUD_REACHABLE, MAC, addr) for addr in addresses))
    assert [data for _, _, data in world.sent] == [addr for addr in addresses[:16] for _ in range(16)]
    for addr in addresses[16:]:  # there is room again
        world.happens(neighbour(0, b"", addr))
        world.egress.send(world.find(addr).index, addr)
    assert len(world.why) == 20 * 16 - 256
    assert world.egress.unresolved() == (4, 260)


def test_what_is_told_of_an_unreachable_packet_may_send(world: World) -> None:
    client = a("10.0.0.9")
    world.routes[client] = direct()
    world.known(neighbour(netlink.NUD_REACHABLE, OTHER, client))
    index = world.find().index
    world.on_unreachable = lambda data: world.egress.send(world.find(client).index, b"ICMP about " + data)
    world.egress.send(index, b"1")
    world.egress.send(index, b"2")
    world.happens(neighbour(netlink.NUD_FAILED, b""))
    assert world.sent == [(ETH0, OTHER, b"ICMP about 1"), (ETH0, OTHER, b"ICMP about 2")]


def test_two_addresses_by_one_gateway_share_its_neighbour(world: World) -> None:
    gateway = a("10.0.0.254")
    for addr in (a("192.0.2.1"), a("192.0.2.2")):
        world.routes[addr] = direct(gateway=(INET, gateway), mtu=1400 if addr[3] == 1 else 0)
    one, two = world.find(a("192.0.2.1")), world.find(a("192.0.2.2"))
    assert (one.mtu, two.mtu) == (1400, 1500)
    world.egress.send(one.index, b"1")
    world.egress.send(two.index, b"2")
    assert world.uses() == 1
    world.happens(neighbour(netlink.NUD_REACHABLE, OTHER, gateway))
    assert world.sent == [(ETH0, OTHER, b"1"), (ETH0, OTHER, b"2")]


@pytest.mark.parametrize(
    "event",
    [
        PrefixChange(INET, a("10.0.0.0"), 24),
        PrefixChange(INET, bytes(4), 0),
        AnyChange(),
        LinkChange(ETH0),
        link(ETH0, mtu=1400),
        None,
    ],
)
def test_what_makes_a_row_be_read_again(world: World, event: Event | None) -> None:
    index = world.find().index
    world.egress.send(index, b"waits")
    world.routes[SERVER] = direct(ETH1, mtu=1300)
    world.known(neighbour(netlink.NUD_REACHABLE, OTHER, ifindex=ETH1))
    world.happens(event)
    assert world.egress.at(index) == world.find() == Route(index, False, 1300, a("10.0.0.1"))
    assert world.sent == [(ETH1, OTHER, b"waits")], "by the new way"


@pytest.mark.parametrize(
    "event",
    [
        PrefixChange(INET, a("10.0.1.0"), 24),
        PrefixChange(INET6, bytes(16), 0),
        link(ETH0),
        link(9),
        LinkChange(9),
    ],
)
def test_what_does_not(world: World, event: Event) -> None:
    world.find()
    world.asked.clear()
    world.happens(event)
    assert world.asked == []


def test_a_row_without_a_route_is_invalid_and_what_waited_is_counted(world: World) -> None:
    index = world.find().index
    world.egress.send(index, b"x")
    del world.routes[SERVER]
    world.happens(PrefixChange(INET, SERVER, 32))
    assert (world.egress.at(index), world.egress.find(INET, SERVER)) == (None, None)
    world.egress.send(index, b"y")
    assert (world.why, world.unreachable) == ([Why.NO_ROUTE, Why.NO_ROUTE], [])
    world.routes[SERVER] = direct()
    world.happens(AnyChange())
    assert world.find().index != index


def test_lost_events_read_neighbours_again_too(world: World) -> None:
    world.known(neighbour(netlink.NUD_REACHABLE))
    index = world.find().index
    world.known(neighbour(netlink.NUD_REACHABLE, OTHER))
    world.happens(None)
    world.egress.send(index, b"x")
    assert world.sent == [(ETH0, OTHER, b"x")]


def test_reading_again_keeps_to_its_budget(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(egress, "REFRESH_BUDGET", -1)
    addresses = [bytes([10, 0, 1, i]) for i in range(5)]
    for addr in addresses:
        world.routes[addr] = direct()
        world.find(addr)
    world.asked.clear()
    world.happens(AnyChange())
    read = [len(world.asked)]
    for tick in range(6):
        world.egress.tick(tick)
        read.append(len(world.asked))
    assert read == [1, 2, 3, 4, 5, 5, 5]


@pytest.mark.parametrize(
    ("error", "why", "asks_again"),
    [
        (errno.ENOBUFS, Why.SEND, False),
        (errno.EAGAIN, Why.SEND, False),
        (errno.EMSGSIZE, Why.SEND, True),
        (errno.ENETDOWN, Why.NO_ROUTE, True),
        (errno.ENXIO, Why.NO_ROUTE, True),
        (errno.ENODEV, Why.NO_ROUTE, True),
    ],
)
def test_errors_of_sending_are_counted_and_the_packet_dropped(
    world: World, error: int, why: Why, asks_again: bool
) -> None:
    world.known(neighbour(netlink.NUD_REACHABLE))
    index = world.find().index
    world.error = error
    world.egress.send(index, b"x")
    assert world.why == [why]
    world.asked.clear()
    world.egress.tick(SECOND)
    assert (world.asked == [("route", SERVER)]) is asks_again


@pytest.mark.parametrize(
    ("packet", "parts", "why"),
    [
        (IP(dst="10.0.0.2", flags="DF") / UDP() / Raw(bytes(3000)), [1500, 1500, 68], []),
        (IP(dst="10.0.0.2") / UDP() / Raw(bytes(1472)), [1500], []),
        (IPv6(dst="fd00::2") / UDP() / Raw(bytes(3000)), [1496, 1496, 160], []),
        (Raw(b"\0" * 1501), [], [Why.MALFORMED]),
    ],
)
def test_larger_than_the_mtu(world: World, packet: Any, parts: list[int], why: list[Why]) -> None:
    for addr in (SERVER, a("fd00::2")):
        world.routes[addr] = direct()
        world.known(neighbour(netlink.NUD_REACHABLE, addr=addr))
    world.egress.send(world.find(a("fd00::2") if isinstance(packet, IPv6) else SERVER).index, bytes(packet))
    assert ([len(data) for _, _, data in world.sent], world.why) == (parts, why)


def test_a_failing_fragment_ends_the_packet(world: World) -> None:
    world.known(neighbour(netlink.NUD_REACHABLE))
    index = world.find().index
    world.error = errno.ENOBUFS
    world.egress.send(index, bytes(IP(dst="10.0.0.2") / UDP() / Raw(bytes(9000))))
    assert world.why == [Why.SEND]


@pytest.mark.parametrize(
    ("addr", "told", "mtu"),
    [
        (SERVER, 1400, 1400),
        (SERVER, 100, 552),
        (SERVER, 1600, 1500),
        (a("fd00::2"), 1300, 1300),
        (a("fd00::2"), 600, 1280),
    ],
)
def test_a_learned_path_mtu_is_kept_for_ten_minutes(world: World, addr: bytes, told: int, mtu: int) -> None:
    world.routes[a("fd00::2")] = direct(saddr=a("fd00::1"))
    index = world.find(addr).index
    world.egress.update_pmtu(INET if len(addr) == 4 else INET6, addr, told)
    for at, want in ((0, mtu), (1, mtu), (599, mtu), (602, 1500)):
        world.egress.tick(at * SECOND)
        assert (route := world.egress.at(index))
        assert route.mtu == want, f"after {at} s"


def test_a_path_mtu_told_again_is_kept_longer(world: World) -> None:
    """And a route says that its MTU was learnt; the MTU of its device is no path MTU."""
    index = world.find().index

    def route(at: int) -> tuple[int, bool]:
        world.egress.tick(at * SECOND)
        now = world.egress.at(index)
        assert now is not None
        return now.mtu, now.learned

    world.egress.update_pmtu(INET, SERVER, 1500)
    assert route(0) == (1500, False)
    world.egress.update_pmtu(INET, SERVER, 1400)
    assert route(0) == (1400, True)
    assert route(500) == (1400, True)
    world.egress.update_pmtu(INET, SERVER, 1400)
    assert route(501) == route(1100) == (1400, True)
    assert route(1102) == (1500, False)


def test_ipv6_has_an_mtu_of_its_own(world: World) -> None:
    world.links[ETH0] = link(ETH0, mtu6=1400)
    world.routes[a("fd00::2")] = direct(saddr=a("fd00::1"))
    assert (world.find(SERVER).mtu, world.find(a("fd00::2")).mtu) == (1500, 1400)


def test_a_device_that_resolves_nothing_is_sent_to_by_its_own_address(world: World) -> None:
    world.links[ETH0] = link(ETH0, flags=0x1 | 0x80)
    world.egress.send(world.find().index, b"x")
    assert (world.sent, world.uses()) == ([(ETH0, OWN, b"x")], 0)
    world.happens(neighbour(netlink.NUD_PERMANENT, OTHER))
    world.egress.send(world.find().index, b"x")
    assert world.sent[1] == (ETH0, OTHER, b"x"), "unless the table says otherwise"


def test_an_unknown_link_layer_is_refused_and_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.links[ETH0] = link(ETH0, type=32, lladdr=bytes(20))
    with caplog.at_level(logging.WARNING):
        assert world.egress.find(INET, SERVER) is None
        world.happens(AnyChange())
        assert world.egress.find(INET, SERVER) is None
    assert caplog.messages == ["eth0: link-layer type 32 is not supported: nothing is sent there"]


def test_when_the_table_is_full_the_oldest_address_goes(world: World) -> None:
    world.egress._table = Table(2)
    world.egress._rows = world.egress._table.rows
    addresses = [bytes([10, 0, 1, i]) for i in range(3)]
    for addr in addresses:
        world.routes[addr] = direct()
    indexes = [world.find(addr).index for addr in addresses]
    assert [world.egress.at(i) is not None for i in indexes] == [False, True, True]
    assert world.find(addresses[0]).index not in indexes


def test_neighbours_that_no_row_needs_are_forgotten(world: World) -> None:
    world.known(neighbour(netlink.NUD_REACHABLE))
    world.find()
    world.routes[SERVER] = direct(ETH1)
    world.happens(AnyChange())
    assert list(world.egress._neighbours) == [(ETH1, SERVER)]
    del world.routes[SERVER]
    world.happens(AnyChange())
    assert world.egress._neighbours == {}


@pytest.mark.parametrize(
    ("to", "size", "largest", "sizes"),
    [
        (SERVER, 3000, 0, [1500, 1500, 60]),
        (SERVER, 3000, 1000, [996, 996, 996, 92]),
        (SERVER, 1300, 1000, [996, 344]),
        (SERVER, 3000, 9000, [1500, 1500, 60]),
        (a("fd00::2"), 3000, 0, [1496, 1496, 152]),
        (a("fd00::2"), 3000, 1400, [1400, 1400, 344]),
        (a("fd00::2"), 3000, 1000, [1000, 1000, 1000, 192]),
        (a("fd00::2"), 1100, 1000, [1000, 196]),
    ],
    ids=str,
)
def test_fragments_leave_no_larger_than_they_came(world: World, to, size, largest, sizes) -> None:
    """IPv6 too, below 1280: the kernel hands on the very fragments that it put together (recorded: fragment-v6-modes)."""
    world.routes[to] = direct()
    world.known(neighbour(netlink.NUD_REACHABLE, addr=to))
    six = len(to) == 16
    packet = (IPv6(dst="fd00::2") if six else IP(dst="10.0.0.2")) / UDP() / Raw(bytes(size - 8))
    world.egress.send(world.find(to).index, bytes(packet), largest)
    assert [len(data) for _, _, data in world.sent] == sizes


def test_a_way_by_source_is_another_way(world: World) -> None:
    vip, client = a("192.0.2.1"), SERVER
    world.routes[client + vip] = direct(ETH1)
    world.known(neighbour(2), neighbour(2, OTHER, ifindex=ETH1))
    plain, way = world.find(client), world.egress.find_from(INET, client, vip, 7)
    assert way is not None
    assert way.index != plain.index
    for route in (plain, way):
        world.egress.send(route.index, b"x")
    assert [(ifindex, mac) for ifindex, mac, _ in world.sent] == [(ETH0, MAC), (ETH1, OTHER)]
    # asked once for each source and mark; a change of the route to the address is a change of both
    assert world.egress.find_from(INET, client, vip, 7) == way
    assert world.asked.count(("route from", (client, vip, 7))) == 1
    del world.routes[client + vip]
    world.happens(PrefixChange(INET, a("10.0.0.0"), 24))
    assert world.egress.find_from(INET, client, vip, 7) is None
    assert world.find(client) == plain


def test_rules_are_asked_for_once_and_after_each_change(world: World) -> None:
    assert (world.egress.policy, world.egress.policy) == (False, False)
    world.rules = True
    world.happens(PrefixChange(INET, a("10.0.0.0"), 24))
    assert world.egress.policy is False
    world.happens(AnyChange())
    assert world.egress.policy is True
    assert world.asked.count(("rules", None)) == 2


def test_a_neighbour_in_doubt_is_asked_for_once_a_second_and_used(world: World) -> None:
    """The kernel takes seconds to confirm an address (delay_first_probe_time): the fast path goes on meanwhile."""
    world.known(neighbour(netlink.NUD_STALE))
    index = world.find().index
    row = world.egress.nexthops._c.row[index]
    assert not row.quick
    for second in (1, 2):
        for _ in range(3):
            world.egress.send(index, b"x")
        assert row.quick
        assert world.uses() == second
        world.egress.tick(second * SECOND)
        assert not row.quick
    world.egress.send(index, b"x")
    world.happens(neighbour(netlink.NUD_REACHABLE))
    world.egress.tick(9 * SECOND)
    assert row.quick
    world.happens(neighbour(netlink.NUD_FAILED, b""))
    assert not row.quick
    world.egress.send(index, b"x")
    assert not row.quick, "what waits is no reason to send"
    assert len(world.sent) == 7


def test_a_row_that_the_fast_path_could_not_send_by(world: World) -> None:
    """The event that explains it may have been lost: its route is asked for again."""
    world.known(neighbour(netlink.NUD_REACHABLE))
    index = world.find().index
    world.links[ETH0] = None
    del world.routes[SERVER]
    world.egress.refused(index)
    world.egress.tick(SECOND)
    assert world.egress.at(index) is None
    assert not world.egress.nexthops._c.row[index].quick
    world.egress.refused(index)


def test_the_smallest_mtu(world: World) -> None:
    """Of the devices that a packet came or went by."""
    assert world.egress.smallest_mtu == 0
    world.find()
    assert world.egress.smallest_mtu == 1500
    world.links[ETH1] = link(ETH1, mtu=1400)
    assert world.egress.link_mtu(ETH1) == 1400
    assert world.egress.smallest_mtu == 1400
    world.happens(link(ETH1, mtu=9000))
    assert world.egress.smallest_mtu == 1500
    world.happens(LinkChange(ETH0))
    assert world.egress.smallest_mtu == 1500
