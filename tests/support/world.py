"""A director on paper: table, services, a table of routes, a clock that the test turns."""

from __future__ import annotations

from dataclasses import dataclass, field
from ipaddress import ip_address

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet as ScapyPacket
from scapy.packet import Raw

from uvs.engine.core import AF_INET, AF_INET6, Table, Why
from uvs.ipvs.hooks import nf_hook
from uvs.ipvs.services import Dest, DestSpec, Service, ServiceKey, ServiceSpec
from uvs.ipvs.skb import Hook, NetnsIpvs, Skb, Verdict
from uvs.walk.routes import PaperRoutes

S = 10**9  # a second of the clock

VIP, VIP6 = "198.18.0.100", "2001:db8:18::100"
CIP, CIP6 = "10.9.0.1", "2001:db8:9::1"
RIP = {i: f"198.19.0.1{i}" for i in (1, 2, 3)}
RIP6 = {i: f"2001:db8:19::1{i}" for i in (1, 2, 3)}
DIP, DIP6 = "198.19.0.1", "2001:db8:19::1"
MASQ, TUNNEL, DROUTE = 0, 2, 3


def packed(text: str) -> bytes:
    return ip_address(text).packed


def family(text: str) -> int:
    return AF_INET6 if ":" in text else AF_INET


@dataclass
class FakeRoutes(PaperRoutes):
    """Every address has a next hop of its own, but those that a test takes away."""

    local: set[bytes] = field(default_factory=lambda: {packed(a) for a in (VIP, VIP6, DIP, DIP6)})
    source: dict[int, bytes] = field(default_factory=lambda: {AF_INET: packed(DIP), AF_INET6: packed(DIP6)})


@dataclass
class Outcome:
    """What became of a packet."""

    verdict: Verdict
    why: Why
    sent: list[tuple[str, ScapyPacket]]  # next hop's address, packet
    content: ScapyPacket | None  # of an ACCEPTed packet that was rewritten

    @property
    def to(self) -> str | None:
        """Where the only packet went."""
        return self.sent[0][0] if self.sent else None


def dissect(data: bytes) -> ScapyPacket:
    return IPv6(data) if data[0] >> 4 == 6 else IP(data)


