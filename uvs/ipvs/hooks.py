"""The handlers that IPVS has at each hook (ip_vs_ops4, ip_vs_ops6), and one packet through them."""

from __future__ import annotations

from uvs.engine.core import AF_INET, Fast, FastPath, Hdr, Why
from uvs.engine.trace import Want
from uvs.ipvs import walk
from uvs.ipvs.core import ip_vs_forward_icmp, ip_vs_in, ip_vs_out
from uvs.ipvs.ipproto import IPPROTO_ICMP, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.skb import NF_ACCEPT, NF_DROP, NF_STOLEN, Hook, NetnsIpvs, Skb, Verdict

HEAD = 40  # bytes that tell a datagram
# IPv4: those that IPVS looks into
GATHERED = frozenset({IPPROTO_ICMP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP})


def nf_hook(
    ipvs: NetnsIpvs,
    skb: Skb,
    hook: Hook,
    data: bytes,
    mark: int = 0,
    indev: int = 0,
    gso: bool = False,
    traced: int = 0,
) -> Verdict:
    """One packet through the handlers that IPVS registers at `hook` (ip_vs_ops4, ip_vs_ops6), in their order.

    `data`: the IP datagram; `indev`: index of the input interface; `gso`: a TCP packet that stands for
    several segments; `traced`: what the fast path was told of it (`Trace.begin`). What is to be sent is in
    `skb.sends`, the reason in `skb.why`; an ACCEPTed packet with `skb.modified` has new content in `skb.pkt`.
    """
    refused = skb.begin(hook, data, mark, indev, ipvs.clock())
    if refused:
        ipvs.why[refused] += 1
        skb.why = Why(refused)
        if ipvs.recorder.want or ipvs.tracers:
            _refused(ipvs, skb, data)
        return NF_DROP
    skb.gso = gso
    if hook == Hook.LOCAL_IN and skb.iph.protocol != IPPROTO_TCP:
        skb.frag_max = ipvs.largest_fragment(data[:HEAD], indev)
    if ipvs.tracers:
        return _traced(ipvs, skb, data, traced)
    if ipvs.recorder.want:
        return _recorded(ipvs, skb, data)
    verdict = _handlers(ipvs, skb)
    if skb.made:
        own_packets(ipvs, skb)
    ipvs.why[skb.why] += 1
    return verdict


def own_packets(ipvs: NetnsIpvs, skb: Skb) -> None:
    """The director's own packets pass the handlers at LOCAL_OUT like any other: an ICMP error about a packet
    that was already rewritten is translated back there, one about a tunnel packet is consumed.

    An error that is made on the way of another is not sent (icmp_xmit_lock): the client of such a tunnel is
    not told.
    """
    for index, packet in skb.made:
        own = Skb()
        if own.begin(Hook.LOCAL_OUT, packet, 0, 0, skb.now):
            continue
        if _handlers(ipvs, own) == NF_ACCEPT:
            skb.sends.append((index, own.pkt.data))
        skb.sends += own.sends


def _handlers(ipvs: NetnsIpvs, skb: Skb) -> Verdict:
    if not skb.iph.flags & (Hdr.FRAGMENT | Hdr.ATOMIC):
        return _ops(ipvs, skb)
    verdict = ip_vs_gather_frags(ipvs, skb)
    if verdict is not None:
        return verdict
    verdict = _ops(ipvs, skb)
    if verdict == NF_ACCEPT and skb.frag_max and skb.iph.af != AF_INET and skb.hook != Hook.LOCAL_IN:
        # ip6_fragment() refuses a packet that was whole again for us alone: it is not cut if accepted.
        route = ipvs.routes.find(skb.iph.af, skb.iph.daddr)
        if route and not route.local:
            skb.sends.append((route.index, skb.pkt.data))
            return NF_STOLEN
    return verdict


def ip_vs_gather_frags(ipvs: NetnsIpvs, skb: Skb) -> Verdict | None:
    """ip_vs_gather_frags, and nf_defrag_ipv6, which IPVS turns on: fragments put together, each hook's apart.

    Where the kernel's own defragmentation is on, none come here. None: it is whole now, or not one of those
    that IPVS waits for.
    """
    if skb.iph.af == AF_INET and skb.iph.protocol not in GATHERED:
        return None
    why = ipvs.reassembler.gather(skb.pkt, skb.hook, skb.now)
    if skb.walk:
        said = "whole" if not why else "kept until it is whole" if why == Why.GATHERED else "dropped"
        skb.walk.step(0, "ip_vs_gather_frags", said, length=skb.pkt.len)
    if why:
        skb.why = Why(why)
        return NF_STOLEN if why == Why.GATHERED else NF_DROP
    skb.frag_max = skb.pkt.frag_max
    skb.modified = True
    return None


