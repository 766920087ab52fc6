"""Transmitters: how a request leaves for its real server (ip_vs_xmit.c)."""

from __future__ import annotations

from collections.abc import Callable

from uvs.engine.core import (
    AF_INET,
    ROUTE_LEARNED,
    TUN_GRE,
    TUN_GUE,
    Conn,
    ConnFlag,
    Hdr,
    Header,
    Packet,
    Why,
    tunnel_hlen,
)
from uvs.ipvs import apps, icmp, plain
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP, PROTO_NAMES
from uvs.ipvs.route import Route
from uvs.ipvs.services import Dest
from uvs.ipvs.skb import NF_ACCEPT, NF_DROP, NF_STOLEN, Hook, NetnsIpvs, Skb, Verdict

# IP_VS_RT_MODE_*: what kind of route a transmitter may take.
RT_LOCAL, RT_NON_LOCAL, RT_RDR, RT_TUNNEL = 1, 2, 4, 32
RT_BYPASS = 64  # ours: by the packet's own destination (ip_vs_bypass_xmit)

TUN_STEPS = {TUN_GUE: ("ipvs_gue_encap", "gue"), TUN_GRE: ("ipvs_gre_encap", "gre")}

Transmitter = Callable[[NetnsIpvs, Skb, Conn, Header], Verdict]


def _is_loopback(af: int, addr: bytes) -> bool:
    return addr[0] == 127 if af == AF_INET else addr == bytes(15) + b"\1"


def _crosses_boundary(ipvs: NetnsIpvs, skb: Skb, local: bool, mode: int) -> bool:
    """crosses_local_route_boundary: must not take a packet from the host to the net, or back, unasked."""
    iph = skb.iph
    if local:
        here = skb.hook == Hook.LOCAL_IN or (
            skb.hook == Hook.LOCAL_OUT and ipvs.routes.is_local(iph.af, iph.daddr)
        )
        return not mode & RT_LOCAL or not (mode & RT_RDR or here)
    return not mode & RT_NON_LOCAL or iph.from_loopback


def ip_vs_get_out_rt(ipvs: NetnsIpvs, skb: Skb, cp: Conn, hdr: Header, mode: int) -> Route | None:
    """__ip_vs_get_out_rt and its IPv6 twin: route, boundary, TTL, MTU, in this order.

    None: the packet goes nowhere, `skb.why` says why, and its sender has been told where IPVS tells.
    `hdr`: the header that the connection was found by; one quoted in an ICMP error is never answered.
    """
    pkt, iph, walk = skb.pkt, skb.iph, skb.walk
    index = cp.nexthop
    route = ipvs.routes.at(index) if index else None
    if route is None:
        # cache_bypass goes where the packet itself wants to go; all others to the real server.
        af, daddr = (iph.af, iph.daddr) if mode & RT_BYPASS else (cp.daf, cp.daddr)
        route = ipvs.routes.find(af, daddr)
        if route is None:
            skb.why = Why.NO_ROUTE
            if walk:
                walk.step(2, "ip_vs_get_out_rt", "no route to the real server")
            icmp.host_unreachable(ipvs, skb)
            return None
        cp.nexthop = route.index
        plain.leads(ipvs.services.dest_of(cp.dest), route.index)
    if _crosses_boundary(ipvs, skb, route.local, mode):
        skb.why = Why.BOUNDARY
        if walk:
            walk.step(2, "crosses_local_route_boundary", "refused", local_route=route.local)
        return None
    if route.local:
        if walk:
            walk.step(2, "ip_vs_get_out_rt", "the real server is this host")
        return route
    if pkt.decrease_ttl():
        skb.why = Why.TTL
        if walk:
            walk.step(2, "decrement_ttl", "exceeded", ttl=iph.ttl)
        icmp.time_exceeded(ipvs, skb)
        return None
    mtu = route.mtu
    if mode & RT_TUNNEL:
        dest = ipvs.services.dest_of(cp.dest)
        if dest is None:
            skb.why = Why.DEAD_DEST
            return None
        dest.rec.route = route.mtu | (ROUTE_LEARNED if route.learned else 0)
        mtu -= _overhead(cp, dest)
        if mtu < (68 if cp.daf == AF_INET else 1280):
            skb.why = Why.TOO_BIG
            return None
    if walk:
        walk.step(
            2, "ip_vs_get_out_rt", f"via {ipvs.routes.describe(route.index)}, TTL less one",
            mtu=mtu, length=pkt.len,
        )  # fmt: skip
    if pkt.len > mtu and not skb.gso and not _ensure_mtu_is_adequate(ipvs, skb, hdr, mtu, mode):
        return None
    return route


