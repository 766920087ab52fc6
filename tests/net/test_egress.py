"""Egress on real devices:   director 10.0.0.1 v0 ─── v1 10.0.0.2 server   (fd00::1, fd00::2)"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from support.sandbox import Host, address_up, addressed, ip, link_up, sandboxed, sysctl, wait_for

from uvs.egress import Egress
from uvs.engine.core import Why
from uvs.ipvs.route import Route

MARK = 0x40000000
PORT = 7777
MAC = {"v0": "02:00:00:00:00:01", "v1": "02:00:00:00:00:02"}
OTHER_MAC = "02:00:00:00:00:99"
DIRECTOR = {4: "10.0.0.1", 6: "fd00::1"}
SERVER = {4: "10.0.0.2", 6: "fd00::2"}
SILENT = {4: "10.0.0.99", 6: "fd00::99"}
FAR = {4: "10.1.0.5", 6: "fd01::5"}
FAR_NET = {4: "10.1.0.0/16", 6: "fd01::/64"}

both = pytest.mark.parametrize("v", [4, 6], ids=["IPv4", "IPv6"])


def family(v: int) -> int:
    return socket.AF_INET if v == 4 else socket.AF_INET6


def packed(addr: str) -> bytes:
    return ip_address(addr).packed


def udp(v: int, dst: str, text: bytes) -> bytes:
    layer = IP(src=DIRECTOR[4], dst=dst, id=1) if v == 4 else IPv6(src=DIRECTOR[6], dst=dst)
    return bytes(layer / UDP(sport=1234, dport=PORT) / Raw(text))


class Link:
    """Director and server on a veth pair; an `Egress` in the director; its events are taken in by `turn`."""

    def __init__(self) -> None:
        self.server = Host()
        ip(
            f"link add v0 address {MAC['v0']} type veth peer name v1 address {MAC['v1']} netns {self.server.netns}"
        )
        addressed("v0", DIRECTOR)
        with self.server:
            addressed("v1", SERVER)
            address_up(SERVER[6])
        address_up(DIRECTOR[6])
        link_up("v0", "v1", self.server)
        self.unreachable: list[bytes] = []
        self.why: list[Why] = []
        self.egress = Egress(MARK, self.unreachable.append, self.why.append)

    def listen(self, v: int) -> socket.socket:
        """A UDP socket of the server."""
        with self.server:
            s = socket.socket(family(v), socket.SOCK_DGRAM)
            s.bind(("", PORT))
            s.setblocking(False)
            return s

    def capture(self, dev: str = "v1") -> socket.socket:
        """Every frame that the server's device receives."""
        with self.server:
            s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
            s.bind((dev, 0))
            s.setblocking(False)
            return s

    def find(self, v: int, addr: str) -> Route:
        route = self.egress.find(family(v), packed(addr))
        assert route is not None, f"no route to {addr}"
        return route

    def events(self) -> None:
        """Take in what has happened, all of it."""
        self.egress.events()
        while self.egress._stale:  # what did not fit its budget of time
            self.egress.tick(time.monotonic_ns())

    def turn(self) -> None:
        """What the director's loop does."""
        if select.select([self.egress.fileno()], [], [], 0.01)[0]:
            self.egress.events()
        self.egress.tick(time.monotonic_ns())

    def until(self, condition: Callable[[], Any], what: str, seconds: float = 15) -> Any:
        def turned() -> Any:
            self.turn()
            return condition()

        return wait_for(turned, what, seconds)


def received(s: socket.socket) -> list[bytes]:
    out = []
    while select.select([s], [], [], 0)[0]:
        out.append(s.recv(65536))
    return out


def frames(s: socket.socket, expected: int) -> list[bytes]:
    """Captured frames that egress sent, neither ARP, ND nor answers, when as many as expected have come."""
    got: list[bytes] = []

    def all_there() -> bool:
        ports = struct.pack("!HH", 1234, PORT)
        got.extend(f for f in received(s) if f[6:12] == mac(MAC["v0"]) and ports in f[:80])
        return len(got) >= expected

    wait_for(all_there, f"{expected} frames")
    return got


