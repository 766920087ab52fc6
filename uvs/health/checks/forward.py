"""forward: a SYN that goes to the server as a client's request would, by the service's forwarding method.

It is made by hand and sent by AF_PACKET, as the director's transmitters send: for NAT to the server's own
address, for DR to the virtual address with the server's MAC, for TUN inside the tunnel. The answer is seen
by a packet socket, since the director's own stack takes it for a martian (it comes from the virtual
address, which is the director's too) or answers it with RST. Then a RST ends the half-open connection. So a
server that does not have the virtual address, or does not take the tunnel, is found out.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from uvs.config.checks import Forward
from uvs.egress import netlink
from uvs.egress.fragments import ETH_P, attach
from uvs.egress.nexthop import has_ethernet_header
from uvs.engine.core import TUN_GUE, ConnFlag, Packet, checksum
from uvs.health.checks.base import Failed, Result, Target, Unable, address, connection, passed
from uvs.ipvs.ipproto import IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP

AGAIN_S = 1.0  # TCP's own first retransmission
RESOLVE_S = 0.02  # between two looks at a neighbour that is being asked for
TTL, WINDOW = 64, 64240
FIN, SYN, RST, ACK = 1, 2, 4, 16
GUE_SOURCE = 49152
UNREACHABLE = {IPPROTO_ICMP: 3, IPPROTO_ICMPV6: 1}
METHODS = {ConnFlag.MASQ: "NAT", ConnFlag.TUNNEL: "the tunnel", ConnFlag.DROUTE: "DR"}
# Classic BPF (linux/filter.h): only what may be an answer to a port of ours.
LDB, LDH, LDXMSH, LDHX, JEQ, RET = 0x30, 0x28, 0xB1, 0x48, 0x15, 0x06


def filter_for(af: int, port: int) -> list[tuple[int, int, int, int]]:
    """TCP to or from `port`, and ICMP: (code, jump if true, jump if false, k)."""
    if af == socket.AF_INET:
        head = [(LDB, 0, 0, 9), (JEQ, 6, 0, IPPROTO_ICMP), (JEQ, 0, 6, IPPROTO_TCP), (LDXMSH, 0, 0, 0)]
        ports = [(LDHX, 0, 0, 2), (JEQ, 2, 0, port), (LDHX, 0, 0, 0), (JEQ, 0, 1, port)]
    else:
        head = [(LDB, 0, 0, 6), (JEQ, 5, 0, IPPROTO_ICMPV6), (JEQ, 0, 5, IPPROTO_TCP)]
        ports = [(LDH, 0, 0, 42), (JEQ, 2, 0, port), (LDH, 0, 0, 40), (JEQ, 0, 1, port)]
    return [*head, *ports, (RET, 0, 0, 256), (RET, 0, 0, 0)]


@dataclass(frozen=True, slots=True)
class Flow:
    """The half-open connection: addresses packed, ports host order, `isn` its first sequence number."""

    af: int
    saddr: bytes
    sport: int
    daddr: bytes
    dport: int
    isn: int

    def segment(self, flags: int, seq: int) -> bytes:
        """A TCP segment without payload, as an IP packet."""
        tcp = struct.pack(
            "!HHIIBBHHH", self.sport, self.dport, seq & 0xFFFFFFFF, 0, 0x50, flags, WINDOW, 0, 0
        )
        pseudo = self.saddr + self.daddr + struct.pack("!II", len(tcp), IPPROTO_TCP)
        tcp = tcp[:16] + struct.pack("!H", checksum(pseudo + tcp)) + tcp[18:]
        if self.af == socket.AF_INET6:
            return struct.pack("!IHBB", 6 << 28, len(tcp), IPPROTO_TCP, TTL) + self.saddr + self.daddr + tcp
        ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(tcp), 0, 0x4000, TTL, IPPROTO_TCP, 0)
        ip += self.saddr + self.daddr
        return ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + tcp

    def judge(self, packet: bytes) -> bool:
        """Does this packet let the server pass? False: it is none of ours. Failed: it says no."""
        protocol, saddr, daddr, segment = parts(packet)
        if protocol != IPPROTO_TCP or len(segment) < 20:
            return False
        sport, dport, _, ack, _, flags = struct.unpack_from("!HHIIBB", segment)
        ours = self.saddr, self.sport
        if (saddr, sport) == ours and (daddr, dport) == (self.daddr, self.dport):
            raise Failed("the SYN came back: the server has no such virtual address, and forwards")
        if (daddr, dport) != ours or (saddr, sport) != (self.daddr, self.dport):
            return False
        if not flags & ACK or ack != (self.isn + 1) & 0xFFFFFFFF:
            return False
        if flags & RST:
            raise Failed("connection refused")
        return bool(flags & SYN)

    def judge_icmp(self, packet: bytes, tunnel: tuple[bytes, bytes] | None) -> None:
        """Failed: it is an ICMP error "unreachable" about the flow, or about `tunnel`'s ends."""
        protocol, _, _, message = parts(packet)
        if len(message) < 8 or UNREACHABLE.get(protocol) != message[0]:
            return
        _, saddr, daddr, segment = parts(message[8:])
        ports = struct.pack("!HH", self.sport, self.dport)
        if (saddr, daddr) == tunnel or ((saddr, daddr) == (self.saddr, self.daddr) and segment[:4] == ports):
            raise Failed(f"unreachable (ICMP type {message[0]} code {message[1]})")


