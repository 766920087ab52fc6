"""NAT: packet in, packet out."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import (
    ICMP,
    IP,
    TCP,
    UDP,
    IPerror,
    IPOption_NOP,
    TCPerror,
    UDPerror,
)
from scapy.layers.inet6 import (
    ICMPv6DestUnreach,
    ICMPv6PacketTooBig,
    IPerror6,
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
)
from scapy.layers.ipsec import ESP
from scapy.layers.sctp import SCTP, SCTPChunkData
from support.packets import (
    CLIENT,
    CLIENT6,
    CPORT,
    DPORT,
    SERVER,
    SERVER6,
    VIP,
    VIP6,
    VPORT,
    conn4,
    conn6,
    dissect,
    loaded,
    packed,
    rewritten,
    same,
)

T = TCP(sport=CPORT, dport=VPORT, flags="PA", seq=1, ack=2)
U = UDP(sport=CPORT, dport=VPORT)
S = SCTP(sport=CPORT, dport=VPORT) / SCTPChunkData(data=b"chunk")
V4, V6 = IP(src=CLIENT, dst=VIP, id=9, ttl=63), IPv6(src=CLIENT6, dst=VIP6, hlim=63, fl=5)
MF = IP(src=CLIENT, dst=VIP, flags="MF")
LATER = IP(src=CLIENT, dst=VIP, frag=4)

# what it shows, request, how it differs on the way to the server
DNAT: list[tuple[str, Any, dict[str, Any]]] = [
    ("tcp", V4 / T / b"GET /", {"TCP__dport": DPORT}),
    (
        "tcp, odd payload, options",
        V4 / TCP(sport=CPORT, dport=VPORT, options=[("MSS", 9)]) / b"x",
        {"TCP__dport": DPORT},
    ),
    ("ip options", IP(src=CLIENT, dst=VIP, options=[IPOption_NOP()] * 4) / T / b"x", {"TCP__dport": DPORT}),
    ("udp", V4 / U / b"query", {"UDP__dport": DPORT}),
    (
        "udp checksum 0 is made whole",
        V4 / UDP(sport=CPORT, dport=VPORT, chksum=0) / b"query",
        {"UDP__dport": DPORT},
    ),
    ("sctp", V4 / S, {"SCTP__dport": DPORT}),
    ("esp: address only", V4 / ESP(spi=VPORT << 16 | VPORT, data=bytes(32)), {}),
    ("v6 tcp", V6 / T / b"GET /", {"TCP__dport": DPORT}),
    ("v6 udp", V6 / U / b"query", {"UDP__dport": DPORT}),
    (
        "v6 udp checksum 0 is made whole",
        V6 / UDP(sport=CPORT, dport=VPORT, chksum=0) / b"q",
        {"UDP__dport": DPORT},
    ),
    ("v6 sctp", V6 / S, {"SCTP__dport": DPORT}),
    ("v6 extension header", V6 / IPv6ExtHdrDestOpt() / T / b"GET /", {"TCP__dport": DPORT}),
]


@pytest.mark.parametrize(("packet", "changes"), [r[1:] for r in DNAT], ids=[r[0] for r in DNAT])
def test_dnat(packet: Any, changes: dict[str, Any]) -> None:
    v6 = IPv6 in packet
    pkt = loaded(packet)
    pkt.dnat(conn6() if v6 else conn4())
    changes = changes | ({"IPv6__dst": SERVER6} if v6 else {"IP__dst": SERVER})
    assert same(pkt.data, rewritten(packet, **changes))
    assert pkt.iph.daddr == packed(SERVER6 if v6 else SERVER)
    assert pkt.iph.dport == (DPORT if "esp" not in str(changes) and len(changes) > 1 else 0)


RT = TCP(sport=DPORT, dport=CPORT, flags="PA", seq=1, ack=2)
RU = UDP(sport=DPORT, dport=CPORT)
RS = SCTP(sport=DPORT, dport=CPORT) / SCTPChunkData(data=b"chunk")
R4, R6 = IP(src=SERVER, dst=CLIENT, id=9, ttl=63), IPv6(src=SERVER6, dst=CLIENT6, hlim=63, fl=5)

# what it shows, reply, how it differs on the way to the client
SNAT: list[tuple[str, Any, dict[str, Any]]] = [
    ("tcp", R4 / RT / b"200", {"TCP__sport": VPORT}),
    ("udp", R4 / RU / b"answer", {"UDP__sport": VPORT}),
    (
        "udp checksum 0 is made whole",
        R4 / UDP(sport=DPORT, dport=CPORT, chksum=0) / b"abc",
        {"UDP__sport": VPORT},
    ),
    ("sctp", R4 / RS, {"SCTP__sport": VPORT}),
    ("esp: address only", R4 / ESP(data=bytes(32)), {}),
    ("v6 tcp", R6 / RT / b"200", {"TCP__sport": VPORT}),
    ("v6 udp", R6 / RU / b"answer", {"UDP__sport": VPORT}),
    ("v6 sctp", R6 / RS, {"SCTP__sport": VPORT}),
]


@pytest.mark.parametrize(("packet", "changes"), [r[1:] for r in SNAT], ids=[r[0] for r in SNAT])
def test_snat(packet: Any, changes: dict[str, Any]) -> None:
    v6 = IPv6 in packet
    pkt = loaded(packet)
    pkt.snat(conn6() if v6 else conn4())
    changes = changes | ({"IPv6__src": VIP6} if v6 else {"IP__src": VIP})
    assert same(pkt.data, rewritten(packet, **changes))
    assert pkt.iph.saddr == packed(VIP6 if v6 else VIP)


def ip_checked(packet: Any) -> Any:
    """The packet with only its IPv4 header checksum computed anew."""
    out = packet.copy()
    del out[IP].chksum
    return dissect(bytes(out))


@pytest.mark.parametrize("protocol", [6, 17, 132])
def test_later_fragment_v4_changes_addresses_only(protocol: int) -> None:
    data = bytes([0xD4, 0x31, 0, 80]) * 8
    pkt = loaded(IP(src=CLIENT, dst=VIP, frag=4, proto=protocol) / data)
    pkt.dnat(conn4())
    assert same(pkt.data, IP(src=CLIENT, dst=SERVER, frag=4, proto=protocol) / data)


def test_later_fragment_v6_changes_addresses_only() -> None:
    data = bytes([0xD4, 0x31, 0, 80]) * 8
    pkt = loaded(IPv6(src=CLIENT6, dst=VIP6) / IPv6ExtHdrFragment(offset=4, nh=17) / data)
    pkt.dnat(conn6())
    assert same(pkt.data, IPv6(src=CLIENT6, dst=SERVER6) / IPv6ExtHdrFragment(offset=4, nh=17) / data)


@pytest.mark.parametrize(
    ("whole", "changed"),
    [
        (V4 / U / bytes(3000), rewritten(V4 / U / bytes(3000), IP__dst=SERVER, UDP__dport=DPORT)),
        (V4 / T / bytes(3000), rewritten(V4 / T / bytes(3000), IP__dst=SERVER, TCP__dport=DPORT)),
    ],
    ids=["udp", "tcp"],
)
def test_first_fragment_carries_the_whole_datagrams_checksum(whole: Any, changed: Any) -> None:
    first = (loaded(whole).fragments(1500, 1) or [])[0]
    pkt = loaded(first)
    pkt.dnat(conn4())
    assert pkt.data == (loaded(changed).fragments(1500, 1) or [])[0]


def test_udp_checksum_0_of_a_first_fragment_stays() -> None:
    """What it covers is not there."""
    pkt = loaded(MF / UDP(sport=CPORT, dport=VPORT, len=3000, chksum=0) / bytes(64))
    pkt.dnat(conn4())
    expected = IP(src=CLIENT, dst=SERVER, flags="MF") / UDP(sport=CPORT, dport=DPORT, len=3000, chksum=0)
    assert same(pkt.data, expected / bytes(64))


@pytest.mark.parametrize("layer", [TCP, UDP])
def test_wrong_checksum_stays_wrong(layer: Any) -> None:
    wrong = dissect(bytes(V4 / layer(sport=CPORT, dport=VPORT) / b"data"))
    wrong[layer].chksum ^= 0x1111
    pkt = loaded(wrong)
    pkt.dnat(conn4())
    assert not pkt.l4_csum_ok()
    pkt.snat(conn4())
    assert not pkt.l4_csum_ok()


def test_wrong_ip_checksum_stays_wrong() -> None:
    wrong = dissect(bytes(V4 / T))
    wrong.chksum ^= 0x1111
    pkt = loaded(wrong)
    pkt.dnat(conn4())
    right = rewritten(V4 / T, IP__dst=SERVER, TCP__dport=DPORT)
    assert pkt.data != bytes(right)
    assert dissect(pkt.data)[TCP].chksum == right[TCP].chksum


def test_sctp_crc_is_left_alone_when_no_port_changes() -> None:
    wrong = dissect(bytes(V4 / S))
    wrong[SCTP].chksum ^= 1
    pkt = loaded(wrong)
    pkt.dnat(conn4(132, dport=VPORT))
    out = wrong.copy()
    out[IP].dst = SERVER
    assert same(pkt.data, ip_checked(out))


@pytest.mark.parametrize("n", range(4, 20))
def test_cut_tcp_header_changes_ports_without_a_checksum(n: int) -> None:
    data = bytes(T)[:n]
    pkt = loaded(IP(src=CLIENT, dst=VIP, proto=6) / data)
    pkt.dnat(conn4())
    port = DPORT.to_bytes(2, "big")
    assert same(pkt.data, IP(src=CLIENT, dst=SERVER, proto=6) / (data[:2] + port + data[4:]))


@pytest.mark.parametrize("n", range(4))
def test_cut_ports_are_not_written(n: int) -> None:
    data = bytes(T)[:n]
    pkt = loaded(IP(src=CLIENT, dst=VIP, proto=6) / data)
    pkt.dnat(conn4())
    assert same(pkt.data, IP(src=CLIENT, dst=SERVER, proto=6) / data)


def test_udp_checksum_that_becomes_0_is_sent_as_ffff() -> None:
    """Choose the payload so that the translated datagram sums to 0xffff."""
    target = loaded(IP(src=CLIENT, dst=SERVER) / UDP(sport=CPORT, dport=DPORT, chksum=0) / b"\0\0")
    target.csum_fill()
    word = target.data[26:28]  # putting the checksum itself into the payload makes the sum 0xffff
    pkt = loaded(V4 / U / word)
    pkt.dnat(conn4())
    assert dissect(pkt.data)[UDP].chksum == 0xFFFF
    assert pkt.l4_csum_ok()


# ---- ICMP errors

UNREACH, FRAG_NEEDED = ICMP(type=3, code=3), ICMP(type=3, code=4, nexthopmtu=1400)
# from the client's side: about a reply (VIP -> client)
C4 = IP(src=VIP, dst=CLIENT) / TCP(sport=VPORT, dport=CPORT) / b"data"
C6 = IPv6(src=VIP6, dst=CLIENT6) / TCP(sport=VPORT, dport=CPORT) / b"data"
# from the server's side: about a request (client -> RIP)
S4 = IP(src=CLIENT, dst=SERVER) / UDP(sport=CPORT, dport=DPORT) / b"data"
S6 = IPv6(src=CLIENT6, dst=SERVER6) / UDP(sport=CPORT, dport=DPORT) / b"data"


def error4(icmp: Any, src: str, dst: str, quote: bytes) -> Any:
    return IP(src=src, dst=dst, tos=0xC0) / icmp / quote


def error6(icmp: Any, src: str, dst: str, quote: bytes) -> Any:
    return IPv6(src=src, dst=dst) / icmp / quote


def quote_of(packet: Any, cut: int | None, **changes: Any) -> bytes:
    """The packet as it will be quoted: its IP checksum right, its transport checksum as it was sent."""
    sent = dissect(bytes(packet))
    for name, value in changes.items():
        layer, field = name.split("__")
        setattr(sent[layer], field, value)
    if IP in sent:
        del sent[IP].chksum
    return bytes(sent)[:cut]


CUTS = [None, 28, 24]
CUTS6 = [None, 48, 44]


@pytest.mark.parametrize("cut", CUTS)
def test_icmp_from_the_client_v4(cut: int | None) -> None:
    pkt = loaded(error4(FRAG_NEEDED, CLIENT, VIP, quote_of(C4, cut)))
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn4(), 0)
    assert same(
        pkt.data, error4(FRAG_NEEDED, CLIENT, SERVER, quote_of(C4, cut, IP__src=SERVER, TCP__sport=DPORT))
    )
    assert pkt.l4_csum_ok()


@pytest.mark.parametrize("cut", CUTS)
def test_icmp_from_the_server_v4(cut: int | None) -> None:
    pkt = loaded(error4(UNREACH, SERVER, CLIENT, quote_of(S4, cut)))
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn4(17), 1)
    assert same(pkt.data, error4(UNREACH, VIP, CLIENT, quote_of(S4, cut, IP__dst=VIP, UDP__dport=VPORT)))


@pytest.mark.parametrize("cut", CUTS6)
def test_icmp_from_the_client_v6(cut: int | None) -> None:
    too_big = ICMPv6PacketTooBig(mtu=1400)
    pkt = loaded(error6(too_big, CLIENT6, VIP6, quote_of(C6, cut)))
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn6(), 0)
    assert same(
        pkt.data, error6(too_big, CLIENT6, SERVER6, quote_of(C6, cut, IPv6__src=SERVER6, TCP__sport=DPORT))
    )


@pytest.mark.parametrize("cut", CUTS6)
def test_icmp_from_the_server_v6(cut: int | None) -> None:
    unreach = ICMPv6DestUnreach(code=4)
    pkt = loaded(error6(unreach, SERVER6, CLIENT6, quote_of(S6, cut)))
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn6(17), 1)
    assert same(pkt.data, error6(unreach, VIP6, CLIENT6, quote_of(S6, cut, IPv6__dst=VIP6, UDP__dport=VPORT)))


def test_icmp_quoting_a_later_fragment_changes_addresses_only() -> None:
    later = IP(src=CLIENT, dst=SERVER, frag=4, proto=17) / bytes(8)
    pkt = loaded(error4(ICMP(type=11, code=1), SERVER, CLIENT, bytes(later)))
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn4(17), 1)
    out = IP(src=CLIENT, dst=VIP, frag=4, proto=17) / bytes(8)
    assert same(pkt.data, error4(ICMP(type=11, code=1), VIP, CLIENT, bytes(out)))


def test_icmp_quoting_ip_options() -> None:
    sent = IP(src=CLIENT, dst=SERVER, options=[IPOption_NOP()] * 8) / UDP(sport=CPORT, dport=DPORT) / b"data"
    pkt = loaded(error4(UNREACH, SERVER, CLIENT, quote_of(sent, None)))
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn4(17), 1)
    assert same(pkt.data, error4(UNREACH, VIP, CLIENT, quote_of(sent, None, IP__dst=VIP, UDP__dport=VPORT)))


def test_icmp_fragment_is_left_alone() -> None:
    error = IP(src=SERVER, dst=CLIENT, flags="MF") / UNREACH / quote_of(S4, 28)
    pkt = loaded(error)
    quoted = pkt.quoted()
    assert quoted is not None
    pkt.nat_icmp(quoted, conn4(17), 1)
    assert pkt.data == bytes(error)


def test_scapy_reads_our_quotes_as_errors() -> None:
    """The comparisons above look inside the quotes."""
    assert UDPerror in dissect(bytes(error4(UNREACH, SERVER, CLIENT, bytes(S4))))
    assert TCPerror in dissect(bytes(error6(ICMPv6DestUnreach(), CLIENT6, VIP6, bytes(C6))))
    assert IPerror in dissect(bytes(error4(UNREACH, SERVER, CLIENT, bytes(S4)[:24])))
    assert IPerror6 in dissect(bytes(error6(ICMPv6DestUnreach(), CLIENT6, VIP6, bytes(C6)[:44])))