def mac(text: str) -> bytes:
    return bytes.fromhex(text.replace(":", ""))


@both
@sandboxed
def test_packets_wait_while_the_neighbour_is_resolved_and_leave_in_order(v: int) -> None:
    link = Link()
    s = link.listen(v)
    route = link.find(v, SERVER[v])
    for i in range(5):
        link.egress.send(route.index, udp(v, SERVER[v], b"%d" % i))
    assert received(s) == []
    got: list[bytes] = []
    link.until(lambda: got.extend(received(s)) or len(got) == 5, "five datagrams")
    assert got == [b"0", b"1", b"2", b"3", b"4"]
    link.egress.send(route.index, udp(v, SERVER[v], b"known"))
    wait_for(lambda: received(s) == [b"known"], "a datagram at once, the neighbour is known")
    assert (link.why, link.unreachable) == ([], [])


@both
@sandboxed
def test_a_neighbour_that_does_not_answer_gives_back_what_waited(v: int) -> None:
    link = Link()
    for name, value in (("mcast_solicit", 1), ("retrans_time_ms", 100)):
        sysctl(f"ipv{v}/neigh/v0/{name}", value)
    route = link.find(v, SILENT[v])
    sent = [udp(v, SILENT[v], b"%d" % i) for i in range(20)]
    for packet in sent:
        link.egress.send(route.index, packet)
    assert link.why == [Why.NO_NEIGHBOUR] * 4, "sixteen wait, the oldest four gave way"
    link.until(lambda: link.unreachable, "packets given back")
    assert link.unreachable == sent[4:]
    assert link.why == [Why.NO_NEIGHBOUR] * 20
    # The next packet makes the kernel try once more.
    link.unreachable.clear()
    link.egress.send(route.index, sent[0])
    link.until(lambda: link.unreachable == sent[:1], "a later packet given back too")


@both
@sandboxed
def test_a_silent_change_of_the_servers_mac_is_noticed(v: int) -> None:
    link = Link()
    sysctl(f"ipv{v}/neigh/v0/base_reachable_time_ms", 300)
    s, capture = link.listen(v), link.capture()
    route = link.find(v, SERVER[v])
    link.egress.send(route.index, udp(v, SERVER[v], b"before"))
    link.until(lambda: received(s) == [b"before"], "a datagram")
    for name, value in (
        ("delay_first_probe_time", 0),
        ("retrans_time_ms", 50),
        ("ucast_solicit", 1),
    ):
        sysctl(f"ipv{v}/neigh/v0/{name}", value)
    with link.server:
        ip(f"link set v1 address {OTHER_MAC}", "neigh flush dev v1")
    got: list[bytes] = []

    def arrives() -> bool:
        link.egress.send(route.index, udp(v, SERVER[v], b"after"))
        got.extend(received(s))
        return bool(got)

    link.until(arrives, "a datagram at the new address", 20)
    wait_for(lambda: any(f[:6] == mac(OTHER_MAC) for f in frames(capture, 0)), "a frame to the new address")


@both
@sandboxed
def test_a_mac_change_in_the_kernels_table_counts_at_once(v: int) -> None:
    link, capture = (link := Link()), link.capture()
    ip(f"neigh replace {SERVER[v]} lladdr {MAC['v1']} dev v0 nud permanent")
    route = link.find(v, SERVER[v])
    link.egress.send(route.index, udp(v, SERVER[v], b"x"))
    ip(f"neigh replace {SERVER[v]} lladdr {OTHER_MAC} dev v0 nud permanent")
    link.events()
    link.egress.send(route.index, udp(v, SERVER[v], b"x"))
    ethertype = "0800" if v == 4 else "86dd"
    assert [f[:14].hex() for f in frames(capture, 2)] == [
        (mac(to) + mac(MAC["v0"])).hex() + ethertype for to in (MAC["v1"], OTHER_MAC)
    ]


