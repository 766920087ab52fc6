"""The hook path (ip_vs_core.c): every decision that IPVS takes on a packet, in the kernel's order of steps.

Each function bears the kernel's name, so that it can be read beside net/netfilter/ipvs/. Nothing here
does I/O: a packet, its hook, the table, the routes and the clock go in; a verdict, packets to send and,
if one is recorded, the walk come out. `hooks` calls what stands here.
"""

from __future__ import annotations

from uvs.engine.core import AF_INET, Conn, ConnFlag, DestFlag, Dir, Hdr, Header, Why
from uvs.ipvs import apps, icmp, protocols, walk
from uvs.ipvs.ipproto import IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.persistence import ip_vs_rs_conn_out, ip_vs_sched_persist
from uvs.ipvs.services import FTPPORT, Service
from uvs.ipvs.skb import NF_ACCEPT, NF_DROP, NF_STOLEN, Hook, NetnsIpvs, Skb, Verdict
from uvs.ipvs.tunnel import ip_vs_in_icmp_tunnel
from uvs.ipvs.xmit import TRANSMITTERS, ip_vs_bypass_xmit, ip_vs_icmp_xmit, too_short_for_nat

FTPDATA = 20
V4_ERRORS = frozenset({3, 4, 11})  # unreachable, source quench, time exceeded


# ------------------------------------------------------------------------------ requests


def ip_vs_in(ipvs: NetnsIpvs, skb: Skb) -> Verdict:
    """ip_vs_in (ip_vs_in_hook): a packet towards a virtual service, at LOCAL_IN and LOCAL_OUT."""
    if skb.ipvs_property:
        return NF_ACCEPT
    iph, table, record = skb.iph, ipvs.table, skb.walk
    if record:
        record.step(0, "ip_vs_in", "begin", hook=skb.hook.name)
    if iph.to_many and skb.hook != Hook.LOCAL_OUT:
        return skb.accept(Why.NOT_FOR_HOST)
    if iph.protocol in (IPPROTO_ICMP, IPPROTO_ICMPV6):
        verdict = ip_vs_in_icmp(ipvs, skb)
        if verdict is not None:
            return verdict
        return skb.accept(Why.ICMP_TYPE)
    pp = protocols.BY_NUMBER.get(iph.protocol)
    if pp is None:
        if ipvs.sysctl.ignore_tunneled:
            skb.ipvs_property = True
        if record:
            record.step(1, "ip_vs_proto_data_get", "not a protocol that IPVS balances", protocol=iph.protocol)
        return skb.accept(Why.PROTOCOL)

    cp = table.conn_in_get(iph)
    if record:
        record.before = walk.entry(cp, skb.now) if cp else None
        record.step(1, "ip_vs_conn_in_get", "found" if cp else "no connection", packet=walk.describe(iph))
    if cp and skb.trace:
        skb.trace.found(cp)
    if cp and pp.is_new_conn(iph) and not iph.flags & Hdr.LATER and _reschedule(ipvs, skb, cp, pp):
        skb.found = table.index_of(cp)
        cp = None
    if cp and cp.dest and not _dest_flags(ipvs, cp) & DestFlag.AVAILABLE:
        # The destination was deleted: with expire_nodest_conn its connections end, otherwise they age.
        if not ipvs.sysctl.expire_nodest_conn:
            if record:
                record.step(1, "ip_vs_in", "the real server was deleted: dropped, timer untouched")
                record.after = walk.entry(cp, skb.now)
            return skb.drop(Why.DEAD_DEST)
        table.conn_expire_now(cp, skb.now)
        if record:
            record.step(1, "ip_vs_conn_expire_now", "the real server was deleted: connection ended")
        skb.found = table.index_of(cp)
        cp = None
    if cp is None:
        if iph.flags & Hdr.LATER:
            return skb.accept(Why.FRAGMENT)
        cp, verdict = conn_schedule(ipvs, skb, iph, pp)
        if cp is None:
            return verdict
        if skb.trace:
            skb.trace.found(cp)

    table.in_stats(cp, skb.pkt.len)
    came = cp.state_name if record else ""
    table.set_state(cp, Dir.INPUT, iph)
    transmit = TRANSMITTERS.get(cp.flags & ConnFlag.FWD_MASK)
    if record:
        record.step(1, "ip_vs_set_state", walk.transition(came, cp), direction="INPUT", timeout=cp.timeout)
        if transmit:
            record.step(1, transmit.__name__, walk.destination(cp))
    verdict = transmit(ipvs, skb, cp, iph) if transmit else skb.accept(Why.LOCAL)
    if verdict == NF_ACCEPT:
        skb.ipvs_property = True  # ip_vs_send_or_cont(): it comes to LOCAL_IN still
    _count_in_packet(ipvs, cp)
    one_packet = cp.flags & ConnFlag.ONE_PACKET
    table.conn_put(cp, skb.now)  # a one-packet connection is gone after this
    if record and not one_packet:
        record.after = walk.entry(cp, skb.now)
    return verdict


