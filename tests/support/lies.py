"""Packets that lie, and a director on paper that they mean something to: for property tests of the packet path."""

from __future__ import annotations

from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, UDP, IPOption
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6PacketTooBig,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
)
from scapy.layers.ipsec import AH, ESP
from scapy.layers.l2 import GRE as GREHeader
from scapy.layers.l2 import GRE as GRE_HEADER
from scapy.layers.sctp import SCTP, SCTPChunkAbort, SCTPChunkData, SCTPChunkInit
from scapy.packet import Raw

from support.world import (
    CIP,
    CIP6,
    DIP,
    DROUTE,
    MASQ,
    RIP,
    RIP6,
    TUNNEL,
    VIP,
    VIP6,
    World,
    icmp_error,
    tcp,
    udp,
)
from uvs.engine.core import TUN_GRE, TUN_GUE
from uvs.ipvs.skb import Hook

GUE, GRE = {"tun_type": TUN_GUE, "tun_port": 6080}, {"tun_type": TUN_GRE, "tun_flags": 1}

# Packets that mean something to the table below; the test bends them.
SEEDS = [
    bytes(p)
    for p in (
        tcp(CIP, 1024, VIP, 80),
        tcp(CIP, 1024, VIP, 80, "A", b"x" * 50),
        tcp(CIP, 1024, VIP, 80, "FA"),
        tcp(RIP[1], 8080, CIP, 1024, "SA"),
        tcp(CIP, 1024, VIP, 81),
        tcp(CIP, 1024, VIP, 82, "S", b"x" * 1600),
        udp(CIP, 2000, VIP, 53),
        udp(RIP[1], 5353, CIP, 2000),
        tcp(CIP6, 1024, VIP6, 80),
        tcp(RIP6[1], 8080, CIP6, 1024, "SA"),
        udp(CIP6, 2000, VIP6, 53),
        icmp_error(RIP[1], CIP, 3, 3, udp(CIP, 2000, RIP[1], 5353)),
        icmp_error(CIP, VIP, 3, 4, tcp(VIP, 80, CIP, 1024, "A"), mtu=576, keep=8),
        icmp_error("198.19.0.77", DIP, 3, 4, IP(src=DIP, dst=RIP[3]) / tcp(CIP, 1024, VIP, 82), mtu=900),
        tcp(CIP, 1024, VIP, 83),
        tcp(CIP, 1024, VIP, 84),
        icmp_error(
            "198.19.0.77",
            DIP,
            3,
            4,
            IP(src=DIP, dst=RIP[1]) / UDP(dport=6080) / (b"\0\4\0\0" + bytes(tcp(CIP, 1024, VIP, 83))),
            mtu=900,
        ),
        icmp_error(
            "198.19.0.77", DIP, 3, 1, IP(src=DIP, dst=RIP[2]) / GRE_HEADER() / tcp(CIP, 1024, VIP, 84)
        ),
        IPv6(src=RIP6[1], dst=CIP6) / ICMPv6DestUnreach(code=4) / udp(CIP6, 2000, RIP6[1], 5353),
        IPv6(src=CIP6, dst=VIP6) / ICMPv6PacketTooBig(mtu=1280) / tcp(VIP6, 80, CIP6, 1024, "A"),
        IP(src=CIP, dst=VIP, options=[IPOption(b"\x01\x01\x01\x00")]) / UDP(sport=2000, dport=53) / Raw(b"x"),
        IPv6(src=CIP6, dst=VIP6) / IPv6ExtHdrDestOpt() / UDP(sport=2000, dport=53) / Raw(b"x"),
        IPv6(src=CIP6, dst=VIP6) / IPv6ExtHdrFragment(offset=10, m=1) / Raw(b"x" * 40),
        IP(src=CIP, dst=VIP, flags="MF") / UDP(sport=2000, dport=53) / Raw(b"x" * 64),
        IP(src=CIP, dst=VIP) / ICMP(type=8) / b"ping",
        IP(src=CIP, dst=VIP) / SCTP(sport=1024, dport=80) / SCTPChunkInit(),
        IP(src=CIP, dst=VIP) / SCTP(sport=1024, dport=80) / SCTPChunkData(data=b"x") / SCTPChunkAbort(),
        IP(src=RIP[1], dst=CIP) / SCTP(sport=8080, dport=1024) / SCTPChunkAbort(),
        udp(CIP, 500, VIP, 500),
        IP(src=CIP, dst=VIP) / ESP(data=bytes(16)),
        IP(src=CIP, dst=VIP) / AH(nh=6, payloadlen=4, icv=bytes(12)) / Raw(bytes(20)),
        icmp_error(RIP[1], CIP, 3, 3, IP(src=CIP, dst=RIP[1]) / ESP(data=bytes(16))),
        icmp_error(RIP[1], CIP, 11, 0, IP(src=CIP, dst=RIP[1]) / SCTP(sport=1024, dport=8080) / SCTPChunkInit()),
        tcp(CIP, 1024, VIP, 21, "S"),
        tcp(CIP, 1024, VIP, 21, "PA", b"PASV\r\n"),
        tcp(RIP[1], 21, CIP, 1024, "PA", b"227 Entering Passive Mode (198,19,0,11,7,9)\r\n"),
        tcp(CIP, 1024, VIP, 21, "PA", b"PORT 10,9,0,1,7,8\r\n"),
        tcp(CIP, 1025, VIP, 1801, "S"),
        udp(CIP, 5060, VIP, 5060, b"INVITE sip:a SIP/2.0\r\nCall-ID: one@here\r\n\r\n"),
        udp(RIP[2], 5060, CIP, 5060, b"SIP/2.0 200 OK\r\nCall-ID: one@here\r\n\r\n"),
        udp(CIP, 1024, VIP, 83),
        udp(CIP, 1024, VIP, 84),
        icmp_error(
            "198.19.0.77", DIP, 3, 4,
            IP(src=DIP, dst=RIP[3]) / UDP(sport=40000, dport=6080) / Raw(b"\0\4\0\0" + bytes(udp(CIP, 1024, VIP, 83))),
            mtu=900,
        ),
        icmp_error(
            "198.19.0.77", DIP, 3, 4,
            IP(src=DIP, dst=RIP[2]) / GREHeader(proto=0x0800) / Raw(bytes(udp(CIP, 1024, VIP, 84))), mtu=900,
        ),
        udp(CIP, 1024, "192.0.2.200", 99),
    )
]  # fmt: skip

