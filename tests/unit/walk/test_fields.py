"""Packets taken apart, and what changed of them."""

from __future__ import annotations

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6EchoRequest, ICMPv6PacketTooBig, IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import GRE
from scapy.layers.sctp import SCTP, SCTPChunkInit
from scapy.packet import Packet, Raw

from uvs.walk.diff import changes, of_frame
from uvs.walk.fields import layers

V4 = IP(src="192.0.2.2", dst="192.0.2.100", id=7)
V6 = IPv6(src="2001:db8::2", dst="2001:db8::100")
OUTER = IP(src="198.51.100.1", dst="198.51.100.11")
REQUEST = V4 / TCP(sport=1024, dport=80, seq=5, options=[("MSS", 1460)]) / Raw(b"hello\r\n\x1b[31m")
# What is in the packet, the layers that are found, and a field of the last one.
PACKETS: list[tuple[Packet, list[str], tuple[str, str]]] = [
    (REQUEST, ["IPv4", "TCP", "payload"], ("data", r"hello\r\n\x1b[31m")),
    (V4 / UDP(sport=1, dport=2), ["IPv4", "UDP"], ("length", "8")),
    (V4 / SCTP(sport=1, dport=2, tag=9) / SCTPChunkInit(), ["IPv4", "SCTP", "payload"], ("length", "20")),
    (V6 / TCP(sport=1024, dport=80), ["IPv6", "TCP"], ("dport", "80")),
    (V6 / UDP(sport=1, dport=2), ["IPv6", "UDP"], ("sport", "1")),
    (V4 / ICMP(type=8, id=3, seq=4), ["IPv4", "ICMP"], ("seq", "4")),
    (V6 / ICMPv6EchoRequest(id=3, seq=4), ["IPv6", "ICMPv6"], ("id", "3")),
    (V4 / ICMP(type=3, code=4, nexthopmtu=1400) / REQUEST, ["IPv4", "ICMP", "quoted IPv4", "quoted TCP", "quoted payload"], ("length", "12")),
    (V4 / ICMP(type=3, code=4, nexthopmtu=1400) / Raw(bytes(REQUEST)[:28]), ["IPv4", "ICMP", "quoted IPv4", "quoted TCP"], ("seq", "5")),
    (V6 / ICMPv6PacketTooBig(mtu=1300) / V6 / UDP(sport=9), ["IPv6", "ICMPv6", "quoted IPv6", "quoted UDP"], ("sport", "9")),
    (V6 / IPv6ExtHdrFragment(m=1, id=5) / UDP(sport=9), ["IPv6", "Fragment", "UDP"], ("sport", "9")),
    (V6 / IPv6ExtHdrFragment(offset=2, id=5, nh=17) / Raw(b"x"), ["IPv6", "Fragment", "payload"], ("length", "1")),
    (IP(src="1.1.1.1", dst="2.2.2.2", frag=2, proto=17) / Raw(b"x"), ["IPv4", "payload"], ("length", "1")),
    (OUTER / V4 / UDP(sport=9), ["outer IPv4", "IPv4", "UDP"], ("sport", "9")),
    (OUTER / GRE() / V6 / UDP(sport=9), ["outer IPv4", "outer GRE", "IPv6", "UDP"], ("sport", "9")),
    (OUTER / GRE(chksum_present=1) / V4 / UDP(sport=9), ["outer IPv4", "outer GRE", "IPv4", "UDP"], ("sport", "9")),
]  # fmt: skip


@pytest.mark.parametrize(
    ("packet", "names", "field"), PACKETS, ids=lambda v: v.summary() if isinstance(v, Packet) else ""
)
def test_layers(packet: Packet, names: list[str], field: tuple[str, str]) -> None:
    found = layers(bytes(packet))
    assert [layer.name for layer in found] == names
    assert found[-1].fields[field[0]] == field[1]
    wrong = [
        (la.name, v) for la in found for n, v in la.fields.items() if n == "checksum" and v.endswith("wrong")
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "packet",
    [V4 / TCP(), V4 / UDP(), V4 / SCTP(), V6 / TCP(), V6 / UDP(), V4 / ICMP(), V6 / ICMPv6EchoRequest()],
    ids=lambda p: p.summary(),
)
def test_a_checksum_is_judged(packet: Packet) -> None:
    good, bad = bytes(packet), bytearray(bytes(packet))
    bad[-1] ^= 1
    assert layers(good)[1].fields["checksum"].endswith(" right")
    assert layers(bytes(bad))[1].fields["checksum"].endswith(" wrong")


def test_of_a_fragment_nobody_can_tell() -> None:
    whole = bytes(V4 / UDP(sport=9) / Raw(b"x" * 16))
    first = bytearray(whole)
    first[6] |= 0x20
    (_, udp, _) = layers(bytes(first))
    assert udp.fields["checksum"].split() == ["0x" + whole[26:28].hex()]


@pytest.mark.parametrize("data", [b"", b"\x45", b"\x60", bytes(V6)[:39], b"\x4f" + bytes(19), b"\x00" * 40])
def test_nothing_is_refused(data: bytes) -> None:
    assert "".join(layer.name for layer in layers(data)) in ("", "payload", "IPv4")


def said(before: Packet, after: Packet) -> list[str]:
    return [
        f"{c['layer']}.{c['field']} {c['before']} > {c['after']}"
        for c in changes(bytes(before), bytes(after))
    ]


def test_nat() -> None:
    after = (
        IP(src="192.0.2.2", dst="198.51.100.11", id=7, ttl=63)
        / TCP(sport=1024, dport=8080, seq=5, options=[("MSS", 1460)])
        / Raw(b"hello\r\n\x1b[31m")
    )
    fields = [line.split(" ", 1)[0] for line in said(REQUEST, after)]
    assert fields == ["IPv4.dst", "IPv4.ttl", "IPv4.checksum", "TCP.dport", "TCP.checksum"]


def test_gue_is_found_by_what_is_inside() -> None:
    inner = V4 / UDP(sport=9)
    tunnelled = OUTER / UDP(sport=40000, dport=6080, chksum=0) / Raw(b"\0\4\0\0" + bytes(inner))
    assert [c["layer"] for c in changes(bytes(inner), bytes(tunnelled)) if c["field"] == "protocol"] == [
        "outer IPv4",
        "outer GUE",
    ]
    assert [la.name for la in layers(bytes(tunnelled))] == ["IPv4", "UDP", "payload"]


def test_a_layer_that_goes() -> None:
    whole, fragment = V6 / UDP(sport=9), V6 / IPv6ExtHdrFragment(id=5) / UDP(sport=9)
    assert "Fragment.id 5 > None" in said(fragment, whole)


def test_a_frame() -> None:
    assert (
        of_frame({"src": "a", "dst": "b"}, "192.0.2.1 dev eth0 lladdr 02:00:00:00:00:01")[0]["after"]
        == "02:00:00:00:00:01"
    )
    assert of_frame(None, "192.0.2.1 dev eth0 unresolved")[0] == {
        "layer": "Ethernet", "field": "dst", "before": "the director's", "after": "that of 192.0.2.1",
    }  # fmt: skip