def _reschedule(ipvs: NetnsIpvs, skb: Skb, cp: Conn, pp: protocols.Protocol) -> bool:
    """Should a packet that opens a connection leave the one that its ports are known by?

    True: the old connection is ending. Without conntrack there is no confirmed entry in the way.
    """
    sysctl = ipvs.sysctl
    dest = ipvs.services.dest_of(cp.dest) if cp.dest else None
    if sysctl.expire_nodest_conn and dest and dest.weight == 0:
        why = "its real server has weight 0"
    elif sysctl.conn_reuse_mode and not cp.control and pp.expects_new(cp, sysctl.conn_reuse_mode):
        why = "the client uses its port again"
    else:
        return False
    if not cp.n_control:
        ipvs.table.conn_expire_now(cp, skb.now)
    if skb.walk:
        skb.walk.step(1, "ip_vs_in", f"scheduled anew: {why}", state=cp.state_name)
    return True


def _dest_flags(ipvs: NetnsIpvs, cp: Conn) -> int:
    dest = ipvs.services.dest_of(cp.dest)
    return dest.rec.flags if dest else 0


def _count_in_packet(ipvs: NetnsIpvs, cp: Conn) -> None:
    """in_pkts; a one-packet connection counts for its template. The sync decision belongs here."""
    if not cp.flags & ConnFlag.ONE_PACKET:
        ipvs.table.count_in(cp)
    elif cp.control and (template := ipvs.table.conn_at(cp.control)):
        ipvs.table.count_in(template)


def conn_schedule(
    ipvs: NetnsIpvs, skb: Skb, iph: Header, pp: protocols.Protocol
) -> tuple[Conn | None, Verdict]:
    """tcp_conn_schedule, udp_conn_schedule, sctp_conn_schedule: a connection, or the verdict without one."""
    record = skb.walk
    skb.why = Why.NONE
    why = pp.schedulable(ipvs, iph)
    if record:
        said = f"not schedulable: {why.label}" if why else "may open a connection"
        record.step(1, f"{pp.name.lower()}_conn_schedule", said)
    if why != Why.NONE:
        return None, skb.drop(why) if why == Why.SHORT else skb.accept(why)
    _, _, vaddr, vport = iph.ends
    svc = ipvs.services.find(iph.af, skb.mark, iph.protocol, vaddr, vport, ipvs.unprivileged_port_start)
    if svc is None:
        if record:
            asked = {"mark": skb.mark} if skb.mark else {}
            record.step(
                2, "ip_vs_service_find", "no service",
                protocol=pp.name, address=walk.endpoint(vaddr, vport), **asked,
            )  # fmt: skip
        return None, skb.accept(Why.NO_SERVICE)
    if record:
        record.step(2, "ip_vs_service_find", "found", scheduler=svc.spec.sched_name, servers=len(svc.dests))
    if ipvs.defence.todrop():
        if record:
            record.step(2, "ip_vs_todrop", "dropped", one_in=ipvs.defence.drop_rate)
        return None, skb.drop(Why.DROP_RATE)
    if record:
        record.step(2, "ip_vs_schedule", f"persistent, {svc.spec.timeout} s" if svc.persistent else "")
    cp = ip_vs_schedule(ipvs, svc, skb, iph)
    if cp:
        if svc.key.fwmark and cp.flags & ConnFlag.FWD_MASK != ConnFlag.MASQ:
            ipvs.answers_from(cp)
        return cp, NF_ACCEPT
    if skb.why == Why.NONE:
        return None, ip_vs_leave(ipvs, svc, skb, iph)
    return None, NF_DROP if skb.why in (Why.TABLE_FULL, Why.PE) else NF_ACCEPT


