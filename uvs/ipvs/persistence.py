"""Persistent services: templates that bind a client to a real server (ip_vs_core.c, ip_vs_sched_persist)."""

from __future__ import annotations

from uvs.engine.core import AF_INET, Conn, ConnFlag, Header, Why
from uvs.ipvs import walk
from uvs.ipvs.services import FTPPORT, Dest, Service
from uvs.ipvs.skb import NetnsIpvs, Skb

_UDP = 17
_TIMEOUT_MAX = 0xFFFFFFFF  # ms, 49 days: what an entry holds; the kernel's jiffies wrap


def masked(af: int, addr: bytes, netmask: int) -> bytes:
    """A client's address under the service's netmask (IPv4: mask; IPv6: prefix length)."""
    if af == AF_INET:
        return (int.from_bytes(addr, "big") & netmask).to_bytes(4, "big")
    keep = ((1 << netmask) - 1) << (128 - netmask)
    return (int.from_bytes(addr, "big") & keep).to_bytes(16, "big")


def template_dest(ipvs: NetnsIpvs, ct: Conn) -> Dest | None:
    """ip_vs_check_template: its destination; None, and the template set aside, if that is no longer good."""
    dest = ipvs.services.dest_of(ct.dest) if ct.dest else None
    if dest and dest.available and not (ipvs.sysctl.expire_quiescent_template and dest.weight == 0):
        return dest
    if ct.vport != 0xFFFF:
        ipvs.table.conn_rekey(ct, 0, 0xFFFF, 0xFFFF)
    return None


def ip_vs_sched_persist(ipvs: NetnsIpvs, svc: Service, skb: Skb, iph: Header) -> Conn | None:
    """A connection to the template's real server; without a good template a new one is scheduled.

    None with `skb.why` set to the reason.
    """
    af, protocol = svc.key.af, iph.protocol
    caddr, cport, vaddr, vport = iph.ends
    snet = masked(af, caddr, svc.spec.netmask)
    same_port = vport == svc.key.port
    if same_port:
        key_protocol, key_vaddr, key_vport = protocol, vaddr, 0 if svc.key.port == FTPPORT else vport
    elif svc.key.fwmark:
        key_protocol, key_vport = 0, 0
        key_vaddr = svc.key.fwmark.to_bytes(4, "big").ljust(4 if af == AF_INET else 16, b"\0")
    else:
        key_protocol, key_vaddr, key_vport = protocol, vaddr, 0

    ct = ipvs.table.ct_in_get(af, key_protocol, snet, key_vaddr, key_vport)
    dest = template_dest(ipvs, ct) if ct else None
    if ct is None or dest is None:
        if skb.walk:
            skb.walk.step(3, "ip_vs_ct_in_get", "no template")
        dest = svc.scheduler.schedule(iph) if svc.scheduler else None
        if dest is None:
            return None
        if skb.walk:
            chosen = walk.endpoint(dest.spec.addr, dest.spec.port)
            skb.walk.step(3, f"ip_vs_{svc.spec.sched_name}_schedule", chosen, weight=dest.weight)
        tport = dest.rec.port if same_port and svc.key.port != FTPPORT else 0
        ct = ipvs.table.conn_new(
            af, key_protocol, snet, 0, key_vaddr, key_vport, dest.spec.af, dest.spec.addr, tport,
            skb.mark, ConnFlag.TEMPLATE, dest.rec.index, skb.now,
        )  # fmt: skip
        if ct is None:
            skb.why = Why.TABLE_FULL
            return None
        ct.timeout = min(svc.spec.timeout * 1000, _TIMEOUT_MAX)
    elif skb.walk:
        skb.walk.step(3, "ip_vs_ct_in_get", "template found", **walk.entry(ct, skb.now))

    dport = dest.rec.port if same_port and dest.rec.port else vport
    flags = ConnFlag.ONE_PACKET if svc.one_packet and protocol == _UDP else 0
    cp = ipvs.table.conn_new(
        af, protocol, caddr, cport, vaddr, vport, dest.spec.af, dest.spec.addr, dport,
        skb.mark, flags, dest.rec.index, skb.now,
    )  # fmt: skip
    if cp is None:
        ipvs.table.conn_put(ct, skb.now)
        skb.why = Why.TABLE_FULL
        return None
    if skb.walk:
        skb.walk.step(3, "ip_vs_conn_new", "made, controlled by the template", **walk.entry(cp, skb.now))
    ipvs.table.control_add(cp, ct)
    ipvs.table.conn_put(ct, skb.now)
    ipvs.table.conn_stats(cp)
    return cp
