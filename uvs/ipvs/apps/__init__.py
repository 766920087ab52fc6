"""Application helpers: protocols that tell addresses in their payload (ip_vs_app.c).

One small file each. They see the packets of NAT connections to their port.
"""

from __future__ import annotations

from uvs.engine.core import Conn, ConnFlag, Hdr, Header, Why
from uvs.ipvs.apps import ftp
from uvs.ipvs.ipproto import IPPROTO_TCP
from uvs.ipvs.skb import NetnsIpvs, Skb


def bound(cp: Conn) -> bool:
    """Has the connection a helper (ip_vs_bind_app)? Only NAT connections have."""
    masq = cp.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ
    return masq and cp.vport == ftp.PORT and cp.protocol == IPPROTO_TCP


def _check(skb: Skb, iph: Header) -> Why:
    """tcp_snat_handler, tcp_dnat_handler: what a helper reads must be whole and its checksum right."""
    if not iph.flags & Hdr.L4:
        return Why.SHORT
    return Why.NONE if skb.pkt.l4_csum_ok() else Why.CHECKSUM


def ip_vs_app_pkt_out(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Why:
    """A server's packet, before its source is rewritten. NONE, or why it is dropped."""
    why = _check(skb, iph) or ftp.ip_vs_ftp_out(ipvs, skb, cp, iph)
    if not why and cp.flags & ConnFlag.OUT_SEQ and (app := ipvs.table.app_data(cp)):
        skb.pkt.seq_out(app)
    return why


def ip_vs_app_pkt_in(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Why:
    """A client's packet, before its destination is rewritten. NONE, or why it is dropped."""
    why = _check(skb, iph) or ftp.ip_vs_ftp_in(ipvs, skb, cp, iph)
    if not why and cp.flags & ConnFlag.OUT_SEQ and (app := ipvs.table.app_data(cp)):
        return Why(skb.pkt.seq_in(app))
    return why