def parts(packet: bytes) -> tuple[int, bytes, bytes, bytes]:
    """Protocol, source, destination and payload of an IP packet; protocol -1 if it is none, or cut."""
    if len(packet) >= 20 and packet[0] >> 4 == 4:
        return packet[9], packet[12:16], packet[16:20], packet[(packet[0] & 15) * 4 :]
    if len(packet) >= 40 and packet[0] >> 4 == 6:
        return packet[6], packet[8:24], packet[24:40], packet[40:]
    return -1, b"", b"", b""


@dataclass(frozen=True, slots=True)
class Way:
    """How frames get to the server: device, its MAC (empty: the device has none), and the source there."""

    ifindex: int
    device: str
    lladdr: bytes
    saddr: bytes


async def check(target: Target, settings: Forward) -> Result:
    """SYN, SYN+ACK, RST."""
    service, server = target.service, target.server
    if service.protocol != IPPROTO_TCP and not service.fwmark:
        raise Unable("forward checks are for TCP services")
    kernel = netlink.Netlink()
    try:
        way = await find_way(kernel, server.af, server.addr)
    finally:
        kernel.close()
    if way is None:  # the server is this host: the transmitter hands the request to the local stack
        async with connection(address(target, settings)):
            return passed("connected: the server is local")
    method = server.fwd & ConnFlag.FWD_MASK
    virtual = socket.inet_pton(service.af, settings.address) if settings.address else service.addr
    if method == ConnFlag.MASQ:
        daddr, dport = server.addr, settings.port or server.port or service.port
    else:
        daddr, dport = virtual, settings.port or service.port
    af = service.af
    if len(daddr) != (16 if af == socket.AF_INET6 else 4) or not dport:
        raise Unable("the service has no address and port: the check must say them")
    saddr = _source(settings, target, way)
    if saddr == daddr:
        raise Unable("the director's address towards the server is the virtual one: say another as source")
    with _reserved(af, saddr) as port, _listening(af, port) as listener:
        flow = Flow(af, saddr, port, daddr, dport, secrets.randbits(32))
        return await _ask(target, way, flow, listener)


