"""ICMP errors that the director itself sends (icmp_send, net/ipv4/icmp.c; icmpv6_send, net/ipv6/icmp.c)."""

from __future__ import annotations

import struct
import zlib

from uvs.engine.core import AF_INET, AF_INET6, Hdr, Header, checksum
from uvs.ipvs.ipproto import IPPROTO_ICMP, IPPROTO_ICMPV6
from uvs.ipvs.skb import Hook, NetnsIpvs, Skb

DEST_UNREACH, TIME_EXCEEDED = 3, 11
HOST_UNREACH, PORT_UNREACH, FRAG_NEEDED = 1, 3, 4
V6_DEST_UNREACH, V6_PACKET_TOO_BIG, V6_TIME_EXCEEDED = 1, 2, 3
V6_ADDR_UNREACH, V6_PORT_UNREACH = 3, 4

MIN_PMTU = {AF_INET: 552, AF_INET6: 1280}  # net.ipv4.route.min_pmtu; RFC 8200

_V4_ERRORS = frozenset({3, 4, 5, 11, 12})
_MAX = {AF_INET: 576, AF_INET6: 1280}  # RFC 1812 4.3.2.3; RFC 4443 2.4(c)
_HEADERS = {AF_INET: 28, AF_INET6: 48}


def told_mtu(skb: Skb) -> int:
    """What an ICMP error says that fits its path, bytes; 0: it says nothing of it."""
    iph = skb.iph
    kind = (DEST_UNREACH, FRAG_NEEDED) if iph.af == AF_INET else (V6_PACKET_TOO_BIG, iph.icmp_code)
    if (iph.icmp_type, iph.icmp_code) != kind:
        return 0
    mtu = int.from_bytes(skb.pkt.view[iph.len + (6 if iph.af == AF_INET else 4) : iph.len + 8], "big")
    return max(mtu, MIN_PMTU[iph.af]) if mtu else 0


def port_unreachable(ipvs: NetnsIpvs, skb: Skb) -> None:
    """To the client: no real server."""
    v4 = skb.iph.af == AF_INET
    _answer(ipvs, skb, *((DEST_UNREACH, PORT_UNREACH) if v4 else (V6_DEST_UNREACH, V6_PORT_UNREACH)))


def host_unreachable(ipvs: NetnsIpvs, skb: Skb, sent: bool = False) -> None:
    """To the client: no route to the real server, or (`sent`) it does not answer (dst_link_failure)."""
    v4 = skb.iph.af == AF_INET
    kind = (DEST_UNREACH, HOST_UNREACH) if v4 else (V6_DEST_UNREACH, V6_ADDR_UNREACH)
    icmp_send(ipvs, skb, skb.iph, skb.pkt.data, *kind, 0, sent=sent)


def time_exceeded(ipvs: NetnsIpvs, skb: Skb) -> None:
    """To the sender: TTL or hop limit used up."""
    _answer(ipvs, skb, TIME_EXCEEDED if skb.iph.af == AF_INET else V6_TIME_EXCEEDED, 0)


def too_big(ipvs: NetnsIpvs, skb: Skb, mtu: int) -> None:
    """To the sender: fragmentation needed, or packet too big; `mtu` in bytes."""
    v4 = skb.iph.af == AF_INET
    _answer(ipvs, skb, *((DEST_UNREACH, FRAG_NEEDED) if v4 else (V6_PACKET_TOO_BIG, 0)), mtu)


def _may_answer(iph: Header) -> bool:
    """No errors about errors, later fragments, and packets to or from many (RFC 1122 3.2.2)."""
    if iph.flags & Hdr.LATER:
        return False
    if iph.af == AF_INET:
        many = iph.daddr[0] >= 224 or iph.saddr[0] >= 224 or iph.saddr == bytes(4)
        return not many and not (iph.protocol == IPPROTO_ICMP and iph.icmp_type in _V4_ERRORS)
    many = iph.daddr[0] == 0xFF or iph.saddr[0] == 0xFF or iph.saddr == bytes(16)
    return not many and not (iph.protocol == IPPROTO_ICMPV6 and iph.icmp_type < 128)