def ip_vs_schedule(ipvs: NetnsIpvs, svc: Service, skb: Skb, iph: Header) -> Conn | None:
    """ip_vs_schedule: a connection to a real server of the service.

    None with `skb.why` NONE: there is none (ip_vs_leave decides); with another reason: the packet is
    ignored (accepted) or, for TABLE_FULL and PE, dropped.
    """
    record = skb.walk
    if not iph.flags & Hdr.PORTS:
        skb.why = Why.SHORT
        return None
    caddr, cport, vaddr, vport = iph.ends
    if cport == FTPDATA:
        if record:
            record.step(3, "ip_vs_schedule", "the client's port is that of FTP data: let pass", port=cport)
        skb.why = Why.CLIENT_PORT
        return None
    if skb.loopback:
        iph.inverse = not iph.inverse
        reply = ipvs.table.conn_in_get(iph)
        iph.inverse = not iph.inverse
        if reply:
            if record:
                record.step(3, "ip_vs_schedule", "a reply of a real server on this host: let pass")
            skb.why = Why.OWN_REPLY
            return None
    if svc.persistent:
        return ip_vs_sched_persist(ipvs, svc, skb, iph)
    if not svc.key.fwmark and vport != svc.key.port:
        return None
    dest = svc.scheduler.schedule(iph) if svc.scheduler else None
    if dest is None:
        if record:
            record.step(3, f"ip_vs_{svc.spec.sched_name}_schedule", "no real server can take it")
        return None
    if record:
        record.step(
            3, f"ip_vs_{svc.spec.sched_name}_schedule", walk.endpoint(dest.spec.addr, dest.spec.port),
            weight=dest.weight, active=dest.rec.activeconns, inactive=dest.rec.inactconns,
        )  # fmt: skip
    cp = ipvs.table.conn_new(
        svc.key.af, iph.protocol, caddr, cport, vaddr, vport, dest.spec.af, dest.spec.addr,
        dest.spec.port or vport, skb.mark, svc.conn_flags(iph.protocol), dest.rec.index, skb.now,
        found=skb.found,
    )  # fmt: skip
    if cp is None:
        skb.why = Why.TABLE_FULL
        return None
    if record:
        record.step(3, "ip_vs_conn_new", "made", **walk.entry(cp, skb.now))
    ipvs.table.conn_stats(cp)
    return cp


def ip_vs_leave(ipvs: NetnsIpvs, svc: Service, skb: Skb, iph: Header) -> Verdict:
    """ip_vs_leave: there is a service, but no real server for this packet."""
    record = skb.walk
    if not iph.flags & Hdr.PORTS:
        return skb.drop(Why.SHORT)
    if ipvs.sysctl.cache_bypass and svc.key.fwmark and not iph.flags & (Hdr.INVERSE | Hdr.ICMP):
        # ip_vs_leave asks the routing table for IPv4 (inet_addr_type), the address alone for IPv6.
        local = iph.af == AF_INET and ipvs.routes.is_local(iph.af, iph.daddr)
        if not iph.to_many and not local:
            return _bypass(ipvs, svc, skb, iph)
    if svc.key.port == FTPPORT and iph.ends[3] != FTPPORT:
        if record:
            record.step(2, "ip_vs_leave", "let pass: no server, and not the FTP service's own port")
        return skb.accept(Why.FTP_DATA)
    why = _why_no_dest(svc)
    if iph.flags & Hdr.ICMP:
        return skb.drop(why)
    if record:
        record.step(2, "ip_vs_leave", "dropped, the client is told: port unreachable", reason=why.label)
    icmp.port_unreachable(ipvs, skb)
    return skb.drop(why)


