"""A stage without a network: the hook path, and as much of a kernel around it as scenarios meet."""

from __future__ import annotations

import contextlib
import io
import logging
from collections import deque
from ipaddress import ip_address
from typing import Any

from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet as Scapy
from scapy.packet import Raw

from support.scenario.play import Arrival
from support.scenario.tell import V4_ERRORS
from support.scenario.words import VIP, VIP6, client, client6, icmp, icmp6, servers
from support.world import FakeRoutes, World
from uvs.adm import cli
from uvs.adm.errors import Fail
from uvs.adm.grammar import parse
from uvs.control.client import Client
from uvs.control.genetlink import Dispatcher
from uvs.control.ipvs_family import IpvsFamily
from uvs.control.uvs_family import UvsFamily
from uvs.engine.core import AF_INET, AF_INET6, Packet
from uvs.ipvs.route import Route
from uvs.ipvs.skb import Hook, Verdict
from uvs.ipvs.sysctl import SysctlError
from uvs.ipvs.unreachable import no_neighbour

STEP_S, PLENTY_PAGES, MTU, LISTING_NS = 0.1, 1 << 20, 1500, 130_000_000
CLIENT_NET, CLIENT_NET6 = ip_address(client(1)).packed[:2], ip_address(client6(1)).packed[:6]
NEIGHBOUR_S = 3  # three solicitations, a second each


class Hosts(FakeRoutes):
    """The director's routes, and whom an address belongs to."""

    def __init__(self, topology: str) -> None:
        super().__init__()
        v4, v6 = servers(topology)
        self.names = {ip_address(a).packed: f"r{i}" for table in (v4, v6) for i, a in table.items() if i < 4}
        self.names |= {ip_address(a).packed: "c" for a in ("198.18.0.2", "2001:db8:18::2")}
        own = {VIP, VIP6, "198.18.0.1", "2001:db8:18::1", "127.0.0.1", "::1"}
        if topology == "nat":
            own |= {"198.19.0.1", "2001:db8:19::1"}
        self.local = {ip_address(a).packed for a in own}
        self.mtus: dict[str, int] = {}
        self.gone: set[str] = set()  # neighbours that do not answer
        self.server_nets = tuple({address[: 3 if len(address) == 4 else 6] for address in self.names})

    def name(self, addr: bytes) -> str:
        """The machine behind an address; ?: nobody."""
        if addr[:2] == CLIENT_NET or addr[:6] == CLIENT_NET6:
            return "c"
        return self.names.get(addr, "?")

    def addresses(self, name: str) -> list[bytes]:
        """Both of a server."""
        return [addr for addr, host in self.names.items() if host == name]

    def find(self, af: int, addr: bytes) -> Route | None:
        """The route to an address."""
        known = addr in self.local or self.name(addr) != "?" or addr.startswith(self.server_nets)
        if not known or self.name(addr) in {"c"} & self.unreachable_names:
            return None
        route = super().find(af, addr)
        if route is None:
            return None
        mtu = min(self.mtus.get(self.name(addr), MTU), self.pmtu.get(addr, MTU))
        net = addr[:3] if af == AF_INET else addr[:6]
        source = ip_address("198.18.0.1" if af == AF_INET else "2001:db8:18::1").packed
        if net in (ip_address("198.19.0.1").packed[:3], ip_address("2001:db8:19::").packed[:6]):
            source = ip_address("198.19.0.1" if af == AF_INET else "2001:db8:19::1").packed
        return Route(route.index, route.local, mtu, addr if route.local else source, addr in self.pmtu)

    unreachable_names: frozenset[str] | set[str] = frozenset()