def _ops(ipvs: NetnsIpvs, skb: Skb) -> Verdict:
    if skb.hook == Hook.FORWARD:
        verdict = ip_vs_forward_icmp(ipvs, skb)
        return ip_vs_out(ipvs, skb) if verdict == NF_ACCEPT else verdict
    verdict = ip_vs_out(ipvs, skb)
    return ip_vs_in(ipvs, skb) if verdict == NF_ACCEPT else verdict


def set_fast(ipvs: NetnsIpvs, fastpath: FastPath, whole: int) -> None:
    """Tell the engine's fast path what sysctls, services, the host and the recorder are now.

    `whole`: a longer datagram came in fragments, bytes.
    """
    fastpath.set(fast_flags(ipvs), whole)
    fastpath.tunnels(ipvs.flow_seed, ipvs.local_port_range, bool(ipvs.sysctl.pmtu_disc))


def fast_flags(ipvs: NetnsIpvs) -> int:
    """What the engine's fast path must leave to this path, as sysctls, services and the recorder are now.

    A packet that the fast path takes gets here the same verdict, content, states, timers and counters.
    """
    sysctl, flags = ipvs.sysctl, 0
    if ipvs.recorder.want:
        flags |= Fast.OFF
    if ipvs.tracers:
        flags |= Fast.TRACE
    if ipvs.services.with_engine:
        flags |= Fast.PE
    if sysctl.nat_icmp_send:
        flags |= Fast.NAT_ICMP
    if sysctl.snat_reroute and ipvs.routes.policy:
        flags |= Fast.REROUTE
    if sysctl.sloppy_tcp:
        flags |= Fast.SLOPPY_TCP
    if sysctl.sloppy_sctp:
        flags |= Fast.SLOPPY_SCTP
    if ipvs.defence.drop_rate:
        flags |= Fast.DROP_RATE
    if sysctl.expire_nodest_conn:
        flags |= Fast.NODEST
    if sysctl.conn_reuse_mode:
        flags |= Fast.REUSE
    if sysctl.conn_reuse_mode & 2:
        flags |= Fast.REUSE_FIN_WAIT
    return flags


def _traced(ipvs: NetnsIpvs, skb: Skb, data: bytes, asked: int) -> Verdict:
    """Recorded if somebody who traces may want it; whether they do is judged by what became of it."""
    tracers = ipvs.tracers
    wanted = tracers.begin(skb.pkt, skb.hook, skb.mark, asked, skb.now)
    if wanted:
        skb.trace = tracers.trace
    if wanted == Want.WALK or ipvs.recorder.want:
        verdict = _recorded(ipvs, skb, data)
    else:
        verdict = _handlers(ipvs, skb)
        if skb.made:
            own_packets(ipvs, skb)
        ipvs.why[skb.why] += 1
    if wanted:
        tracers.end(verdict, skb.why, skb.walk, skb.now)
    return verdict


def _walk(ipvs: NetnsIpvs, skb: Skb, packet: str, data: bytes) -> walk.Walk:
    """The recorder's, if it wants one, else for those alone who trace."""
    if ipvs.recorder.want:
        return ipvs.recorder.begin(skb.now, skb.hook.name, packet, data, skb.mark)
    return walk.Walk(skb.now, skb.hook.name, packet, data, mark=skb.mark)


def _recorded(ipvs: NetnsIpvs, skb: Skb, data: bytes) -> Verdict:
    asked = ipvs.recorder.want  # else it is for those alone who trace
    record = skb.walk = _walk(ipvs, skb, walk.describe(skb.iph), data)
    verdict = _handlers(ipvs, skb)
    own = len(skb.sends)
    own_packets(ipvs, skb)
    ipvs.why[skb.why] += 1
    record.verdict, record.why = verdict.name, skb.why.label
    if skb.modified and verdict == NF_ACCEPT:
        record.delivered = skb.pkt.data
    # One of many segments leaves as these: those who trace see some of them, and nobody waits for the rest.
    told = skb.sends if asked else skb.sends[: walk.SENT_MAX]
    record.omitted = len(skb.sends) - len(told)
    nexthops = {index: ipvs.routes.describe(index) for index in {index for index, _ in told}}
    other = ipvs.spare
    for i, (index, sent) in enumerate(told):
        text = "?" if other.load(sent) else walk.describe(other.iph)
        record.sent.append(walk.Sent(nexthops[index], text, sent, own=i >= own))
    return verdict


def _refused(ipvs: NetnsIpvs, skb: Skb, data: bytes) -> None:
    """What no header could be read of."""
    wanted = Want.NOBODY
    if ipvs.tracers:
        wanted = ipvs.tracers.begin(None, skb.hook, skb.mark, 0, skb.now)
    record = None
    if wanted == Want.WALK or ipvs.recorder.want:
        record = _walk(ipvs, skb, f"{len(data)} bytes that cannot be read", data)
        record.step(0, "ip_rcv", f"dropped: {skb.why.label}")
        record.verdict, record.why = NF_DROP.name, skb.why.label
    if wanted:
        ipvs.tracers.end(NF_DROP, skb.why, record, skb.now)
