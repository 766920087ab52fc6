"""Packets that Hypothesis draws."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from scapy.layers.inet import (
    ICMP,
    IP,
    TCP,
    UDP,
    IPOption_LSRR,
    IPOption_NOP,
    IPOption_Router_Alert,
    IPOption_RR,
)
from scapy.layers.inet6 import (
    ICMPv6EchoRequest,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
    PadN,
)
from scapy.layers.ipsec import AH
from scapy.layers.sctp import SCTP, SCTPChunkData
from scapy.packet import Packet as Scapy

from support.packets import loaded

ADDR4 = st.ip_addresses(v=4).map(str)
ADDR6 = st.ip_addresses(v=6).map(str)
PORT = st.integers(0, 65535)
PAYLOAD = st.binary(max_size=64)


@dataclass(frozen=True)
class Datagram:
    """A packet and what a parser must find in it."""

    data: bytes
    v6: bool
    protocol: int
    l4: int  # offset of the transport header
    need: int  # bytes of the fixed transport header
    ports: bool


# name of the protocol -> (number, bytes that UVS_HDR_L4 stands for)
PROTOCOLS = {"tcp": (6, 20), "udp": (17, 8), "sctp": (132, 16), "icmp": (1, 8), "icmpv6": (58, 8)}


@st.composite
def transports(draw: Any, name: str, sizes: Any = PAYLOAD) -> Scapy:
    """A transport header and payload; checksums are scapy's."""
    sport, dport, payload = draw(PORT), draw(PORT), draw(sizes)
    match name:
        case "tcp":
            options = draw(st.sampled_from([[], [("MSS", 1460)], [("NOP", None), ("WScale", 7)]]))
            return TCP(sport=sport, dport=dport, flags=draw(st.integers(0, 255)), options=options) / payload
        case "udp":
            return UDP(sport=sport, dport=dport) / payload
        case "sctp":
            return SCTP(sport=sport, dport=dport) / SCTPChunkData(data=payload)
        case "icmp":
            return ICMP(type=8, id=sport, seq=dport) / payload
        case _:
            return ICMPv6EchoRequest(id=sport, seq=dport, data=payload)


@st.composite
def ip4_headers(draw: Any) -> Scapy:
    """An IPv4 header, with options sometimes."""
    option = st.sampled_from(
        [
            IPOption_NOP(),
            IPOption_Router_Alert(),
            IPOption_RR(routers=["10.9.9.9"]),
            IPOption_LSRR(routers=["10.8.8.8"]),
        ]
    )
    return IP(
        src=draw(ADDR4),
        dst=draw(ADDR4),
        ttl=draw(st.integers(0, 255)),
        tos=draw(st.integers(0, 255)),
        id=draw(st.integers(0, 65535)),
        flags=draw(st.sampled_from(["", "DF"])),
        options=draw(st.lists(option, max_size=4)),
    )  # fmt: skip


@st.composite
def ip6_headers(draw: Any, upper: int, atomic: bool = True) -> Scapy:
    """An IPv6 header, with extension headers sometimes."""
    packet = IPv6(
        src=draw(ADDR6), dst=draw(ADDR6), hlim=draw(st.integers(0, 255)), tc=draw(st.integers(0, 255)),
        fl=draw(st.integers(0, 0xFFFFF)),
    )  # fmt: skip
    kinds = ["hop", "dst", "rh", "ah"] + ["frag"] * atomic
    chosen = draw(st.lists(st.sampled_from(kinds), max_size=4))
    if chosen.count("frag") > 1:
        chosen = [kind for kind in chosen if kind != "frag"]
    if not chosen:
        packet.nh = upper
        return packet
    numbers = {"hop": 0, "dst": 60, "rh": 43, "ah": 51, "frag": 44}
    for kind, following in zip(chosen, [numbers[k] for k in chosen[1:]] + [upper], strict=True):
        pad = [PadN(optdata=bytes(draw(st.integers(0, 20))))]
        match kind:
            case "hop":
                packet = packet / IPv6ExtHdrHopByHop(nh=following, options=pad)
            case "dst":
                packet = packet / IPv6ExtHdrDestOpt(nh=following, options=pad)
            case "rh":
                packet = packet / IPv6ExtHdrRouting(nh=following, addresses=["fd00::9"], segleft=0)
            case "ah":
                packet = packet / AH(nh=following, payloadlen=4, icv=bytes(12))
            case _:
                packet = packet / IPv6ExtHdrFragment(nh=following, id=draw(st.integers(0, 2**32 - 1)))
    return packet


@st.composite
def datagrams(
    draw: Any, names: tuple[str, ...] = tuple(PROTOCOLS), sizes: Any = PAYLOAD, atomic: bool = True
) -> Datagram:
    """Any packet that is whole and right."""
    name = draw(st.sampled_from(names))
    v6 = {"icmp": False, "icmpv6": True}.get(name)
    if v6 is None:
        v6 = draw(st.booleans())
    number, need = PROTOCOLS[name]
    head = draw(ip6_headers(number, atomic)) if v6 else draw(ip4_headers())
    packet = head / draw(transports(name, sizes))
    body = packet.getlayer(
        {"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": ICMP, "icmpv6": ICMPv6EchoRequest}[name]
    )
    data = bytes(packet)
    l4 = len(data) - len(bytes(body))
    # Behind AH scapy finds no pseudo header, with a source route it takes another destination.
    if packet.haslayer(AH) or packet.haslayer(IPOption_LSRR):
        whole = loaded(data)
        whole.csum_fill()
        data = whole.data
    return Datagram(data, v6, number, l4, need, name in ("tcp", "udp", "sctp"))