class PaperClient(Client):
    """A control client whose director is in the same process."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.path, self.timeout = "paper", 0.0
        self._seq, self._families = 0, {}
        self._dispatcher, self._waiting = dispatcher, deque[bytes]()
        self._sock = self  # type: ignore[assignment]

    def send(self, datagram: bytes, flags: int = 0) -> int:
        """A request."""
        for answer in self._dispatcher.handle(datagram, True).answers:
            self._waiting.extend([answer] if isinstance(answer, bytes) else answer)
        return len(datagram)

    def recv(self, size: int) -> bytes:
        """The next answer."""
        return self._waiting.popleft()

    def close(self) -> None:
        """Nothing to hang up."""


class Paper:
    """The stage."""

    def __init__(self, topology: str) -> None:
        self.world = World(conn_max=100_000)
        self.hosts = self.world.routes = Hosts(topology)
        ipvs = self.ipvs = self.world.ipvs
        ipvs.routes = ipvs.services.routes = self.hosts
        self.client = PaperClient(
            Dispatcher([IpvsFamily(ipvs.services, ipvs.table).family(), UvsFamily(ipvs).family()])
        )
        self.marks: list[tuple[int, str, bytes, int]] = []
        self.transparent: set[int] = set()
        self.seen: list[Arrival] = []
        self.waiting: list[tuple[int, bytes]] = []  # for a neighbour: since when, packet
        self.ticks = 0

    def close(self) -> None:
        """Free the table."""
        self.world.close()

    # ---- the director's machine

    def send(self, host: str, packet: bytes) -> None:
        """A frame arrives; or, of `d`, a packet is made here."""
        if host == "d":
            self._out(packet)
            return
        v4 = packet[0] >> 4 == 4
        daddr = packet[16:20] if v4 else packet[24:40]
        if v4 and self._martian(packet[12:16]):
            return
        mark = self._mark_of(packet)
        if daddr in self.hosts.local or mark in self.transparent:
            self._local_in(packet, mark)
        else:
            self._forward(packet, mark)

    def _martian(self, saddr: bytes) -> bool:
        """ip_route_input_slow: sources that are refused before any hook."""
        return saddr in self.hosts.local or saddr[0] in (0, 127) or saddr[0] >= 224

    def _hook(self, hook: Hook, packet: bytes, mark: int = 0, indev: int = 2) -> bytes | None:
        """The packet as it goes on from a hook, or None; what was sent is on its way."""
        out = self.world.at(hook, packet, mark, indev)
        skb = self.world.skb
        for index, data in list(skb.sends):
            self._leave(self.hosts.rows[index][1], data)
        if out.verdict != Verdict.ACCEPT:
            return None
        return skb.pkt.data if skb.modified else packet

    def _local_in(self, packet: bytes, mark: int) -> None:
        accepted = self._hook(Hook.LOCAL_IN, packet, mark)
        if accepted is not None and (answer := _local_stack(accepted)) is not None:
            self._out(bytes(answer))

    def _out(self, packet: bytes) -> None:
        """A packet of this machine itself (ip_local_out)."""
        accepted = self._hook(Hook.LOCAL_OUT, packet, indev=0)
        if accepted is None:
            return
        daddr = accepted[16:20] if accepted[0] >> 4 == 4 else accepted[24:40]
        if daddr in self.hosts.local:
            again = self._hook(Hook.LOCAL_IN, accepted, indev=1)
            if again is not None and (answer := _local_stack(again)) is not None:
                self._out(bytes(answer))
            return
        self._leave(daddr, accepted)

    def _forward(self, packet: bytes, mark: int) -> None:
        """ip_forward, ip6_forward: route, hop limit, size, then the hook."""
        v4 = packet[0] >> 4 == 4
        daddr = packet[16:20] if v4 else packet[24:40]
        route = self.hosts.find(AF_INET if v4 else AF_INET6, daddr)
        saddr = str(ip_address(packet[12:16] if v4 else packet[8:24]))
        own = self.hosts.find(AF_INET if v4 else AF_INET6, ip_address(saddr).packed)
        source = str(ip_address(own.saddr)) if own else ("198.18.0.1" if v4 else "2001:db8:18::1")

        def refuse(kind: int, code: int, word: int = 0) -> None:
            errors = V4_ERRORS if v4 else range(128)
            if packet[9 if v4 else 6] in (1, 58) and packet[20 if v4 else 40] in errors:
                return  # none about another one
            error = icmp(source, saddr, kind, code, Raw(packet[:548] if v4 else packet[:1232]), word)
            error.id, error.tos = (1, (packet[1] & 0x1E) | 0xC0) if v4 else (0, 0)
            self._out(bytes(error))

        if packet[8 if v4 else 7] <= 1:
            refuse(*((11, 0) if v4 else (3, 0)))
            return
        if route is None:
            refuse(*((3, 1) if v4 else (1, 0)))
            return
        layer: Scapy = IP(packet) if v4 else IPv6(packet)
        if len(packet) > route.mtu and (not v4 or layer.flags.DF):
            refuse(*((3, 4) if v4 else (2, 0)), route.mtu)
            return
        if v4:
            layer.ttl -= 1
            del layer.chksum
            packet = bytes(layer)[:20] + packet[20:] if not layer.options else bytes(layer)
        else:
            packet = packet[:7] + bytes((packet[7] - 1,)) + packet[8:]
        accepted = self._hook(Hook.FORWARD, packet, mark)
        if accepted is not None:
            self._leave(daddr, accepted)

    def _leave(self, addr: bytes, packet: bytes) -> None:
        name = self.hosts.name(addr)
        if addr in self.hosts.local:  # an error for a client on this machine
            return
        if name in self.hosts.gone:
            self.waiting.append((self.world.now, packet))
        elif name != "?":
            self.seen += [("d", name, part) for part in self._in_pieces(addr, packet)]

    def _in_pieces(self, addr: bytes, packet: bytes) -> list[bytes]:
        """As egress cuts it."""
        route = self.hosts.find(AF_INET if len(addr) == 4 else AF_INET6, addr)
        if route is None or len(packet) <= route.mtu:
            return [packet]
        whole = Packet()
        assert not whole.load(packet, 0)
        return whole.fragments(route.mtu, 1) or []

    def _mark_of(self, packet: bytes) -> int:
        v4 = packet[0] >> 4 == 4
        layer: Any = IP(packet) if v4 else IPv6(packet)
        number = layer.proto if v4 else layer.nh
        for mark, protocol, addr, port in reversed(self.marks):
            if protocol not in ("-", {6: "tcp", 17: "udp", 132: "sctp", 1: "icmp", 58: "icmpv6"}.get(number)):
                continue
            dport = int.from_bytes(bytes(layer.payload)[2:4], "big")
            if ip_address(layer.dst).packed == addr and port in (0, dport):
                return mark
        return 0

    # ---- what scenarios ask

    def arrivals(self, patience: float, count: int | None = None) -> list[Arrival]:
        """What has left since the last call."""
        seen, self.seen = self.seen, []
        return seen

    def ipvsadm(self, words: list[str]) -> tuple[list[str], int]:
        """uvsadm, with the director beside it; what has ended is gone when it lists."""
        self.world.now += LISTING_NS
        self._expire()
        out, status = io.StringIO(), 0
        cli.PROGRAM = "ipvsadm"
        with contextlib.redirect_stdout(out):
            try:
                status = cli.execute(self.client, parse(words, "ipvsadm"))
            except Fail as e:
                print(e)
                status = e.status
        self.ipvs.expire_nodest_conns()
        self._expire()
        return [line.rstrip() for line in out.getvalue().splitlines()], status

    def sysctl(self, name: str, value: str) -> bool:
        """net.ipv4.vs.NAME := value."""
        try:
            self.ipvs.sysctl.set(name, value)
        except SysctlError:
            return False
        return True

    def show_sysctl(self, name: str) -> str:
        """Its value."""
        return self.ipvs.sysctl.get(name)

    def wait(self, seconds: float) -> None:
        """Let the director's clock run, and its chores with it."""
        for _ in range(round(seconds / STEP_S)):
            self.ticks += 1
            self.world.now += int(STEP_S * 1e9)
            now, services = self.world.now, self.ipvs.services
            self.ipvs.expire_nodest_conns()
            self._expire()
            if self.ticks % 10 == 0:
                services.expire_trash(now)
                services.tick_schedulers(now)
                self.ipvs.defence.run(now, PLENTY_PAGES)
            if self.ticks % 20 == 0:
                services.estimate()
            for since, packet in list(self.waiting):
                if now - since >= NEIGHBOUR_S * 10**9:
                    self.waiting.remove((since, packet))
                    for index, answer in no_neighbour(self.ipvs, packet):
                        self._leave(self.hosts.rows[index][1], answer)

    def _expire(self) -> None:
        while self.ipvs.table.expire(self.world.now, 10_000) == 10_000:
            pass

    def mark(self, number: int, protocol: str, address: str, port: int) -> None:
        """As a rule in PREROUTING would."""
        self.marks.append((number, protocol, ip_address(address).packed, port))

    def host(self, verb: str, words: list[str]) -> None:
        """Settings of the machine."""
        hosts = self.hosts
        match verb, words:
            case "transparent", [number]:
                self.transparent.add(int(number))
            case "route", [name, "unreachable"]:
                hosts.unreachable |= set(hosts.addresses(name))
            case "route", [name, "normal"]:
                hosts.unreachable -= set(hosts.addresses(name))
                hosts.mtus.pop(name, None)
            case "route", [name, "mtu", size]:
                hosts.mtus[name] = int(size)
            case "local", [name]:
                hosts.local |= set(hosts.addresses(name))
            case "neighbour", [name, "gone"]:
                hosts.gone.add(name)
            case "neighbour", [name, "back"]:
                hosts.gone.discard(name)
            case "helper", ["ftp" | "sip"]:
                pass  # always there
            case "default", ["mtu", size]:
                hosts.mtus["c"] = int(size)
            case "track", []:
                pass  # here nothing is tracked
            case "policy", [name]:
                for vip, by in zip((VIP, VIP6), hosts.addresses(name), strict=True):
                    hosts.ways[ip_address(vip).packed, 0] = by
            case "default", ["gone"]:
                hosts.unreachable_names = {"c"}
            case "default", ["back"]:
                hosts.unreachable_names = frozenset()
            case _:
                raise ValueError(f"no step {verb} {' '.join(words)}")