class World:
    def __init__(self, conn_max: int = 10_000, path: str | None = None, now: int = S) -> None:
        """`path`: of an arena that outlives this world, None for private memory."""
        self.now = now
        self.routes = FakeRoutes()
        self.table = Table(path, conn_max, now=now)
        self.ipvs = NetnsIpvs(self.table, self.routes, lambda: self.now)
        for limit in self.ipvs.icmp_limit.values():
            limit.interval_ms = 0
        self.skb = Skb()

    def close(self) -> None:
        self.table.close()

    # ---- services

    def service(
        self, vip: str = VIP, port: int = 80, proto: int = 6, sched: str = "rr", **kw: int
    ) -> Service:
        key = ServiceKey(family(vip), proto, packed(vip), port)
        if "fwmark" in kw:
            key = ServiceKey(family(vip), 6, b"", 0, kw.pop("fwmark"))
        spec = ServiceSpec(key, sched_name=sched, **kw)
        if key.af == AF_INET6 and "netmask" not in kw:
            spec.netmask = 128
        return self.ipvs.services.add_service(spec)

    def server(self, svc: Service, rip: str, port: int = 80, fwd: int = MASQ, **kw: int) -> Dest:
        return self.ipvs.services.add_dest(svc.key, DestSpec(family(rip), packed(rip), port, fwd, **kw))

    def edit(self, svc: Service, rip: str, port: int = 80, fwd: int = MASQ, **kw: int) -> Dest:
        return self.ipvs.services.edit_dest(svc.key, DestSpec(family(rip), packed(rip), port, fwd, **kw))

    def delete(self, svc: Service, rip: str, port: int = 80) -> None:
        self.ipvs.services.del_dest(svc.key, family(rip), packed(rip), port)

    # ---- packets

    def at(
        self,
        hook: Hook,
        packet: ScapyPacket | bytes,
        mark: int = 0,
        indev: int = 2,
        gso: bool = False,
        traced: int = 0,
    ) -> Outcome:
        data = bytes(packet)
        verdict = nf_hook(self.ipvs, self.skb, hook, data, mark, indev, gso, traced)
        sent = [(str(ip_address(self.routes.rows[i][1])), dissect(d)) for i, d in self.skb.sends]
        content = dissect(self.skb.pkt.data) if self.skb.modified else None
        return Outcome(verdict, self.skb.why, sent, content)

    def local_in(self, packet: ScapyPacket | bytes, **kw: int) -> Outcome:
        return self.at(Hook.LOCAL_IN, packet, **kw)

    def forward(self, packet: ScapyPacket | bytes, **kw: int) -> Outcome:
        return self.at(Hook.FORWARD, packet, **kw)

    def local_out(self, packet: ScapyPacket | bytes, **kw: int) -> Outcome:
        return self.at(Hook.LOCAL_OUT, packet, indev=0, **kw)

    def pass_time(self, seconds: float) -> None:
        self.now += int(seconds * S)
        while self.table.expire(self.now, 10_000) == 10_000:
            pass

    @property
    def entries(self) -> list[tuple[str, int]]:
        """State and time left (s, rounded up) of every connection."""
        return sorted((c.state_name, -(-c.remaining(self.now) // 1000)) for c in self.table.conns())


def ip(src: str, dst: str, **kw: int) -> ScapyPacket:
    return IPv6(src=src, dst=dst, **kw) if ":" in src else IP(src=src, dst=dst, id=7777, **kw)


def tcp(
    src: str, sport: int, dst: str, dport: int, flags: str = "S", data: bytes = b"", **kw: int
) -> ScapyPacket:
    return ip(src, dst, **kw) / TCP(sport=sport, dport=dport, flags=flags, seq=1000) / Raw(data)


def udp(src: str, sport: int, dst: str, dport: int, data: bytes = b"hello", **kw: int) -> ScapyPacket:
    return ip(src, dst, **kw) / UDP(sport=sport, dport=dport) / Raw(data)


def icmp_error(
    src: str, dst: str, typ: int, code: int, quoted: ScapyPacket, mtu: int = 0, keep: int | None = None
):  # type: ignore[no-untyped-def]
    """An ICMPv4 error that quotes a packet, cut `keep` bytes behind its IP header."""
    quote = bytes(quoted)[: None if keep is None else 20 + keep]
    return ip(src, dst) / ICMP(type=typ, code=code, nexthopmtu=mtu) / Raw(quote)


def sums_right(packet: ScapyPacket) -> bool:
    """Are all checksums of a packet what a full computation gives?"""
    again = dissect(bytes(packet))
    layer = again
    while layer:
        for name in ("chksum", "cksum"):
            if layer.fields.get(name) is not None:
                layer.delfieldval(name)
        layer.clear_cache()
        if isinstance(layer, ICMP) or "ICMPv6" in type(layer).__name__:
            break  # what is quoted may be cut
        layer = layer.payload
    return bytes(again) == bytes(packet)


# Addresses of one family: client, VIP, first real server, director.
FAMILIES = {4: (CIP, VIP, RIP[1], DIP), 6: (CIP6, VIP6, RIP6[1], DIP6)}


def ends(packet: ScapyPacket) -> tuple[str, str]:
    return packet.src, packet.dst


def ports(packet: ScapyPacket) -> tuple[int, int]:
    l4 = packet.getlayer(TCP) or packet.getlayer(UDP)
    return l4.sport, l4.dport


def ttl(packet: ScapyPacket) -> int:
    return packet.hlim if isinstance(packet, IPv6) else packet.ttl
