"""Sysctls of the host that a director depends on."""

from __future__ import annotations

from collections.abc import Iterator

from uvs.doctor.finding import HERE, Finding, Name, some
from uvs.doctor.host import Host
from uvs.doctor.knobs import conf, device, devices, sysctl
from uvs.doctor.table import reals, virtuals


def check_forwarding(host: Host) -> Iterator[Finding]:
    """ip_forward: the replies of NAT servers pass through the director."""
    for name, key, family in (
        (Name.FORWARDING4, "net.ipv4.ip_forward", 4),
        (Name.FORWARDING6, "net.ipv6.conf.all.forwarding", 6),
    ):
        value = sysctl(host, key)
        nat = [r for r in reals(host) if r.method == "nat" and r.family == family and not r.local]
        known = bool(virtuals(host))
        if value is None:
            yield Finding(name, "note", f"{key} does not exist: this kernel does not speak it")
        elif value:
            yield Finding(name, "ok", f"{key} is {value}")
        elif nat:
            detail = f"{key} is 0: replies of NAT servers ({some([r.address for r in nat])}) reach no client"
            yield Finding(name, "fail", detail, f"sysctl -w {key}=1", HERE)
        elif known:
            yield Finding(name, "ok", f"{key} is 0, and no NAT server needs it")
        else:
            detail = f"{key} is 0: replies of NAT servers would not be forwarded to clients"
            yield Finding(name, "warn", detail, f"sysctl -w {key}=1", HERE)


def check_rp_filter(host: Host) -> Iterator[Finding]:
    """Strict reverse path filtering; the kernel takes the larger of `all` and the device's."""
    everywhere = device(host, "all", "rp_filter")
    strict = [d for d in devices(host) if max(everywhere, device(host, d, "rp_filter")) == 1]
    if not strict:
        yield Finding(Name.RP_FILTER, "ok", "no device filters strictly")
        return
    names = ["all", *strict] if everywhere == 1 else strict
    yield Finding(
        Name.RP_FILTER,
        "warn",
        f"strict on {', '.join(strict)}: drops packets whose way back is by another device",
        "sysctl -w " + " ".join(f"{conf(d, 'rp_filter')}=2" for d in names),
        HERE,
    )


def check_accept_local(host: Host) -> Iterator[Finding]:
    """accept_local: replies to the director itself carry its own VIP as source (DR and TUN)."""
    key = "net.ipv4.conf.all.accept_local"
    services = [r for r in reals(host) if r.service.family == 4]
    if services and not any(r.method in ("dr", "tun") for r in services):
        yield Finding(Name.ACCEPT_LOCAL, "ok", "no DR or TUN service needs it")
        return
    # Either is enough (IN_DEV_ACCEPT_LOCAL).
    if sysctl(host, key) == 0 and not all(device(host, d, "accept_local") for d in devices(host) or ["all"]):
        yield Finding(
            Name.ACCEPT_LOCAL,
            "note",
            f"{key} is 0: this host as a client of its own DR or TUN services gets no IPv4 reply",
            f"sysctl -w {key}=1",
            HERE,
        )
    else:
        yield Finding(Name.ACCEPT_LOCAL, "ok", "replies with an address of this host as source are accepted")


def check_send_redirects(host: Host) -> Iterator[Finding]:
    """ICMP redirects would show NAT servers a way to clients on their segment past the director."""
    ways = {r.address: host.route(r.address) for r in reals(host) if r.family == 4 and r.method == "nat"}
    vips = {v.address for v in virtuals(host) if v.family == 4}
    outside = {a.device for a in host.addresses() if a.address in vips}
    shared = {way.device for way in ways.values() if way and not way.local and way.device in outside}
    # Either is enough (IN_DEV_TX_REDIRECTS): both have to be 0.
    talking = [
        d
        for d in sorted(shared)
        if device(host, d, "send_redirects") or device(host, "all", "send_redirects")
    ]
    if talking:
        knobs = [conf(d, "send_redirects") for d in ("all", *talking)]
        yield Finding(
            Name.SEND_REDIRECTS,
            "warn",
            f"NAT servers and the VIP share {some(talking)}: redirects tell servers a way past this host",
            "sysctl -w " + " ".join(f"{knob}=0" for knob in knobs),
            HERE,
        )
    elif ways:
        yield Finding(Name.SEND_REDIRECTS, "ok", "no server is told a way past this host")


def check_route_localnet(host: Host) -> Iterator[Finding]:
    """A loopback address as a server is reached only if routing accepts such addresses."""
    loopback = sorted({r.address for r in reals(host) if r.address.startswith("127.")})
    key = "net.ipv4.conf.all.route_localnet"
    if loopback and not sysctl(host, key):
        detail = (
            f"{key} is 0: servers with loopback addresses ({some(loopback)}) get nothing from other hosts"
        )
        yield Finding(Name.ROUTE_LOCALNET, "warn", detail, f"sysctl -w {key}=1", HERE)
    elif loopback:
        yield Finding(Name.ROUTE_LOCALNET, "ok", f"{key} is 1, as loopback addresses as servers need")


def check_bridge(host: Host) -> Iterator[Finding]:
    """br_netfilter sends what a bridge only passes on through iptables, and so to the director."""
    bridges = [d for d in host.names("/sys/class/net") if host.names(f"/sys/class/net/{d}/bridge")]
    keys = [f"net.bridge.bridge-nf-call-{end}" for end in ("iptables", "ip6tables")]
    calling = [key for key in keys if sysctl(host, key)]
    if bridges and calling:
        yield Finding(
            Name.BRIDGE,
            "warn",
            f"what {some(bridges)} only passes on goes through the rules too, and so to the director",
            "sysctl -w " + " ".join(f"{key}=0" for key in calling),
            HERE,
        )
    else:
        yield Finding(Name.BRIDGE, "ok", "no bridge's frames go through the rules")