bent = st.tuples(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 130), st.integers(0, 255)), max_size=4),
    st.integers(0, 120),
).map(lambda t: _bend(*t))


def _bend(seed: bytes, changes: list[tuple[int, int]], cut: int) -> bytes:
    data = bytearray(seed)
    for at, value in changes:
        if at < len(data):
            data[at] = value
    return bytes(data[: len(data) - cut] if cut < len(data) and cut % 3 == 0 else data)


steps = st.lists(
    st.tuples(st.sampled_from(list(Hook)), bent, st.sampled_from([0, 0, 0, 7, 8]), st.integers(0, 70)),
    min_size=1,
    max_size=30,
)


def director() -> World:
    w = World()
    services = [
        (VIP, 80, 6, RIP[1], 8080, MASQ),
        (VIP, 81, 6, RIP[2], 81, DROUTE),
        (VIP, 82, 6, RIP[3], 82, TUNNEL),
        (VIP, 83, 6, RIP[1], 83, TUNNEL, GUE),
        (VIP, 84, 6, RIP[2], 84, TUNNEL, GRE),
        (VIP, 53, 17, RIP[1], 5353, MASQ),
        (VIP6, 80, 6, RIP6[1], 8080, MASQ),
        (VIP6, 53, 17, RIP6[1], 5353, MASQ),
    ]
    for vip, port, proto, rip, rport, fwd, *tunnel in services:
        w.server(w.service(vip, port, proto), rip, rport, fwd, **(tunnel[0] if tunnel else {}))
    w.server(w.service(fwmark=7), RIP[2], 0)
    w.server(w.service(VIP, 0, 6, flags=1, timeout=50), RIP[2], 0)
    w.server(w.service(VIP, 80, 132), RIP[1], 8080)
    w.server(w.service(VIP, 500, 17), RIP[1], 500)
    w.server(w.service(VIP, 21, 6), RIP[1], 21)
    w.server(w.service(VIP, 5060, 17, flags=5, timeout=50, sched="sh"), RIP[2], 5060)
    w.server(w.service(VIP, 83, 17), RIP[3], 83, TUNNEL, tun_type=1, tun_port=6080, tun_flags=1)
    w.server(w.service(VIP, 84, 17), RIP[2], 84, TUNNEL, tun_type=2, tun_flags=1)
    w.service(fwmark=8)
    return w


KNOBS = ["cache_bypass", "nat_icmp_send", "schedule_icmp", "sloppy_tcp", "sloppy_sctp", "expire_nodest_conn"]