def _bypass(ipvs: NetnsIpvs, svc: Service, skb: Skb, iph: Header) -> Verdict:
    zero = bytes(4 if iph.af == AF_INET else 16)
    cp = ipvs.table.conn_new(
        iph.af, iph.protocol, iph.saddr, iph.sport, iph.daddr, iph.dport, iph.af, zero, 0,
        skb.mark, ConnFlag.BYPASS | svc.conn_flags(iph.protocol), 0, skb.now,
    )  # fmt: skip
    if cp is None:
        return skb.drop(Why.TABLE_FULL)
    if skb.trace:
        skb.trace.found(cp)
    if skb.walk:
        skb.walk.step(2, "ip_vs_leave", "no real server: sent to its own destination (cache_bypass)")
    ipvs.table.set_state(cp, Dir.INPUT, iph)
    verdict = ip_vs_bypass_xmit(ipvs, skb, cp, iph)
    ipvs.table.count_in(cp)
    one_packet = cp.flags & ConnFlag.ONE_PACKET
    ipvs.table.conn_put(cp, skb.now)
    if skb.walk and not one_packet:
        skb.walk.after = walk.entry(cp, skb.now)
    return verdict


def _why_no_dest(svc: Service) -> Why:
    if not svc.dests or any(d.usable for d in svc.dests):  # the latter: no scheduler, or not its port
        return Why.NO_DEST
    return Why.OVERLOAD if any(d.weight > 0 for d in svc.dests) else Why.WEIGHT_0


# ------------------------------------------------------------------------------ replies


def ip_vs_out(ipvs: NetnsIpvs, skb: Skb) -> Verdict:
    """ip_vs_out (ip_vs_out_hook): a packet from a real server, at LOCAL_IN, FORWARD and LOCAL_OUT."""
    if skb.ipvs_property:
        return NF_ACCEPT
    iph, record = skb.iph, skb.walk
    if record:
        record.step(0, "ip_vs_out", "begin", hook=skb.hook.name)
    if iph.protocol in (IPPROTO_ICMP, IPPROTO_ICMPV6):
        verdict = ip_vs_out_icmp(ipvs, skb)
        if verdict is not None:
            return verdict
        return skb.accept(Why.ICMP_TYPE)
    pp = protocols.BY_NUMBER.get(iph.protocol)
    if pp is None:
        return skb.accept(Why.PROTOCOL)
    if iph.flags & Hdr.LATER:
        return skb.accept(Why.FRAGMENT)
    cp = ipvs.table.conn_out_get(iph)
    if cp:
        return handle_response(ipvs, skb, cp, iph)
    if record:
        record.step(1, "ip_vs_conn_out_get", "no connection", packet=walk.describe(iph))
    if iph.protocol == IPPROTO_UDP and (cp := ip_vs_rs_conn_out(ipvs, skb, iph)):
        return handle_response(ipvs, skb, cp, iph)
    if ipvs.sysctl.nat_icmp_send and pp.number in (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP):
        return _tell_server(ipvs, skb, iph, pp)
    return skb.accept(Why.NO_CONN)


def handle_response(ipvs: NetnsIpvs, skb: Skb, cp: Conn, iph: Header) -> Verdict:
    """handle_response: the reply of a NAT server becomes the virtual service's; of others it is only seen."""
    record = skb.walk
    if skb.trace:
        skb.trace.found(cp)
    if record:
        record.before = walk.entry(cp, skb.now)
        record.step(1, "ip_vs_conn_out_get", "found", packet=walk.describe(iph))
    if cp.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ:
        if record:
            record.step(1, "handle_response", "NAT: its source becomes the virtual service's")
        why = Why.SHORT if too_short_for_nat(skb) else Why.NONE
        if not why and apps.bound(cp):
            why = apps.ip_vs_app_pkt_out(ipvs, skb, cp, iph)
        if why:
            ipvs.table.conn_put(cp, skb.now)
            if record:
                record.step(2, "handle_response", f"dropped: {why.label}")
                record.after = walk.entry(cp, skb.now)
            return skb.drop(why)
        skb.pkt.snat(cp)
        skb.modified = True
        if record:
            name = walk.PROTOCOL_NAMES.get(iph.protocol, "?").lower()
            record.step(2, f"{name}_snat_handler", "source rewritten")
    elif record:
        record.step(1, "handle_response", "only seen: the server answers its client itself")
    verdict = ip_vs_route_me_harder(ipvs, skb, cp, Why.REPLY)
    came = cp.state_name if record else ""
    if verdict != NF_DROP:
        ipvs.table.out_stats(cp, skb.pkt.len)
        ipvs.table.set_state(cp, Dir.OUTPUT, iph)
        skb.ipvs_property = True
    ipvs.table.conn_put(cp, skb.now)
    if record:
        record.step(1, "ip_vs_set_state", walk.transition(came, cp), direction="OUTPUT", timeout=cp.timeout)
        record.after = walk.entry(cp, skb.now)
    return verdict