def _answer(ipvs: NetnsIpvs, skb: Skb, typ: int, code: int, info: int = 0) -> None:
    icmp_send(ipvs, skb, skb.iph, skb.pkt.data, typ, code, info)


def icmp_send(
    ipvs: NetnsIpvs, skb: Skb, iph: Header, quote: bytes, typ: int, code: int, info: int, sent: bool = False
) -> None:
    """Tell the sender of a packet of an error: an ICMP with second word `info`, into `skb.made`.

    `iph` and `quote`: that packet's header, and the packet from there on; `sent`: it was on its way out of
    this host, so that its destination, even if that is an address of ours, is not the source of an ICMPv4.
    """
    if not _may_answer(iph):
        return
    v4, peer = iph.af == AF_INET, iph.saddr
    own = ipvs.routes.is_local(iph.af, iph.daddr)
    if v4 and skb.hook == Hook.LOCAL_IN and not own:
        # Taken in by a mark: its destination would be the source, and no IPv4 route has a foreign one.
        if skb.walk:
            skb.walk.step(3, "icmp_send", "not sent: the packet's destination is no address of this host")
        return
    route = ipvs.routes.find(iph.af, peer)
    if route is None:
        return
    # Neither path MTU discovery nor this host itself is held back (icmpv4_xrlim_allow).
    limited = (typ, code) != (DEST_UNREACH, FRAG_NEEDED) if v4 else typ != V6_PACKET_TOO_BIG
    if limited and not route.local and not ipvs.icmp_limit[iph.af].allow(peer, skb.now):
        if skb.walk:
            skb.walk.step(3, "icmp_send", "not sent: rate limit", type=typ, code=code)
        return
    source = iph.daddr if own and not (v4 and sent) else route.saddr
    build = _build_v4 if v4 else _build_v6
    error = build(
        ipvs, iph, quote[: min(_MAX[iph.af], route.mtu) - _HEADERS[iph.af]], source, typ, code, info
    )
    if skb.walk:
        skb.walk.step(3, "icmp_send", f"type {typ} code {code} to the sender", mtu=info or None)
    skb.made.append((route.index, error))


def _build_v4(
    ipvs: NetnsIpvs, iph: Header, quote: bytes, source: bytes, typ: int, code: int, info: int
) -> bytes:
    body = struct.pack("!BBHI", typ, code, 0, info) + quote
    body = body[:2] + struct.pack("!H", checksum(body)) + body[4:]
    tos = (iph.tos & 0x1E) | 0xC0  # IPTOS_TOS_MASK, IPTOS_PREC_INTERNETCONTROL
    ident, length = ipvs.next_ident(), 20 + len(body)
    fields = 0x45, tos, length, ident, 0, 64, IPPROTO_ICMP, 0, source, iph.saddr
    head: bytes = struct.pack("!BBHHHBBH4s4s", *fields)
    return head[:10] + struct.pack("!H", checksum(head)) + head[12:] + body


def _build_v6(
    ipvs: NetnsIpvs, iph: Header, quote: bytes, source: bytes, typ: int, code: int, info: int
) -> bytes:
    body = struct.pack("!BBHI", typ, code, 0, info) + quote
    pseudo = source + iph.saddr + struct.pack("!II", len(body), IPPROTO_ICMPV6)
    body = body[:2] + struct.pack("!H", checksum(pseudo + body)) + body[4:]
    label = 0
    if ipvs.auto_flowlabels:  # ip6_make_flowlabel: of a hash, the same for all errors to one host
        label = zlib.crc32(source + iph.saddr, ipvs.flow_seed) & 0xFFFFF or 1
    return struct.pack("!IHBB", 6 << 28 | label, len(body), IPPROTO_ICMPV6, 64) + source + iph.saddr + body