@pytest.mark.parametrize(("v", "gateway"), [(4, SERVER[4]), (6, SERVER[6]), (4, f"inet6 {SERVER[6]}")])
@sandboxed
def test_a_gateway_is_the_next_hop_for_direct_routing_too(v: int, gateway: str) -> None:
    link, capture = (link := Link()), link.capture()
    ip(
        f"neigh replace {gateway.split()[-1]} lladdr {MAC['v1']} dev v0 nud permanent",
        f"route add {FAR_NET[v]} via {gateway} dev v0",
    )
    route = link.egress.find(family(v), packed(FAR[v]))
    assert route is not None
    assert (route.local, route.mtu, route.saddr) == (False, 1500, packed(DIRECTOR[v]))
    link.egress.send(route.index, udp(v, FAR[v], b"x"))
    (frame,) = frames(capture, 1)
    assert frame[:6] == mac(MAC["v1"])
    assert frame[14:] == udp(v, FAR[v], b"x")


@both
@sandboxed
def test_a_route_that_changes_keeps_its_index_and_one_that_goes_loses_it(v: int) -> None:
    link = Link()
    second = {4: ("10.2.0.1/24", "10.2.0.2"), 6: ("fd02::1/64", "fd02::2")}[v]
    ip(f"link add w0 address {MAC['v0']} type veth peer name w1 netns {link.server.netns}", "link set w0 up")
    with link.server:
        ip("link set w1 up")
    ip(
        f"address add {second[0]} dev w0 nodad",
        f"neigh add {SERVER[v]} lladdr {MAC['v1']} dev v0",
        f"neigh add {second[1]} lladdr {OTHER_MAC} dev w0",
        f"route add {FAR_NET[v]} via {SERVER[v]}",
    )
    first, other = link.capture("v1"), link.capture("w1")
    route = link.find(v, FAR[v])
    packet = udp(v, FAR[v], b"x")

    def goes_by(one: int, two: int) -> bool:
        link.events()
        link.egress.send(route.index, packet)
        return (len(frames(first, one)), len(frames(other, two))) == (one, two)

    link_up("w0", "w1", link.server)
    assert goes_by(1, 0)
    ip(f"route replace {FAR_NET[v]} via {second[1]} mtu 1300")
    assert goes_by(0, 1)
    now = link.egress.at(route.index)
    assert now is not None
    assert (now.index, now.mtu) == (route.index, 1300)
    assert link.find(v, FAR[v]) == now

    ip(f"route del {FAR_NET[v]}")
    assert goes_by(0, 0)
    assert link.why == [Why.NO_ROUTE]
    assert link.egress.at(route.index) is None
    assert link.egress.find(family(v), packed(FAR[v])) is None
    ip(f"route add {FAR_NET[v]} via {SERVER[v]}")
    link.events()
    assert link.find(v, FAR[v]).index != route.index
    assert link.egress.at(route.index) is None


@pytest.mark.parametrize("how", ["unreachable", "blackhole", "prohibit"])
@both
@sandboxed
def test_routes_that_refuse_are_none(v: int, how: str) -> None:
    link = Link()
    ip(f"route add {how} {FAR_NET[v]}")
    assert link.egress.find(family(v), packed(FAR[v])) is None


@both
@sandboxed
def test_mtu_of_route_and_device(v: int) -> None:
    link = Link()
    ip(f"route add {FAR_NET[v]} via {SERVER[v]} mtu 1400")
    near, far = link.find(v, SERVER[v]), link.find(v, FAR[v])
    assert (near.mtu, far.mtu) == (1500, 1400)
    ip("link set v0 mtu 1350")
    link.events()
    assert [route and route.mtu for route in map(link.egress.at, (near.index, far.index))] == [1350, 1350]
    link.egress.update_pmtu(family(v), packed(SERVER[v]), 1290)
    now = link.egress.at(near.index)
    assert now is not None
    assert now.mtu == 1290