def ip_vs_route_me_harder(ipvs: NetnsIpvs, skb: Skb, cp: Conn, why: Why) -> Verdict:
    """A translated reply goes by the route from its new source, if sysctl snat_reroute says so.

    What is accepted at FORWARD keeps the route it came by, so that where rules of policy could tell another
    it is taken out and sent; at LOCAL_OUT the kernel routes again by itself, at LOCAL_IN there is nothing to.
    """
    if not (skb.modified and skb.hook == Hook.FORWARD and ipvs.sysctl.snat_reroute and ipvs.routes.policy):
        return skb.accept(why)
    af, packet = skb.iph.af, skb.pkt.data
    saddr, daddr = (packet[12:16], packet[16:20]) if af == AF_INET else (packet[8:24], packet[24:40])
    if not ipvs.routes.is_local(af, saddr):
        return skb.accept(why)
    route = ipvs.routes.find_from(af, daddr, saddr, skb.mark)
    if skb.walk:
        skb.walk.step(2, "ip_vs_route_me_harder", f"next hop {route.index}" if route else "no route")
    if route is None:
        return skb.drop(Why.NO_ROUTE)
    if route.local:
        return skb.accept(why)
    skb.send(route, cp)
    skb.why = why
    return NF_STOLEN


def _tell_server(ipvs: NetnsIpvs, skb: Skb, iph: Header, pp: protocols.Protocol) -> Verdict:
    """sysctl nat_icmp_send: a NAT server's packet of no connection is answered."""
    if not iph.flags & Hdr.PORTS or not ipvs.services.rs_table.real_service(
        iph.af, iph.protocol, iph.saddr, iph.sport
    ):
        return skb.accept(Why.NO_CONN)
    if (pp.number == IPPROTO_TCP and iph.tcp_flags & protocols.RST) or (
        pp.number == IPPROTO_SCTP and iph.chunk == protocols.SCTP_ABORT
    ):
        return skb.accept(Why.NO_CONN)
    icmp.port_unreachable(ipvs, skb)
    return skb.drop(Why.NAT_ICMP)


# ------------------------------------------------------------------------------ ICMP errors


def _is_error(iph: Header) -> bool:
    """Is it an ICMP error that concerns a connection?"""
    return iph.icmp_type in V4_ERRORS if iph.protocol == IPPROTO_ICMP else iph.icmp_type < 128


def _related(skb: Skb) -> tuple[Header | None, Verdict | None]:
    """What an ICMP error quotes, or the verdict without a look at the table; (None, None): not related."""
    iph = skb.iph
    if (iph.protocol == IPPROTO_ICMP) != (iph.af == AF_INET) or iph.flags & Hdr.LATER:
        return None, None
    if not iph.flags & Hdr.L4:
        return None, skb.drop(Why.SHORT)
    if not _is_error(iph):
        return None, None
    if iph.af != AF_INET and iph.flags & Hdr.FRAGMENT:
        return None, skb.drop(Why.FRAGMENT)
    quoted = skb.pkt.quoted()
    if quoted is None:
        return None, skb.accept(Why.SHORT)
    return quoted, None


def ip_vs_out_icmp(ipvs: NetnsIpvs, skb: Skb) -> Verdict | None:
    """ip_vs_out_icmp: an error from a real server's side. None: not related to any connection's protocol."""
    quoted, verdict = _related(skb)
    if quoted is None:
        return verdict
    if quoted.protocol not in protocols.BY_NUMBER or quoted.flags & Hdr.LATER:
        return skb.accept(Why.PROTOCOL)
    quoted.inverse = True
    cp = ipvs.table.conn_out_get(quoted)
    quoted.inverse = False
    record = skb.walk
    if record:
        record.step(1, "ip_vs_out_icmp", "found" if cp else "no connection", quoted=walk.describe(quoted))
    if cp is None:
        return skb.accept(Why.NO_CONN)
    if record:
        record.before = walk.entry(cp, skb.now)
    return handle_response_icmp(ipvs, skb, quoted, cp)