async def _ask(target: Target, way: Way, flow: Flow, listener: socket.socket) -> Result:
    loop = asyncio.get_running_loop()
    method = target.server.fwd & ConnFlag.FWD_MASK
    tunnel = (way.saddr, target.server.addr) if method == ConnFlag.TUNNEL else None
    try:
        while True:
            _send(target, way, flow.segment(SYN, flow.isn))
            try:
                async with asyncio.timeout(AGAIN_S):
                    while not flow.judge(packet := await loop.sock_recv(listener, 2048)):
                        flow.judge_icmp(packet, tunnel)
                    return passed(f"answered through {METHODS[method]}")
            except TimeoutError:
                continue
    finally:
        _send(target, way, flow.segment(RST, flow.isn + 1))


async def find_way(kernel: netlink.Netlink, af: int, addr: bytes) -> Way | None:
    """Route and neighbour, resolved if need be. None: the address is this host's. Failed: there is no way."""
    route = kernel.route(af, addr)
    if route is None:
        raise Failed("no route to the server")
    if route.type == netlink.RTN_LOCAL:
        return None
    link = kernel.link(route.ifindex)
    if link is None:
        raise Failed("the device towards the server is gone")
    saddr = route.saddr or netlink.source_towards(af, addr)
    if not has_ethernet_header(link):
        return Way(link.ifindex, link.name, b"", saddr)
    hop_af, hop = route.gateway or (af, addr)
    while True:
        known = kernel.neighbour(link.ifindex, hop_af, hop)
        if known is not None and known.state & netlink.NUD_VALID:
            if not known.state & netlink.NUD_SURE:
                kernel.use(link.ifindex, hop_af, hop)
            return Way(link.ifindex, link.name, known.lladdr, saddr)
        if known is not None and known.state & netlink.NUD_FAILED:
            raise Failed(
                f"{netlink.addr_text(hop)} does not answer {'ARP' if hop_af == socket.AF_INET else 'ND'}"
            )
        kernel.use(link.ifindex, hop_af, hop)
        await asyncio.sleep(RESOLVE_S)


def _source(settings: Forward, target: Target, way: Way) -> bytes:
    """The director's address as the client, in the virtual address's family."""
    af = target.service.af
    if settings.source:
        saddr = socket.inet_pton(af, settings.source)
    elif af == target.server.af:
        saddr = way.saddr
    else:
        raise Unable("the tunnel is of another family than the service: the check must say a source")
    if not saddr:
        raise Unable("the director has no address towards the server: say one as source")
    return saddr


@contextlib.contextmanager
def _reserved(af: int, saddr: bytes) -> Iterator[int]:
    """A port that no program of this host gets meanwhile; nobody listens at it."""
    with socket.socket(af, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.bind((socket.inet_ntop(af, saddr), 0))
        yield sock.getsockname()[1]


@contextlib.contextmanager
def _listening(af: int, port: int) -> Iterator[socket.socket]:
    """A packet socket that hands over what may be an answer. Unable: not allowed."""
    try:
        # Of every device from the start: bind() of Python 3.11 knows none without a name.
        kind, protocol = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, socket.htons(ETH_P[af])
        sock = socket.socket(socket.AF_PACKET, kind, protocol)
    except PermissionError:
        raise Unable("forward checks need CAP_NET_RAW") from None
    with sock:
        attach(sock, filter_for(af, port))
        sock.setblocking(False)
        yield sock


def _send(target: Target, way: Way, packet: bytes) -> None:
    """As the transmitter of the server's method sends it."""
    server = target.server
    af = target.service.af
    if server.fwd & ConnFlag.FWD_MASK == ConnFlag.TUNNEL:
        outer = Packet.of(packet)
        ports = (GUE_SOURCE, server.tun_port) if server.tun_type == TUN_GUE else (0, 0)
        if outer.encap(
            server.af, way.saddr, server.addr, secrets.randbelow(1 << 16),
            tun_type=server.tun_type, tun_flags=server.tun_flags, ports=ports,
        ):  # fmt: skip
            raise Unable("the SYN does not fit the tunnel")
        packet, af = outer.data, server.af
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC, 0) as sock:
        sock.setblocking(False)
        sock.sendto(packet, (way.device, ETH_P[af], 0, 0, way.lladdr))
