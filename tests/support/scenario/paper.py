"""A stage without a network: the hook path, and as much of a kernel around it as scenarios meet."""

from __future__ import annotations

import contextlib
import io
import logging
from ipaddress import ip_address
from typing import Any

from scapy.layers.inet import ICMP, IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet as Scapy
from scapy.packet import Raw

from support.paper_client import PaperClient, dispatcher
from support.scenario.play import Arrival
from support.scenario.tell import V4_ERRORS
from support.scenario.words import VIP, VIP6, client, client6, icmp, icmp6, servers
from support.world import FakeRoutes, World
from uvs.adm.cli import execute
from uvs.adm.errors import Fail
from uvs.adm.grammar import parse
from uvs.engine.core import AF_INET, AF_INET6, Packet
from uvs.ipvs.route import Route
from uvs.ipvs.skb import Hook, Verdict
from uvs.ipvs.sysctl import SysctlError
from uvs.ipvs.unreachable import no_neighbour
from uvs.walk.paper import ends, one_hop_less

STEP_S = 0.1
LISTING_NS = 130_000_000  # that a listing takes
NEIGHBOUR_S = 3  # three solicitations, a second each
PLENTY_PAGES = 1 << 20  # of free memory
MTU = 1500
CLIENT_NET, CLIENT_NET6 = ip_address(client(1)).packed[:2], ip_address(client6(1)).packed[:6]
# The director's own addresses, IPv4 and IPv6: towards the clients, and towards the servers by topology `nat`.
FRONT, BACK = ("198.18.0.1", "2001:db8:18::1"), ("198.19.0.1", "2001:db8:19::1")
BACK_NETS = ip_address(BACK[0]).packed[:3], ip_address(BACK[1]).packed[:6]
QUOTE, QUOTE6 = 548, 1232  # bytes of a packet that an ICMP error quotes at most
PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58}


class Hosts(FakeRoutes):
    """The director's routes, and whom an address belongs to."""

    def __init__(self, topology: str) -> None:
        super().__init__()
        v4, v6 = servers(topology)
        self.names = {ip_address(a).packed: f"r{i}" for table in (v4, v6) for i, a in table.items() if i < 4}
        self.names |= {ip_address(a).packed: "c" for a in ("198.18.0.2", "2001:db8:18::2")}
        own = {VIP, VIP6, *FRONT, "127.0.0.1", "::1", *(BACK if topology == "nat" else ())}
        self.local = {ip_address(a).packed for a in own}
        self.mtus: dict[str, int] = {}
        self.gone: set[str] = set()  # neighbours that do not answer
        self.client_known = True  # is there a route to the clients?
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
        if not self._known(addr) or (route := super().find(af, addr)) is None:
            return None
        mtu = min(self.mtus.get(self.name(addr), MTU), self.pmtu.get(addr, MTU))
        source = addr if route.local else ip_address(own_address(addr)).packed
        return Route(route.index, route.local, mtu, source, addr in self.pmtu)

    def _known(self, addr: bytes) -> bool:
        """Does the routing table know a way there?"""
        name = self.name(addr)
        if name == "c" and not self.client_known:
            return False
        return addr in self.local or name != "?" or addr.startswith(self.server_nets)


def own_address(towards: bytes) -> str:
    """The director's address on the network of another one."""
    return (BACK if towards.startswith(BACK_NETS) else FRONT)[len(towards) == 16]


def quotation(packet: bytes) -> Raw:
    """What an ICMP error says of a packet."""
    return Raw(packet[: QUOTE if packet[0] >> 4 == 4 else QUOTE6])


def layers(packet: bytes) -> Scapy:
    """The packet for scapy."""
    return IP(packet) if packet[0] >> 4 == 4 else IPv6(packet)


