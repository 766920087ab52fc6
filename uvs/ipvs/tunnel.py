"""ICMP errors about the director's own tunnel packets (ip_vs_in_icmp, ipvs_udp_decap, ipvs_gre_decap)."""

from __future__ import annotations

from typing import NamedTuple

from uvs.engine.core import (
    AF_INET,
    ROUTE_LEARNED,
    ROUTE_MTU,
    TUN_GRE,
    TUN_GUE,
    TUN_IPIP,
    Hdr,
    Header,
    Why,
)
from uvs.ipvs import icmp, protocols, walk
from uvs.ipvs.encap import UDP_HLEN
from uvs.ipvs.ipproto import IPPROTO_GRE, IPPROTO_IPIP, IPPROTO_UDP
from uvs.ipvs.skb import NF_STOLEN, Hook, NetnsIpvs, Skb, Verdict

IPV4_HEADER, MIN_MTU = 20, 68
_GRE_CSUM = 0x8000
_ETH_P_IP = 0x0800


class Inside(NamedTuple):
    """Where the client's packet starts in an ICMP error, and by what kind of tunnel it went."""

    off: int
    overhead: int  # bytes from the outer IP header on


def ip_vs_in_icmp_tunnel(ipvs: NetnsIpvs, skb: Skb, outer: Header) -> Verdict | None:
    """An IPv4 error that quotes `outer`: is it about a tunnel packet of ours?

    Then we learn the path MTU, and the client is told of its own packet. None: it is not, and is to be
    taken as an error about `outer` itself.
    """
    if outer.protocol not in (IPPROTO_IPIP, IPPROTO_UDP, IPPROTO_GRE):
        return None
    here = skb.hook == Hook.LOCAL_IN or (
        skb.hook == Hook.LOCAL_OUT and ipvs.routes.is_local(skb.iph.af, skb.iph.daddr)
    )
    if not here:
        return skb.accept(Why.PROTOCOL) if outer.protocol == IPPROTO_IPIP else None
    if outer.flags & Hdr.LATER:
        return skb.accept(Why.FRAGMENT)
    inside = _inside(ipvs, skb, outer)
    if inside is None:
        return skb.accept(Why.PROTOCOL) if outer.protocol == IPPROTO_IPIP else None
    inner = skb.pkt.quoted_at(inside.off, AF_INET)
    if inner is None:
        return skb.accept(Why.SHORT)
    return _about_request(ipvs, skb, outer, inner, inside.overhead)


def _inside(ipvs: NetnsIpvs, skb: Skb, outer: Header) -> Inside | None:
    """Past the headers of a tunnel of ours; None: none of ours. Only IPv4 is looked for inside."""
    find, head = ipvs.services.rs_table.find_tunnel, skb.pkt.data[outer.len : outer.end]
    length = 0
    if outer.protocol == IPPROTO_IPIP:
        if find(outer.af, outer.daddr, 0) != TUN_IPIP:
            return None
    elif outer.protocol == IPPROTO_UDP:
        if len(head) < UDP_HLEN or find(outer.af, outer.daddr, head[2] << 8 | head[3]) != TUN_GUE:
            return None
        gue = head[UDP_HLEN : UDP_HLEN + 4]
        if len(gue) < 4 or gue[0] >> 5 or gue[1] != IPPROTO_IPIP:
            return None
        length = UDP_HLEN + 4 + (gue[0] & 31) * 4
    else:
        if len(head) < 4 or find(outer.af, outer.daddr, 0) != TUN_GRE:
            return None
        flags = head[0] << 8 | head[1]
        if flags & ~_GRE_CSUM or head[2] << 8 | head[3] != _ETH_P_IP:
            return None
        length = 8 if flags else 4
    return Inside(outer.len + length, IPV4_HEADER + length)


def _about_request(ipvs: NetnsIpvs, skb: Skb, outer: Header, inner: Header, overhead: int) -> Verdict:
    if inner.protocol not in protocols.BY_NUMBER:
        return skb.accept(Why.PROTOCOL)
    if inner.flags & Hdr.LATER:
        return skb.accept(Why.FRAGMENT)
    cp = ipvs.table.conn_in_get(inner)
    if skb.walk:
        skb.walk.step(1, "ip_vs_in_icmp", "ours" if cp else "no connection", tunnelled=walk.describe(inner))
    if cp is None:
        return skb.accept(Why.NO_CONN)
    if skb.trace:
        skb.trace.found(cp)
    if not skb.pkt.l4_csum_ok():
        return skb.drop(Why.CHECKSUM)
    skb.why = Why.TUNNEL_ICMP
    typ, code = skb.iph.icmp_type, skb.iph.icmp_code
    info = int.from_bytes(skb.pkt.view[skb.iph.len + 4 : skb.iph.len + 8], "big")
    if (typ, code) == (icmp.DEST_UNREACH, icmp.FRAG_NEEDED):
        mtu = info & 0xFFFF
        ipvs.routes.update_pmtu(outer.af, outer.daddr, mtu)
        if not inner.flags & Hdr.DF:
            return NF_STOLEN
        dest = ipvs.services.dest_of(cp.dest)
        if dest and (cached := dest.rec.route):
            # A route that was cached before this path MTU was known keeps its own until the next packet;
            # one that was made of a learnt path MTU is changed in place (update_or_create_fnhe).
            now = ipvs.routes.find(outer.af, outer.daddr) if cached & ROUTE_LEARNED else None
            mtu = now.mtu if now else cached & ROUTE_MTU
        info = mtu - overhead if mtu > MIN_MTU + overhead else mtu
    quote = skb.pkt.data[inner.off :]
    icmp.icmp_send(ipvs, skb, inner, quote, typ, code, info)
    ipvs.table.out_stats(cp, len(quote))
    return NF_STOLEN