def _overhead(cp: Conn, dest: Dest) -> int:
    """Bytes that a tunnel takes of the MTU."""
    return (20 if cp.daf == AF_INET else 40) + tunnel_hlen(dest.rec.tun_type, dest.rec.tun_flags)


def _ensure_mtu_is_adequate(ipvs: NetnsIpvs, skb: Skb, hdr: Header, mtu: int, mode: int) -> bool:
    """ensure_mtu_is_adequate, for a packet longer than `mtu`; False: too big, the sender was told."""
    iph, related = skb.iph, hdr.flags & Hdr.ICMP
    if iph.af == AF_INET:
        if not iph.flags & Hdr.DF or related or (mode & RT_TUNNEL and not ipvs.sysctl.pmtu_disc):
            return True  # egress fragments it
    elif related:
        skb.why = Why.TOO_BIG
        return False
    elif 0 < skb.frag_max <= mtu:
        return True  # egress cuts it as it came
    skb.why = Why.TOO_BIG
    if skb.walk:
        skb.walk.step(2, "ensure_mtu_is_adequate", "too big", length=skb.pkt.len, mtu=mtu)
    icmp.too_big(ipvs, skb, mtu)
    return False


# What each protocol's NAT handler must be able to write to (tcp_dnat_handler and its like).
_L4_SIZE = {IPPROTO_TCP: 20, IPPROTO_UDP: 8, IPPROTO_SCTP: 12}


def too_short_for_nat(skb: Skb) -> bool:
    """Is the transport header cut, so that the kernel's NAT gives the packet up?"""
    iph = skb.iph
    return skb.pkt.len - iph.len < _L4_SIZE.get(iph.protocol, 0) and not iph.flags & Hdr.LATER


def _send(skb: Skb, cp: Conn, route: Route, why: Why) -> Verdict:
    skb.send(route, cp)
    skb.ipvs_property = True
    skb.why = why
    return NF_STOLEN