class Paper:
    """The stage."""

    def __init__(self, topology: str) -> None:
        self.world = World(conn_max=100_000)
        self.hosts = self.world.routes = Hosts(topology)
        ipvs = self.ipvs = self.world.ipvs
        ipvs.routes = ipvs.services.routes = self.hosts
        self.client = PaperClient(dispatcher(self.world))
        self.marks: list[tuple[int, int | None, bytes, int]] = []  # mark, protocol, address, port
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
        saddr, daddr = ends(packet)
        if len(saddr) == 4 and self._martian(saddr):
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
        _, daddr = ends(accepted)
        if daddr in self.hosts.local:
            again = self._hook(Hook.LOCAL_IN, accepted, indev=1)
            if again is not None and (answer := _local_stack(again)) is not None:
                self._out(bytes(answer))
            return
        self._leave(daddr, accepted)

    def _forward(self, packet: bytes, mark: int) -> None:
        """ip_forward, ip6_forward: hop limit, route, size, then the hook."""
        v4 = packet[0] >> 4 == 4
        _, daddr = ends(packet)
        route = self.hosts.find(AF_INET if v4 else AF_INET6, daddr)
        if packet[8 if v4 else 7] <= 1:
            self._refuse(packet, *((11, 0) if v4 else (3, 0)))
        elif route is None:
            self._refuse(packet, *((3, 1) if v4 else (1, 0)))
        elif len(packet) > route.mtu and (not v4 or packet[6] & 0x40):
            self._refuse(packet, *((3, 4) if v4 else (2, 0)), route.mtu)
        elif (accepted := self._hook(Hook.FORWARD, one_hop_less(packet), mark)) is not None:
            self._leave(daddr, accepted)

    def _refuse(self, packet: bytes, kind: int, code: int, word: int = 0) -> None:
        """icmp_send, icmpv6_send: tell its sender, but not about an error."""
        v4 = packet[0] >> 4 == 4
        errors = V4_ERRORS if v4 else range(128)
        if packet[9 if v4 else 6] in (1, 58) and packet[20 if v4 else 40] in errors:
            return
        saddr, _ = ends(packet)
        known = self.hosts.find(AF_INET if v4 else AF_INET6, saddr)
        source = str(ip_address(known.saddr)) if known else FRONT[not v4]
        error = icmp(source, str(ip_address(saddr)), kind, code, quotation(packet), word)
        if v4:
            error.id, error.tos = 1, _tos_of_error(packet[1])
        self._out(bytes(error))

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
        """The mark that the rules in PREROUTING leave on it; 0: none."""
        layer: Any = layers(packet)
        number = layer.proto if layer.version == 4 else layer.nh
        _, daddr = ends(packet)
        dport = int.from_bytes(bytes(layer.payload)[2:4], "big")
        for mark, protocol, addr, port in reversed(self.marks):
            if protocol in (None, number) and addr == daddr and port in (0, dport):
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
        with contextlib.redirect_stdout(out):
            try:
                status = execute(self.client, parse(words, "ipvsadm"))
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
            self._give_up_waiting()

    def _give_up_waiting(self) -> None:
        """Neighbours that did not answer in time: the senders are told."""
        for since, packet in list(self.waiting):
            if self.world.now - since >= NEIGHBOUR_S * 10**9:
                self.waiting.remove((since, packet))
                for index, answer in no_neighbour(self.ipvs, packet):
                    self._leave(self.hosts.rows[index][1], answer)

    def _expire(self) -> None:
        while self.ipvs.table.expire(self.world.now, 10_000) == 10_000:
            pass

    def mark(self, number: int, protocol: str, address: str, port: int) -> None:
        """As a rule in PREROUTING would."""
        self.marks.append((number, PROTOCOLS.get(protocol), ip_address(address).packed, port))

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
                hosts.client_known = False
            case "default", ["back"]:
                hosts.client_known = True
            case _:
                raise ValueError(f"no step {verb} {' '.join(words)}")


def _tos_of_error(tos: int) -> int:
    """icmp_send: the packet's own, as internetwork control."""
    return (tos & 0x1E) | 0xC0


def _local_stack(packet: bytes) -> Scapy | None:
    """What a machine that listens on no port answers."""
    layer = layers(packet)
    v4 = layer.version == 4
    number = layer.proto if v4 else layer.nh
    if number == 6:
        return _reset(layer)
    if number in (1, 58):
        return _echo(layer)
    if v4:
        error = icmp(layer.dst, layer.src, 3, 3 if number == 17 else 2, quotation(packet))
        error.id, error.tos = 1, _tos_of_error(layer.tos)
        return error
    if number == 17:
        return icmp(layer.dst, layer.src, 1, 4, quotation(packet))
    return icmp(layer.dst, layer.src, 4, 1, quotation(packet), 6)  # unknown next header, at octet 6


def _reset(layer: Scapy) -> Scapy | None:
    """tcp_v4_send_reset, tcp_v6_send_reset."""
    segment = layer.getlayer(TCP)
    if segment is None or segment.flags.R:
        return None
    length = len(bytes(segment.payload)) + bool(segment.flags.S) + bool(segment.flags.F)
    seq, ack, flags = (segment.ack, 0, "R") if segment.flags.A else (0, segment.seq + length, "RA")
    if layer.version == 4:
        head: Scapy = IP(src=layer.dst, dst=layer.src, ttl=64, flags="DF", id=0, tos=layer.tos)
    else:
        head = IPv6(src=layer.dst, dst=layer.src, hlim=64, tc=layer.tc)
    return head / TCP(sport=segment.dport, dport=segment.sport, flags=flags, seq=seq, ack=ack, window=0)


def _echo(layer: Scapy) -> Scapy | None:
    """icmp_echo, icmpv6_echo_reply."""
    if layer.version == 6:
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