@both
@sandboxed
def test_what_is_larger_than_the_mtu_leaves_in_fragments(v: int) -> None:
    link = Link()
    sysctl(f"ipv{v}/neigh/v0/base_reachable_time_ms", 300)
    s, capture = link.listen(v), link.capture()
    text = bytes(range(256)) * 12
    route = link.find(v, SERVER[v])
    link.egress.send(route.index, udp(v, SERVER[v], text))  # waits first, whole
    link.egress.send(route.index, udp(v, SERVER[v], text[::-1]))
    got: list[bytes] = []
    link.until(lambda: got.extend(received(s)) or len(got) == 2, "two datagrams")
    assert got == [text, text[::-1]]
    assert max(len(f) for f in received(capture)) <= 14 + 1500
    assert link.why == []


@both
@sandboxed
def test_a_device_that_goes_down_or_away_takes_its_routes_along(v: int) -> None:
    link = Link()
    ip(f"neigh add {SERVER[v]} lladdr {MAC['v1']} dev v0")
    packet = udp(v, SERVER[v], b"x")
    route = link.find(v, SERVER[v])
    ip("link set v0 down")
    link.egress.send(route.index, packet)  # before the event is read
    assert link.why == [Why.NO_ROUTE]
    link.events()
    assert link.egress.at(route.index) is None
    link.egress.send(route.index, packet)
    assert link.why == [Why.NO_ROUTE] * 2

    ip("link set v0 up")
    if v == 6:
        ip(f"address add {DIRECTOR[6]}/64 dev v0 nodad")
    link.events()
    route = link.find(v, SERVER[v])
    ip("link del v0")
    link.events()
    assert link.egress.find(family(v), packed(SERVER[v])) is None
    link.egress.send(route.index, packet)
    assert link.why == [Why.NO_ROUTE] * 3


@both
@sandboxed
def test_a_device_without_a_link_layer_gets_the_bare_packet(v: int) -> None:
    import fcntl

    link = Link()
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"t0", 0x1001))  # TUNSETIFF, IFF_TUN | IFF_NO_PI
    ip("link set t0 up mtu 1420", f"route add {FAR_NET[v]} dev t0")
    route = link.find(v, FAR[v])
    assert route.mtu == 1420
    packet = udp(v, FAR[v], b"x")
    link.egress.send(route.index, packet)
    got = wait_for(
        lambda: (p := os.read(tun, 2000)) and struct.pack("!H", PORT) in p and p, "a packet from the tun"
    )
    assert got == packet
    assert link.why == []


@sandboxed
def test_local_addresses_follow_the_routing_table() -> None:
    link = Link()
    table = [
        # address, local, may be a real server
        ("10.0.0.1", True, True),
        ("127.0.0.1", True, True),
        ("10.0.0.2", False, True),
        ("10.0.0.255", False, False),
        ("224.0.0.1", False, False),
        ("255.255.255.255", False, False),
        ("0.0.0.0", True, False),
        ("192.0.2.1", False, True),
        ("fd00::1", True, True),
        ("::1", True, True),
        ("fd00::2", False, True),
        ("2001:db8::1", False, True),
        ("fe80::1", False, False),
        ("ff02::1", False, False),
        ("::", None, False),
    ]
    for addr, local, unicast in table:
        af = socket.AF_INET6 if ":" in addr else socket.AF_INET
        if local is not None:
            assert link.egress.is_local(af, packed(addr)) is local, addr
        assert link.egress.is_unicast(af, packed(addr)) is unicast, addr
    own = next(
        line.split()[0]
        for line in Path("/proc/net/if_inet6").read_text().splitlines()
        if line.startswith("fe80")
    )
    link.until(
        lambda: link.egress.is_unicast(socket.AF_INET6, bytes.fromhex(own)),
        "its own link-local address allowed",
    )

    ip("address add 192.0.2.1/32 dev lo", "route add local 10.5.0.0/16 dev lo")
    link.events()
    assert link.egress.is_local(socket.AF_INET, packed("192.0.2.1"))
    assert link.egress.is_local(socket.AF_INET, packed("10.5.6.7")), "a whole local prefix"
    route = link.find(4, "192.0.2.1")
    assert route.local
    ip("address del 192.0.2.1/32 dev lo")
    link.events()
    assert not link.egress.is_local(socket.AF_INET, packed("192.0.2.1"))


