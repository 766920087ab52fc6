"""Persistent services: templates that bind a client to a real server (ip_vs_core.c, ip_vs_sched_persist).

And connections that a real server begins, which the service's persistence engine allows.
"""

from __future__ import annotations

from uvs.engine.core import AF_INET, Conn, ConnFlag, Hdr, Header, Why
from uvs.ipvs import walk
from uvs.ipvs.ipproto import IPPROTO_IP
from uvs.ipvs.services import FTPPORT, Dest, Service
from uvs.ipvs.skb import Hook, NetnsIpvs, Skb

_TIMEOUT_MAX = 0xFFFFFFFF  # ms, 49 days: what an entry holds; the kernel's jiffies wrap


def _timeout(svc: Service) -> int:
    return min(svc.spec.timeout * 1000, _TIMEOUT_MAX)


def masked(af: int, addr: bytes, netmask: int) -> bytes:
    """A client's address under the service's netmask (IPv4: mask; IPv6: prefix length)."""
    if af == AF_INET:
        return (int.from_bytes(addr, "big") & netmask).to_bytes(4, "big")
    keep = ((1 << netmask) - 1) << (128 - netmask)
    return (int.from_bytes(addr, "big") & keep).to_bytes(16, "big")


def template_dest(ipvs: NetnsIpvs, ct: Conn, wanted: Dest | None = None) -> Dest | None:
    """ip_vs_check_template: its destination; None, and the template set aside, if that is no longer good,
    or another than the wanted one."""
    dest = ipvs.services.dest_of(ct.dest) if ct.dest else None
    quiescent = ipvs.sysctl.expire_quiescent_template and dest and dest.weight == 0
    if dest and dest.available and not quiescent and wanted in (None, dest):
        return dest
    if ct.vport != 0xFFFF:
        ipvs.table.conn_rekey(ct, 0, 0xFFFF, 0xFFFF)
    return None


def _pe_key(svc: Service, skb: Skb) -> bytes | None:
    """What the service's engine knows the packet's template by: empty without one, None: refused."""
    if svc.pe is None:
        return b""
    key = svc.pe.key(skb.iph, skb.pkt.data)
    if skb.walk:
        skb.walk.step(3, f"ip_vs_{svc.pe.name}_fill_param", walk.printable(key) if key else "refused")
    return key


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
        key_protocol, key_vport = IPPROTO_IP, 0
        key_vaddr = svc.key.fwmark.to_bytes(4, "big").ljust(4 if af == AF_INET else 16, b"\0")
    else:
        key_protocol, key_vaddr, key_vport = protocol, vaddr, 0

    pe = _pe_key(svc, skb)
    if pe is None:
        skb.why = Why.PE
        return None
    ct = ipvs.table.ct_in_get(af, key_protocol, snet, key_vaddr, key_vport, pe)
    dest = template_dest(ipvs, ct) if ct else None
    if ct is None or dest is None:
        if skb.walk:
            good = "its real server is not to be used any more" if ct else "no template"
            skb.walk.step(3, "ip_vs_ct_in_get", good)
        dest = svc.scheduler.schedule(iph) if svc.scheduler else None
        if dest is None:
            if skb.walk:
                skb.walk.step(3, f"ip_vs_{svc.spec.sched_name}_schedule", "no real server can take it")
            return None
        if skb.walk:
            chosen = walk.endpoint(dest.spec.addr, dest.spec.port)
            skb.walk.step(3, f"ip_vs_{svc.spec.sched_name}_schedule", chosen, weight=dest.weight)
        tport = dest.rec.port if same_port and svc.key.port != FTPPORT else 0
        ct = ipvs.table.conn_new(
            af, key_protocol, snet, 0, key_vaddr, key_vport, dest.spec.af, dest.spec.addr, tport,
            skb.mark, ConnFlag.TEMPLATE, dest.rec.index, skb.now, pe,
        )  # fmt: skip
        if ct is None:
            skb.why = Why.TABLE_FULL
            return None
        ct.timeout = _timeout(svc)
        if skb.walk:
            skb.walk.step(
                3, "ip_vs_conn_new", "template made", **walk.entry(ct, skb.now) | {"expires": ct.timeout}
            )
    elif skb.walk:
        skb.walk.step(3, "ip_vs_ct_in_get", "template found", **walk.entry(ct, skb.now))

    dport = dest.rec.port if same_port and dest.rec.port else vport
    cp = ipvs.table.conn_new(
        af, protocol, caddr, cport, vaddr, vport, dest.spec.af, dest.spec.addr, dport,
        skb.mark, svc.conn_flags(protocol), dest.rec.index, skb.now,
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


def ip_vs_rs_conn_out(ipvs: NetnsIpvs, skb: Skb, iph: Header) -> Conn | None:
    """__ip_vs_rs_conn_out: a packet of no connection, from a NAT server whose service's engine lets it begin
    one. None: it may not, or the engine refused the packet."""
    if skb.hook == Hook.LOCAL_IN or not iph.flags & Hdr.PORTS:
        return None
    dest = ipvs.services.rs_table.real_service(iph.af, iph.protocol, iph.saddr, iph.sport)
    if dest is None or dest.svc.pe is None or iph.protocol not in dest.svc.pe.conn_out:
        return None
    return ip_vs_new_conn_out(ipvs, dest, skb, iph)


def ip_vs_new_conn_out(ipvs: NetnsIpvs, dest: Dest, skb: Skb, iph: Header) -> Conn | None:
    """ip_vs_new_conn_out: the connection that a client's packet to the service would have made."""
    svc = dest.svc
    key, table = svc.key, ipvs.table
    if key.fwmark or not key.port or not iph.sport:
        return None
    ct: Conn | None = None
    ends = (key.addr, key.port, iph.af, iph.saddr, iph.sport)
    if svc.persistent:
        pe = _pe_key(svc, skb)
        if pe is None:
            return None
        snet = masked(key.af, iph.daddr, svc.spec.netmask)
        ct = table.ct_in_get(key.af, iph.protocol, snet, key.addr, key.port, pe)
        if ct is None or template_dest(ipvs, ct, dest) is None:
            ct = table.conn_new(
                key.af, iph.protocol, snet, 0, *ends, 0, ConnFlag.TEMPLATE, dest.rec.index, skb.now, pe
            )
            if ct is None:
                return None
            ct.timeout = _timeout(svc)
    flags = svc.conn_flags(iph.protocol)
    cp = table.conn_new(key.af, iph.protocol, iph.daddr, iph.dport, *ends, 0, flags, dest.rec.index, skb.now)
    if ct:
        if cp:
            table.control_add(cp, ct)
        table.conn_put(ct, skb.now)
    if cp:
        table.conn_stats(cp)
        if skb.walk:
            skb.walk.step(1, "ip_vs_new_conn_out", "made by the real server", **walk.entry(cp, skb.now))
    return cp
