"""Packets in tests: built with scapy, compared field by field, and connections without a table."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet as Scapy

from uvs.engine.core import AF_INET, AF_INET6, Conn, Hdr, Packet, ffi

# The cast of every table: client, virtual service, real server, director.
CLIENT, VIP, SERVER, DIRECTOR = "198.51.100.7", "192.0.2.1", "10.0.0.2", "10.0.0.1"
CLIENT6, VIP6, SERVER6, DIRECTOR6 = "2001:db8:c::7", "2001:db8::1", "fd00::2", "fd00::1"
CPORT, VPORT, DPORT = 54321, 80, 8080


def packed(addr: str) -> bytes:
    """An address in text as bytes in network order."""
    return ip_address(addr).packed


def loaded(data: Any, mark: int = 0) -> Packet:
    """A packet of the engine that holds `data` (bytes or scapy); it must parse."""
    pkt = Packet()
    assert pkt.load(bytes(data), mark) == 0
    return pkt


def flags(names: str) -> int:
    """`"PORTS L4"` as flags."""
    out = 0
    for name in names.split():
        out |= getattr(Hdr, name)
    return out


def conn(
    client: str, cport: int, virtual: str, vport: int, server: str, dport: int, protocol: int = 6
) -> Conn:
    """A connection that stands in no table: what the transmitters read of it."""
    c = ffi.new("struct uvs_conn *")
    c.af = AF_INET if len(packed(virtual)) == 4 else AF_INET6
    c.daf = AF_INET if len(packed(server)) == 4 else AF_INET6
    c.protocol, c.cport, c.vport, c.dport = protocol, cport, vport, dport
    for name, addr in ("caddr", client), ("vaddr", virtual), ("daddr", server):
        ffi.buffer(ffi.addressof(c, name))[:] = packed(addr).ljust(16, b"\0")
    return Conn(c)


def conn4(protocol: int = 6, dport: int = DPORT) -> Conn:
    """The cast's IPv4 connection."""
    return conn(CLIENT, CPORT, VIP, VPORT, SERVER, dport, protocol)


def conn6(protocol: int = 6, dport: int = DPORT) -> Conn:
    """The cast's IPv6 connection."""
    return conn(CLIENT6, CPORT, VIP6, VPORT, SERVER6, dport, protocol)


def dissect(data: bytes) -> Scapy:
    """Bytes of an IP datagram as scapy reads them."""
    return IP(data) if data[0] >> 4 == 4 else IPv6(data)


def fields(data: Any) -> dict[str, Any]:
    """Every field of every layer, by `layer number layer.field`."""
    out = {}
    for n, layer in enumerate(dissect(bytes(data)).layers()):
        part = dissect(bytes(data)).getlayer(n)
        for field in part.fields_desc:
            value = part.getfieldval(field.name)
            out[f"{n} {layer.__name__}.{field.name}"] = value if isinstance(value, int) else repr(value)
    return out


def same(got: bytes, expected: Any) -> bool:
    """Compare field by field, so that a failure names the field, then byte by byte."""
    assert fields(got) == fields(expected)
    assert got == bytes(expected)
    return True


def rewritten(packet: Scapy, **changes: Any) -> Scapy:
    """`packet` with `layer__field=value` changed and every checksum of it computed anew.

    Layers are those of the class name: `IP__dst="10.0.0.2", TCP__dport=8080`.
    """
    out = packet.copy()
    for name, value in changes.items():
        layer, field = name.split("__")
        setattr(next(part for part in _layers(out) if type(part).__name__ == layer), field, value)
    for part in _layers(out):
        for field in ("chksum", "cksum"):
            if field in part.fields:
                delattr(part, field)
    return dissect(bytes(out))


def _layers(packet: Scapy) -> list[Scapy]:
    parts = []
    while packet:
        parts.append(packet)
        packet = packet.payload
    return parts


def half(packet: Scapy) -> Packet:
    """As a sender's stack hands it over: the checksum is the sum of the pseudo header."""
    whole = loaded(packet)
    halve(whole)
    return whole


def halve(packet: Packet) -> None:
    """The same with a packet that is whole; nothing is done to others than TCP's."""
    iph = packet.iph
    if iph.protocol != 6:
        return
    pseudo = iph.saddr + iph.daddr + (iph.end - iph.len).to_bytes(4, "big") + bytes([0, 0, 0, 6])
    total = sum(int.from_bytes(pseudo[i : i + 2], "big") for i in range(0, len(pseudo), 2))
    while total >> 16:
        total = (total >> 16) + (total & 0xFFFF)
    packet.view[iph.len + 16 : iph.len + 18] = total.to_bytes(2, "big")
    packet.partial = 1