def ip_vs_nat_xmit(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Verdict:
    """NAT: destination := real server; a local one goes on to the local stack, rewritten."""
    if cp.flags & ConnFlag.NO_CPORT and iph.flags & Hdr.PORTS:
        ipvs.table.conn_fill_cport(cp, iph.sport)
    route = ip_vs_get_out_rt(ipvs, skb, cp, iph, RT_LOCAL | RT_NON_LOCAL | RT_RDR)
    if route is None:
        return NF_DROP
    if route.local and not skb.loopback and _is_loopback(cp.daf, cp.daddr):
        if skb.walk:
            skb.walk.step(2, "ip_vs_nat_xmit", "refused: from the network to a loopback address")
        return skb.drop(Why.BOUNDARY)
    if too_short_for_nat(skb):
        return skb.drop(Why.SHORT)
    if apps.bound(cp) and (why := apps.ip_vs_app_pkt_in(ipvs, skb, cp, iph)):
        return skb.drop(why)
    skb.pkt.dnat(cp)
    if skb.walk:
        name = PROTO_NAMES.get(iph.protocol, "").lower()
        skb.walk.step(2, f"{name}_dnat_handler" if name else "ip_vs_nat_xmit", "destination rewritten")
    if route.local:
        skb.modified = skb.ipvs_property = True
        return skb.accept(Why.LOCAL)
    return _send(skb, cp, route, Why.FORWARDED)


def ip_vs_dr_xmit(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Verdict:
    """Direct routing: only the MAC addresses change."""
    route = ip_vs_get_out_rt(ipvs, skb, cp, iph, RT_LOCAL | RT_NON_LOCAL)
    if route is None:
        return NF_DROP
    if route.local:
        return skb.accept(Why.LOCAL)
    return _send(skb, cp, route, Why.FORWARDED)


def ip_vs_tunnel_xmit(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Verdict:
    """Tunnelling: ipip, gue or gre, as the destination says now."""
    route = ip_vs_get_out_rt(ipvs, skb, cp, iph, RT_LOCAL | RT_NON_LOCAL | RT_TUNNEL)
    if route is None:
        return NF_DROP
    if route.local:
        return skb.accept(Why.LOCAL)
    dest = ipvs.services.dest_of(cp.dest)
    assert dest is not None  # ip_vs_get_out_rt saw it
    rec, ports = dest.rec, (0, 0)
    if rec.tun_type == TUN_GUE:
        ports = skb.pkt.flow_src_port(ipvs.flow_seed, *ipvs.local_port_range), rec.tun_port
    packets = [skb.pkt]
    if skb.gso:  # a tunnel's packets are cut before they are put in it (iptunnel_handle_offloads)
        packets = [Packet.of(part) for part in skb.pkt.segments(cp, route.mtu - _overhead(cp, dest))]
    for pkt in packets:
        why = pkt.encap(
            cp.daf, route.saddr, cp.daddr, ipvs.next_ident(),
            pmtu_disc=bool(ipvs.sysctl.pmtu_disc), tun_type=rec.tun_type, tun_flags=rec.tun_flags,
            ports=ports,
        )  # fmt: skip
        if why:
            return skb.drop(Why(why))
        skb.sends.append((route.index, pkt.data))
    if skb.walk:
        function, name = TUN_STEPS.get(rec.tun_type, ("ip_vs_prepare_tunneled_skb", "ipip"))
        skb.walk.step(2, function, f"outer header put in front: {name}", length=skb.pkt.len)
    skb.ipvs_property = True
    skb.why = Why.FORWARDED
    return NF_STOLEN


def ip_vs_bypass_xmit(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Verdict:
    """cache_bypass: to the packet's own destination."""
    route = ip_vs_get_out_rt(ipvs, skb, cp, iph, RT_BYPASS | RT_NON_LOCAL)
    if route is None:
        return NF_DROP
    return _send(skb, cp, route, Why.BYPASS)


def ip_vs_null_xmit(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Verdict:
    """LOCALNODE: to the local stack, unchanged."""
    return skb.accept(Why.LOCAL)


TRANSMITTERS: dict[int, Transmitter] = {
    ConnFlag.MASQ: ip_vs_nat_xmit,
    ConnFlag.LOCALNODE: ip_vs_null_xmit,
    ConnFlag.TUNNEL: ip_vs_tunnel_xmit,
    ConnFlag.DROUTE: ip_vs_dr_xmit,
    ConnFlag.BYPASS: ip_vs_bypass_xmit,
}


def ip_vs_icmp_xmit(ipvs: NetnsIpvs, skb: Skb, cp: Conn, quoted: Header) -> Verdict:
    """ip_vs_icmp_xmit: an ICMP error from the client's side, on to the real server."""
    if cp.flags & ConnFlag.FWD_MASK != ConnFlag.MASQ:
        transmit = TRANSMITTERS.get(cp.flags & ConnFlag.FWD_MASK)
        verdict = transmit(ipvs, skb, cp, quoted) if transmit else NF_ACCEPT
        ipvs.table.count_in(cp)
        if verdict != NF_DROP:
            skb.why = Why.ICMP_IN
        return verdict
    mode = RT_NON_LOCAL if skb.hook == Hook.FORWARD else RT_LOCAL | RT_NON_LOCAL | RT_RDR
    route = ip_vs_get_out_rt(ipvs, skb, cp, quoted, mode)
    if route is None:
        return NF_DROP
    if route.local and _is_loopback(cp.daf, cp.daddr) and not skb.loopback:
        return skb.drop(Why.BOUNDARY)
    skb.pkt.nat_icmp(quoted, cp, 0)
    if skb.walk:
        skb.walk.step(2, "ip_vs_nat_icmp", "destination and quoted source rewritten")
    if route.local:
        skb.modified = skb.ipvs_property = True
        return skb.accept(Why.ICMP_IN)
    return _send(skb, cp, route, Why.ICMP_IN)
