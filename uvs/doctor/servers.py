"""Real servers: the way there, the way back, and what they answer."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator, Mapping

from uvs.doctor.finding import HERE, Finding, Name, some
from uvs.doctor.host import Host, Knock
from uvs.doctor.segment import SILENCE, questions, servers_on_link
from uvs.doctor.table import Real, director, reals, text
from uvs.engine.core import tunnel_hlen

MOST = 32  # SYNs that are sent
OUTER = {4: 20, 6: 40}
SMALLEST = {4: 576, 6: 1280}  # what every link must carry: RFC 791, RFC 8200
STUCK = 2  # packets, or connections: a single one may just be on its way
HALF_OPEN = ("SYN_RECV", "SYN_SENT")
METHODS = {"nat": "NAT", "dr": "direct routing", "tun": "a tunnel"}
ARP_SILENCE = "does not answer"  # ARP or ND, as uvs.health says it: check_ways() tells of it


def check_ways(host: Host) -> Iterator[Finding]:
    """Is there a route to each server, and does it answer on its link?"""
    servers = {r.address: r for r in reals(host) if not r.local}
    if not servers:
        return
    lost = [a for a in servers if host.route(a) is None]
    for address in lost:
        yield Finding(
            Name.ROUTE,
            "fail",
            f"there is no route to server {address}",
            f"ip route add {address} via GATEWAY; see `ip route get {address}`",
        )
    on_link = servers_on_link(host)
    answers = host.who_has(questions(host)) if on_link else None
    mute = {a.address for a, macs in (answers or {}).items() if a.address in on_link and not macs}
    knocks = knocked(host)
    mute |= {a for a, real in servers.items() if real.knock and ARP_SILENCE in knocks.get(real.knock, "")}
    for address in sorted(mute):
        kind = "neighbour discovery" if ":" in address else "ARP"
        detail = f"server {address} does not answer {kind}: it is down, or elsewhere"
        real = servers[address]
        mend = f"start it, or take it out: uvsadm -d {real.service.option} -r {real.name}"
        yield Finding(Name.ROUTE, "warn", detail, mend)
    if not lost and not mute:
        yield Finding(Name.ROUTE, "ok", "every server can be reached")


def check_off_link(host: Host) -> Iterator[Finding]:
    """Direct routing only changes the MAC address: a router in between would send the packet back here."""
    direct = {r.address: r for r in reals(host) if r.method == "dr" and not r.local}
    far = [a for a in direct if (route := host.route(a)) and route.gateway]
    for address in far:
        real = direct[address]
        detail = f"server {address} is behind a router: direct routing needs it on a segment of this host"
        mend = f"uvsadm -e {real.service.option} -r {real.name} -i -w {real.entry.spec.weight}"
        yield Finding(Name.OFF_LINK, "fail", detail, mend, HERE)
    if direct and not far:
        yield Finding(Name.OFF_LINK, "ok", "servers of direct routing are on segments of this host")


def half_open(host: Host) -> tuple[Counter[str], Counter[str]]:
    """TCP connections by server: those half open, and all."""
    found = director(host)
    half: Counter[str] = Counter()
    every: Counter[str] = Counter()
    for conn in found.conns if found else ():
        if conn.protocol == 6 and conn.cport:  # a template has no client's port
            every[text(conn.daddr)] += 1
            half[text(conn.daddr)] += conn.state in HALF_OPEN
    return half, every


def check_replies(host: Host) -> Iterator[Finding]:
    """Replies of NAT servers must come through this host; those to clients on their own network do not."""
    nat: dict[str, list[Real]] = {}
    for r in reals(host):
        if r.method == "nat" and not r.local:
            nat.setdefault(r.address, []).append(r)
    if not nat:
        return
    half, _ = half_open(host)
    beside = _beside(host, set(nat))
    for address, clients in beside.items():
        route = host.route(address)
        gateway = route.source if route and route.source else "DIRECTOR"
        detail = (
            f"{some(clients)}, client of server {address}, is on its own network: replies go there directly"
        )
        mend = "; ".join(
            f"ip route replace {c} via {gateway}; sysctl -w net.ipv4.conf.all.accept_redirects=0"
            if ":" not in c
            else f"ip -6 route replace {c} via {gateway}"
            for c in clients[:1]
        )
        yield Finding(Name.BESIDE, "fail", detail, mend, address)
    if not beside:
        yield Finding(Name.BESIDE, "ok", "no client of a NAT server is on its network")
    answers = knocked(host)
    silent = False
    for address, several in nat.items():
        sent = sum(r.entry.stats.inpkts for r in several)
        back = sum(r.entry.stats.outpkts for r in several)
        # One that does not answer us either is check_silent()'s.
        mute = any(answers.get(r.knock) for r in several if r.knock)
        if half[address] and sent >= STUCK and not back and address not in beside and not mute:
            silent = True
            route = host.route(address)
            ip = "ip -6" if ":" in address else "ip"
            via = route.source if route and route.source else "DIRECTOR"
            detail = (
                f"{sent} packets went to server {address}, none came back through this host, {half[address]}"
                " connections wait: its route to the clients does not lead here"
            )
            yield Finding(Name.REPLIES, "fail", detail, f"{ip} route replace default via {via}", address)
    if not silent:
        yield Finding(Name.REPLIES, "ok", "no server's replies are missed")


def _beside(host: Host, servers: set[str]) -> dict[str, list[str]]:
    """NAT servers with clients on their own network, none of whose connections is answered."""
    found = director(host)
    networks = {}
    for server in servers:
        route = host.route(server)
        if route and not route.gateway:
            one = ipaddress.ip_address(server)
            own = [a for a in host.addresses() if a.device == route.device]
            nets = [ipaddress.ip_network(f"{a.address}/{a.prefix}", strict=False) for a in own]
            networks[server] = [n for n in nets if one in n]
    here = {a.address for a in host.addresses()}
    waiting: Counter[tuple[str, str]] = Counter()
    answered = set()
    for conn in found.conns if found else ():
        pair = text(conn.daddr), text(conn.caddr)
        if conn.state in HALF_OPEN:
            waiting[pair] += 1
        else:
            answered.add(pair)
    beside: dict[str, list[str]] = {}
    for (server, client), count in waiting.items():
        if count >= STUCK and (server, client) not in answered and client not in here:
            one = ipaddress.ip_address(client)
            if any(one in net for net in networks.get(server, ())):
                beside.setdefault(server, []).append(client)
    return beside


def knocked(host: Host) -> Mapping[Knock | None, str]:
    """What went wrong with a SYN to each server that gets new connections, "" if it was answered."""
    asked = dict.fromkeys(r.knock for r in reals(host) if r.knock and r.entry.spec.weight)
    return dict[Knock | None, str](host.knock([k for k in asked if k][:MOST]).items())


def check_silent(host: Host) -> Iterator[Finding]:
    """Does each server answer a SYN? DR and TUN servers only if they have the VIP (and the tunnel's end)."""
    servers = [
        r for r in reals(host) if not r.local and r.method in ("nat", "dr", "tun") and r.entry.spec.weight
    ]
    if not servers:
        return
    answers = knocked(host)
    half, every = half_open(host)
    told: set[tuple[str, str, str]] = set()
    for real in servers:
        address = real.address
        why = answers.get(real.knock) if real.knock else None
        # Who cannot be asked (no privilege, a service by mark) may be known by its connections.
        stuck = real.method != "nat" and half[address] == every[address] >= STUCK
        if why is None and stuck:
            why = f"all its {half[address]} connections are half open"
        if not why or (real.method, address, real.service.address) in told or ARP_SILENCE in why:
            continue
        if host.route(address) is None:
            continue  # check_ways() tells of it
        told.add((real.method, address, real.service.address))
        yield _silent(real, why)
    if answers and not told:
        yield Finding(Name.SILENT, "ok", f"{len(answers)} SYNs to servers were answered")


def _silent(real: Real, why: str) -> Finding:
    vip, address = real.service.address, real.address
    detail = f"server {address} of {real.service.name}, by a SYN as {METHODS[real.method]} sends it: {why}: "
    if real.method == "nat" or "refused" in why:
        listen = f"{vip or 'the VIP'}:{real.service.port}" if real.method != "nat" else real.name
        return Finding(Name.SILENT, "warn", f"{detail}nothing listens at {listen}", "start the program there")
    family = 6 if ":" in vip else 4
    steps = [SILENCE] if family == 4 else []
    steps.append(f"ip addr add {vip or 'VIP'}/{128 if family == 6 else 32} dev lo")
    if real.method == "tun":
        missing = "the VIP is not on its lo, or the tunnel has no end there (uvs decap)"
    else:
        missing = "the VIP is not on its lo"
    return Finding(Name.SILENT, "fail", detail + missing, "; ".join(steps), address)


def check_tunnels(host: Host) -> Iterator[Finding]:
    """A tunnel's headers take room: what does not fit is refused, and clients must hear of it."""
    servers = [r for r in reals(host) if r.method == "tun" and not r.local]
    found = director(host)
    if not servers or not found:
        return
    narrow: dict[str, tuple[int, Real]] = {}
    smallest = 1 << 16
    for real in servers:
        if route := host.route(real.address):
            spec = real.entry.spec
            room = route.mtu - OUTER[real.family] - tunnel_hlen(spec.tun_type, spec.tun_flags)
            smallest = min(smallest, room)
            if room < SMALLEST[real.service.family]:
                narrow[f"{real.address} IPv{real.service.family}"] = room, real
    for room, real in narrow.values():
        route = host.route(real.address)
        family, device = real.service.family, route.device if route else "DEVICE"
        detail = (
            f"the tunnel to {real.address} has room for {room} bytes, every IPv{family} link must have"
            f" {SMALLEST[family]}: larger packets are lost"
        )
        yield Finding(Name.MTU, "fail", detail, f"ip link set dev {device} mtu 1500", HERE)
    if narrow:
        return
    if refused := found.reasons.get("too_big", 0):
        detail = (
            f"{refused} packets were larger than their way (a tunnel has room for {smallest} bytes) and"
            " refused by ICMP: if transfers hang, somebody drops that"
        )
        mend = f"on the servers, so that clients send less: ip route change … advmss {smallest - 40}"
        yield Finding(Name.MTU, "note", detail, mend)
    else:
        yield Finding(Name.MTU, "ok", f"no packet was too large: tunnels have room for {smallest} bytes")