@sandboxed
def test_without_ipv6_addresses_ipv4_works_and_ipv6_has_no_routes() -> None:
    sysctl("ipv6/conf/default/disable_ipv6", 1)
    sysctl("ipv6/conf/all/disable_ipv6", 1)
    server = Host()
    ip(
        f"link add v0 type veth peer name v1 netns {server.netns}",
        "address add 10.0.0.1/24 dev v0",
        "link set v0 up",
    )
    egress = Egress(MARK, lambda _: None, lambda _: None)
    assert egress.find(socket.AF_INET, packed("10.0.0.2")) is not None
    assert egress.find(socket.AF_INET6, packed("fd00::2")) is None


@both
@sandboxed(user=True)
def test_an_ordinary_user_in_a_namespace_can_do_all_this(v: int) -> None:
    link = Link()
    s = link.listen(v)
    route = link.find(v, SERVER[v])
    link.egress.send(route.index, udp(v, SERVER[v], b"hello"))
    link.until(lambda: received(s) == [b"hello"], "a datagram")


@sandboxed
def test_lost_events_are_made_good() -> None:
    link, capture = (link := Link()), link.capture()
    ip(f"neigh add {SERVER[4]} lladdr {MAC['v1']} dev v0", f"route add {FAR_NET[4]} via {SERVER[4]}")
    route = link.find(4, FAR[4])
    ip(
        f"route replace {FAR_NET[4]} via {SERVER[4]} mtu 1300",
        f"neigh replace {SERVER[4]} lladdr {OTHER_MAC} dev v0",
    )
    told: list[logging.LogRecord] = []
    watcher = logging.Handler()
    watcher.emit = told.append  # type: ignore[method-assign]
    logging.getLogger("uvs.egress").addHandler(watcher)
    # More events than the socket holds: ENOBUFS.
    ip(
        *(
            f"neigh replace 10.0.0.{3 + i % 200} lladdr 02:00:00:00:{i // 200:02x}:{i % 200:02x} dev v0"
            for i in range(8000)
        )
    )
    link.events()
    link.egress.send(route.index, udp(4, FAR[4], b"x"))
    (frame,) = frames(capture, 1)
    assert frame[:6] == mac(OTHER_MAC)
    now = link.egress.at(route.index)
    assert now is not None
    assert now.mtu == 1300


def rule(v: int, words: str) -> None:
    subprocess.run(["ip", f"-{v}", "rule", *words.split()], check=True)


@both
@sandboxed
def test_a_rule_of_policy_by_source_and_by_mark(v: int) -> None:
    link = Link()
    assert link.egress.policy is False
    other = {4: "10.0.0.77", 6: "fd00::77"}
    via = {4: "10.0.0.9", 6: "fd00::9"}
    ip(f"address add {other[v]}/{32 if v == 4 else 128} dev lo")
    ip(
        f"route add {FAR_NET[v]} via {SERVER[v]} dev v0",
        f"route add {FAR_NET[v]} via {via[v]} dev v0 table 200",
    )
    rule(v, f"add from {other[v]} lookup 200")
    rule(v, "add fwmark 5 lookup 200")
    link.until(lambda: link.egress.policy, "the rules")

    def way(source: str, mark: int) -> str:
        route = link.egress.find_from(family(v), packed(FAR[v]), packed(source), mark)
        assert route is not None
        return link.egress.describe(route.index).split()[0]

    assert [way(DIRECTOR[v], 0), way(other[v], 0), way(DIRECTOR[v], 5)] == [SERVER[v], via[v], via[v]]
    rule(v, "del fwmark 5 lookup 200")
    rule(v, f"del from {other[v]} lookup 200")
    link.until(lambda: not link.egress.policy, "no rules")
    link.events()
    assert way(other[v], 0) == SERVER[v]
