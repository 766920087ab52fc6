"""What transmitters must keep: NAT can be undone, checksums stay what they were, tunnels carry, pieces fit."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP
from scapy.layers.inet6 import ICMPv6DestUnreach, IPv6
from support.packets import conn, dissect, loaded, packed
from support.strategies import ADDR4, ADDR6, PORT, Datagram, datagrams

from uvs.engine.core import (
    AF_INET,
    AF_INET6,
    TUN_F_CSUM,
    TUN_F_REMCSUM,
    TUN_GRE,
    TUN_GUE,
    TUN_IPIP,
    Conn,
    Hdr,
    Packet,
    Why,
    checksum,
    tunnel_hlen,
)
from uvs.ipvs.encap import Encap, gre, gue

PORTS = ("tcp", "udp", "sctp")


def conn_for(data: bytes, virtual: tuple[str, int], server: tuple[str, int]) -> Conn:
    any_client = "::" if data[0] >> 4 == 6 else "0.0.0.0"
    return conn(any_client, 0, *virtual, *server)


@st.composite
def translations(
    draw: Any, names: tuple[str, ...] = PORTS
) -> tuple[Datagram, tuple[str, int], tuple[str, int]]:
    """A request, the virtual service that it asks for, and a real server."""
    d = draw(datagrams(names))
    seen = dissect(d.data)
    port = loaded(d.data).iph.dport
    return d, (seen.dst, port), (draw(ADDR6 if d.v6 else ADDR4), draw(PORT))


def turned(data: bytes) -> bytes:
    """The packet as an answer: addresses and ports the other way round. No checksum but a CRC minds."""
    pkt = loaded(data)
    iph, out = pkt.iph, bytearray(data)
    a, n = (8, 16) if iph.af == AF_INET6 else (12, 4)
    out[a : a + n], out[a + n : a + 2 * n] = data[a + n : a + 2 * n], data[a : a + n]
    if iph.flags & Hdr.PORTS:
        p = iph.len
        out[p : p + 2], out[p + 2 : p + 4] = data[p + 2 : p + 4], data[p : p + 2]
    answer = loaded(bytes(out))
    if iph.protocol == 132:
        answer.csum_fill()
    return answer.data


def right(pkt: Packet) -> bool:
    iph = pkt.iph
    header = iph.af == AF_INET6 or checksum(pkt.data[: iph.len]) == 0
    return header and pkt.l4_csum_ok()


@given(translations())
def test_dnat_then_snat_of_the_answer_is_the_answer_of_the_virtual_service(t: Any) -> None:
    d, virtual, server = t
    c = conn_for(d.data, virtual, server)
    pkt = loaded(d.data)
    pkt.dnat(c)
    assert right(pkt)
    answer = loaded(turned(pkt.data))
    assert right(answer)
    answer.snat(c)
    assert right(answer)
    assert answer.data == turned(d.data)


@given(translations(("tcp", "udp")), st.integers(1, 0xFFFE))
def test_a_wrong_checksum_stays_as_wrong_as_it_was(t: Any, by: int) -> None:
    """The difference from the right one is kept, so that the receiver sees the damage."""
    d, virtual, server = t
    at = d.l4 + (16 if d.protocol == 6 else 6)
    data = bytearray(d.data)
    wrong = (int.from_bytes(data[at : at + 2], "big") + by) % 0xFFFF
    assume(wrong)  # UDP 0 means none
    data[at : at + 2] = wrong.to_bytes(2, "big")
    good, bad = loaded(d.data), loaded(bytes(data))
    for pkt in good, bad:
        pkt.dnat(conn_for(d.data, virtual, server))
    values = [int.from_bytes(pkt.data[at : at + 2], "big") for pkt in (bad, good)]
    assert (values[0] - values[1] - by) % 0xFFFF == 0
    assert good.l4_csum_ok()
    assert not bad.l4_csum_ok()


@given(translations(), st.sampled_from([4, 8, None]))
def test_icmp_translation_undoes_itself(t: Any, cut: int | None) -> None:
    """There and back, both ways; only checksums were computed anew, and they were right."""
    d, virtual, server = t
    quote = turned(d.data)
    quote = quote[: None if cut is None else d.l4 + cut]
    error = IPv6(dst=virtual[0]) / ICMPv6DestUnreach() if d.v6 else IP(dst=virtual[0]) / ICMP(type=3, code=4)
    error.src = "2001:db8::7" if d.v6 else "198.51.100.7"
    data = bytes(error / quote)
    assume(len(data) < 65536)
    pkt = loaded(data)
    for there, back in (virtual, server), (server, virtual):
        quoted = pkt.quoted()
        assert quoted is not None
        pkt.nat_icmp(quoted, conn_for(data, there, back), 0)
        assert right(pkt)
        assert pkt.iph.daddr == packed(back[0])
        moved = pkt.quoted()
        assert moved is not None
        assert (moved.saddr, moved.sport) == (pkt.iph.daddr, back[1])
    assert pkt.data == data


BIG = st.integers(0, 3000).map(lambda n: (bytes(range(256)) * 12)[:n])


@given(datagrams(sizes=BIG, atomic=False), st.integers(68, 1600), st.integers(0, 0xFFFF))
def test_fragments_reassemble(d: Datagram, mtu: int, ident: int) -> None:
    pkt = loaded(d.data)
    parts = pkt.fragments(mtu, ident)
    if parts is None:
        assert d.v6  # headers, the transport's too, that do not fit the first fragment
        assert mtu < d.l4 + 8 + -(-d.need // 8) * 8
        return
    if len(d.data) <= mtu:
        assert parts == [d.data]
        return
    assert all(len(part) <= mtu for part in parts)
    body, more, pieces = b"", [], [loaded(part) for part in parts]
    for piece in pieces:
        assert piece.iph.fragoffs == len(body)
        if d.v6:
            at = fragment_header(piece.data)
            more.append(piece.data[at + 3] & 1)
            body += piece.data[at + 8 :]
        else:
            assert checksum(piece.data[: piece.iph.len]) == 0
            more.append(piece.data[6] >> 5 & 1)
            body += piece.data[piece.iph.len :]
    assert more == [1] * (len(parts) - 1) + [0]
    first = parts[0]
    if d.v6:
        at = fragment_header(first)
        head = bytearray(first[:at])
        head[4:6] = d.data[4:6]
        head[next_header_before(first, at)] = first[at]
        assert bytes(head) + body == d.data
    else:
        head = bytearray(first[: d.l4])
        head[2:4] = d.data[2:4]
        head[6] = d.data[6]
        if d.data[6] & 0x40 and d.data[4:6] == b"\0\0":
            head[4:6] = b"\0\0"
        head[10:12] = d.data[10:12]
        assert bytes(head) + body == d.data


def next_header_before(data: bytes, at: int) -> int:
    """Where the next-header octet stands that names the header at `at`."""
    field, here = 6, 40
    while here != at:
        length = (data[here + 1] + 2) * 4 if data[field] == 51 else (data[here + 1] + 1) * 8
        field, here = here, here + length
    return field


def fragment_header(data: bytes) -> int:
    field, here = 6, 40
    while data[field] != 44:
        length = (data[here + 1] + 2) * 4 if data[field] == 51 else (data[here + 1] + 1) * 8
        field, here = here, here + length
    return here


def carried(data: bytes) -> bytes:
    """What the other end of a tunnel makes of a packet; the checksums on the way are right."""
    pkt = loaded(data)
    assert checksum(data[: pkt.iph.len]) == 0 or pkt.iph.af == AF_INET6
    rest = data[pkt.iph.len :]
    if pkt.iph.protocol == 17:
        assert pkt.l4_csum_ok() or (pkt.iph.af == AF_INET6 and rest[6:8] == b"\0\0")
        assert int.from_bytes(rest[4:6], "big") == len(rest)
        header = gue(rest[8:])
        rest = rest[8:]
    elif pkt.iph.protocol == 47:
        header = gre(rest)
        assert header is not None
        assert not header.csum or checksum(rest) == 0
    else:
        header = Encap(0, pkt.iph.protocol)
    assert header is not None
    inner = rest[header.length :]
    assert header.protocol == (41 if inner[0] >> 4 == 6 else 4)
    return inner


TUNNELS = st.sampled_from(
    [(TUN_IPIP, 0), *((t, f) for t in (TUN_GUE, TUN_GRE) for f in (0, TUN_F_CSUM, TUN_F_REMCSUM))]
)


@given(datagrams(), st.booleans(), TUNNELS, ADDR4, ADDR6, st.booleans(), st.integers(0, 0xFFFF))
def test_tunnel_carries_the_packet_as_it_was(
    d: Datagram,
    outer6: bool,
    tunnel: tuple[int, int],
    addr4: str,
    addr6: str,
    pmtu_disc: bool,
    ident: int,
) -> None:
    """The inner bytes are unchanged but for the TTL; the outer ones say so much and are right."""
    pkt = loaded(d.data)
    inner = dissect(d.data)
    ttl = inner.hlim if d.v6 else inner.ttl
    if ttl <= 1:
        assert pkt.decrease_ttl() == Why.TTL
        assert pkt.data == d.data
        return
    assert pkt.decrease_ttl() == 0
    before = pkt.data
    assert [
        i for i, (a, b) in enumerate(zip(d.data, before, strict=True)) if a != b and i not in (10, 11)
    ] == [7 if d.v6 else 8]
    assert right(pkt)
    af, addr = (AF_INET6, addr6) if outer6 else (AF_INET, addr4)
    tun_type, tun_flags = tunnel
    assert (
        pkt.encap(
            af, packed(addr), packed(addr), ident,
            pmtu_disc=pmtu_disc, tun_type=tun_type, tun_flags=tun_flags, ports=(40000, 6080),
        )
        == 0
    )  # fmt: skip
    assert carried(pkt.data) == before
    assert pkt.len == len(before) + (40 if outer6 else 20) + tunnel_hlen(tun_type, tun_flags)
    outer = dissect(pkt.data)
    assert (outer.hlim if outer6 else outer.ttl) == ttl - 1
    own = {TUN_GUE: 17, TUN_GRE: 47}.get(tun_type, 41 if d.v6 else 4)
    assert (outer.nh if outer6 else outer.proto) == own
    tos = inner.tc if d.v6 else inner.tos
    assert (outer.tc if outer6 else outer.tos) == (tos - 1 if tos & 3 == 3 else tos)
    if not outer6:
        assert outer.len == pkt.len
        df = bool(pmtu_disc and not d.v6 and inner.flags.DF)
        assert (bool(outer.flags.DF), outer.id) == (df, 0 if df else ident)


@given(datagrams(), st.integers(0, 0xFFFFFFFF), st.tuples(st.integers(1, 65535), st.integers(1, 65535)))
def test_a_flow_keeps_its_source_port(d: Datagram, seed: int, ports: tuple[int, int]) -> None:
    """By addresses and ports alone: what is in the packet, or its TTL, plays no part."""
    low, high = sorted(ports)
    pkt = loaded(d.data)
    port = pkt.flow_src_port(seed, low, high)
    assert low <= port < max(high, low + 1)
    pkt.decrease_ttl()
    assert pkt.flow_src_port(seed, low, high) == port