def handle_response_icmp(ipvs: NetnsIpvs, skb: Skb, quoted: Header, cp: Conn) -> Verdict:
    """handle_response_icmp: checksum, translation, counters; state and timer stay."""
    if skb.trace:
        skb.trace.found(cp)
    if skb.walk:
        skb.walk.after = walk.entry(cp, skb.now)
    if cp.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ:
        if not skb.pkt.l4_csum_ok():
            if skb.walk:
                skb.walk.step(1, "handle_response_icmp", "dropped: its checksum is wrong")
            return skb.drop(Why.CHECKSUM)
        if mtu := icmp.told_mtu(skb):
            _fit_segments(cp, mtu)
        skb.pkt.nat_icmp(quoted, cp, 1)
        skb.modified = True
        if skb.walk:
            skb.walk.step(1, "ip_vs_nat_icmp", "source and quoted destination rewritten")
    verdict = ip_vs_route_me_harder(ipvs, skb, cp, Why.ICMP_OUT)
    if verdict != NF_DROP:
        ipvs.table.out_stats(cp, skb.pkt.len)
        skb.ipvs_property = True
    return verdict


def _fit_segments(cp: Conn, mtu: int) -> None:
    """The client hears what fits the path to the server; so must who cuts its packets of many segments."""
    mss = mtu - (40 if cp.af == AF_INET else 60)
    if cp.protocol == IPPROTO_TCP and mss < (cp.mss or 0xFFFF):
        cp.mss = mss


def ip_vs_in_icmp(ipvs: NetnsIpvs, skb: Skb) -> Verdict | None:
    """ip_vs_in_icmp: an error from the client's side. None: not related to any connection's protocol."""
    quoted, verdict = _related(skb)
    if quoted is None:
        return verdict
    if quoted.af == AF_INET and (verdict := ip_vs_in_icmp_tunnel(ipvs, skb, quoted)) is not None:
        return verdict
    pp = protocols.BY_NUMBER.get(quoted.protocol)
    if pp is None:
        return skb.accept(Why.PROTOCOL)
    if quoted.flags & Hdr.LATER:
        return skb.accept(Why.FRAGMENT)
    quoted.inverse = True
    cp, made = ipvs.table.conn_in_get(quoted), False
    if cp is None:
        if not ipvs.sysctl.schedule_icmp:
            if skb.walk:
                skb.walk.step(1, "ip_vs_in_icmp", "no connection", quoted=walk.describe(quoted))
            return skb.accept(Why.NO_CONN)
        cp, verdict = conn_schedule(ipvs, skb, quoted, pp)
        if cp is None:
            return verdict
        made = True
    if skb.trace:
        skb.trace.found(cp)
    if skb.walk:
        skb.walk.step(1, "ip_vs_in_icmp", "made" if made else "found", quoted=walk.describe(quoted))
        skb.walk.before = None if made else walk.entry(cp, skb.now)
        skb.walk.after = walk.entry(cp, skb.now)
    masq = cp.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ
    if masq and not skb.pkt.l4_csum_ok():  # what is sent on as it is, is its receiver's to check
        if skb.walk:
            skb.walk.step(1, "ip_vs_in_icmp", "dropped: its checksum is wrong")
        verdict = skb.drop(Why.CHECKSUM)
    elif skb.iph.af != AF_INET and skb.hook == Hook.LOCAL_OUT and not masq:
        verdict = skb.accept(Why.ICMP_IN)
    else:
        ipvs.table.in_stats(cp, skb.pkt.len)
        quoted.inverse = False
        if skb.walk:
            skb.walk.step(1, "ip_vs_icmp_xmit", walk.destination(cp))
        verdict = ip_vs_icmp_xmit(ipvs, skb, cp, quoted)
    if made:
        ipvs.table.conn_put(cp, skb.now)
    return verdict


def ip_vs_forward_icmp(ipvs: NetnsIpvs, skb: Skb) -> Verdict:
    """ip_vs_forward_icmp: errors for addresses that are not local (fwmark services)."""
    if skb.iph.protocol not in (IPPROTO_ICMP, IPPROTO_ICMPV6):
        return NF_ACCEPT
    if skb.walk:
        skb.walk.step(0, "ip_vs_forward_icmp", "begin", hook=skb.hook.name)
    verdict = ip_vs_in_icmp(ipvs, skb)
    return NF_ACCEPT if verdict is None else verdict