def _local_stack(packet: bytes) -> Scapy | None:
    """What a machine that listens on no port answers."""
    v4 = packet[0] >> 4 == 4
    layer: Scapy = IP(packet) if v4 else IPv6(packet)
    number = layer.proto if v4 else layer.nh
    if v4:
        head: Scapy = IP(src=layer.dst, dst=layer.src, ttl=64, flags="DF", id=0, tos=layer.tos)
    else:
        head = IPv6(src=layer.dst, dst=layer.src, hlim=64, tc=layer.tc)
    if number == 6:
        return _reset(layer, head)
    if number in (1, 58):
        return _echo(layer, v4)
    quote = Raw(packet[:548] if v4 else packet[:1232])
    if v4:
        error = icmp(layer.dst, layer.src, 3, 3 if number == 17 else 2, quote)
        error.id, error.tos = 1, (layer.tos & 0x1E) | 0xC0
        return error
    if number == 17:
        return icmp(layer.dst, layer.src, 1, 4, quote)
    return icmp(layer.dst, layer.src, 4, 1, quote, 6)  # unknown next header, at octet 6


def _reset(layer: Scapy, head: Scapy) -> Scapy | None:
    """tcp_v4_send_reset."""
    segment = layer.getlayer(TCP)
    if segment is None or segment.flags.R:
        return None
    length = len(bytes(segment.payload)) + bool(segment.flags.S) + bool(segment.flags.F)
    seq, ack, flags = (segment.ack, 0, "R") if segment.flags.A else (0, segment.seq + length, "RA")
    return head / TCP(sport=segment.dport, dport=segment.sport, flags=flags, seq=seq, ack=ack, window=0)


def _echo(layer: Scapy, v4: bool) -> Scapy | None:
    if not v4:
        request = bytes(layer.payload)
        if request[:1] != b"\x80":
            return None
        return icmp6(layer.dst, layer.src, b"\x81\0\0\0" + request[4:], tc=layer.tc)
    request = layer.getlayer(ICMP)
    if request is None or request.type != 8:
        return None
    reply = request.copy()
    reply.type = 0
    del reply.chksum
    return IP(src=layer.dst, dst=layer.src, ttl=64, id=1, tos=layer.tos) / reply


logging.getLogger("scapy.runtime").setLevel(logging.ERROR)
