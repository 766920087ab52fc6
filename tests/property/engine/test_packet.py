"""The parser against packets whose structure is known because they were built."""

from __future__ import annotations

import struct
from ipaddress import ip_address

from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from scapy.layers.sctp import SCTP
from support.packets import CLIENT, CLIENT6, VIP, VIP6, dissect
from support.strategies import Datagram, datagrams

from uvs.engine.core import AF_INET, AF_INET6, Hdr, Packet, Why


@given(datagrams())
def test_agrees_with_scapy(d: Datagram) -> None:
    """Addresses, ports and the other fields are those that scapy reads from the same bytes."""
    pkt = Packet()
    assert pkt.load(d.data) == 0
    seen, iph = dissect(d.data), pkt.iph
    assert (iph.af, iph.protocol, iph.len) == (AF_INET6 if d.v6 else AF_INET, d.protocol, d.l4)
    assert (iph.saddr, iph.daddr) == (ip_address(seen.src).packed, ip_address(seen.dst).packed)
    assert (iph.ttl, iph.tos) == ((seen.hlim, seen.tc) if d.v6 else (seen.ttl, seen.tos))
    assert bool(iph.flags & Hdr.DF) == (not d.v6 and bool(seen.flags.DF))
    assert iph.flags & ~(Hdr.DF | Hdr.ATOMIC) == Hdr.L4 | (Hdr.PORTS if d.ports else 0)
    if d.ports:
        l4 = {6: TCP, 17: UDP, 132: SCTP}[d.protocol](d.data[d.l4 :])
        assert (iph.sport, iph.dport) == (l4.sport, l4.dport)
    if d.protocol == 6:
        assert (iph.tcp_flags, iph.segment) == (int(l4.flags) & 0xFF, len(l4.payload))


def honest(d: Datagram, n: int) -> bytes:
    """The first `n` bytes, with the length field saying so."""
    data = d.data[:n]
    if d.v6:
        return data[:4] + struct.pack("!H", n - 40) + data[6:]
    return data[:2] + struct.pack("!H", n) + data[4:]


@given(datagrams())
def test_cut_at_every_byte(d: Datagram) -> None:
    """A liar is too short; an honest packet is malformed until its headers end, then partly readable."""
    fixed = 40 if d.v6 else 20
    pkt = Packet()
    for n in range(len(d.data)):
        assert pkt.load(d.data[:n]) == Why.SHORT
        if n < fixed:
            continue
        why = pkt.load(honest(d, n))
        if n < d.l4:
            assert why == Why.MALFORMED
            continue
        assert why == 0
        room = n - d.l4
        assert bool(pkt.iph.flags & Hdr.PORTS) == (d.ports and room >= 4)
        assert bool(pkt.iph.flags & Hdr.L4) == (room >= d.need)


@given(datagrams())
def test_quoted_and_cut_at_every_byte(d: Datagram) -> None:
    """The same packet inside an ICMP error, its length field left alone."""
    error = (
        IPv6(src=CLIENT6, dst=VIP6) / ICMPv6DestUnreach() if d.v6 else IP(src=CLIENT, dst=VIP) / ICMP(type=3)
    )
    head = bytes(error)
    pkt = Packet()
    for n in range(len(d.data) + 1):
        size = struct.pack("!H", len(head) - 40 + n if d.v6 else len(head) + n)
        at = 4 if d.v6 else 2
        assert pkt.load(head[:at] + size + head[at + 2 :] + d.data[:n]) == 0
        quoted = pkt.quoted()
        if n < d.l4:
            assert quoted is None
            continue
        assert quoted is not None
        assert (quoted.off, quoted.len, quoted.protocol) == (len(head), len(head) + d.l4, d.protocol)
        assert bool(quoted.flags & Hdr.PORTS) == (d.ports and n - d.l4 >= 4)
        assert bool(quoted.flags & Hdr.L4) == (n - d.l4 >= d.need)


@given(st.binary(max_size=200), st.sampled_from([b"", b"\x45\0", b"\x46", b"\x60", b"\x60\0\0\0\0\x40\0"]))
def test_bytes_without_sense(data: bytes, prefix: bytes) -> None:
    """Whatever comes in, what is said of it lies within it."""
    pkt = Packet()
    data = prefix + data
    if pkt.load(data):
        assert pkt.iph.flags == 0
        return
    iph = pkt.iph
    assert iph.len <= iph.end == pkt.len <= len(data)
    assert not iph.flags & Hdr.PORTS or iph.end - iph.len >= 4
