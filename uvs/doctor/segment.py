"""The segment: who else says that it has the VIP?"""

from __future__ import annotations

from collections.abc import Iterator

from uvs.doctor.finding import Finding, Name
from uvs.doctor.host import Asked, Host
from uvs.doctor.knobs import devices
from uvs.doctor.table import addressed, reals

MOST = 64  # addresses that are asked for

SILENCE = "sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2"


def questions(host: Host) -> list[Asked]:
    """VIPs on every segment of this host, and servers on theirs."""
    vips = list(dict.fromkeys(v.address for v in addressed(host) if v.family == 4))
    networked = {a.device for a in host.addresses() if ":" not in a.address}
    asked = [Asked(d, vip) for vip in vips for d in devices(host) if d in networked]
    return (asked + [Asked(d, a) for a, d in servers_on_link(host).items()])[:MOST]


def servers_on_link(host: Host) -> dict[str, str]:
    """Addresses of servers without a router between, and their device."""
    found: dict[str, str] = {}
    for real in reals(host):
        if real.family != 4 or real.local or real.address in found:
            continue
        if (route := host.route(real.address)) and not route.gateway and not route.local:
            found[real.address] = route.device
    return found


def check_vip_elsewhere(host: Host) -> Iterator[Finding]:
    """Whoever answers ARP for the VIP may get the requests: DR servers must not."""
    asked = questions(host)
    vips = {v.address for v in addressed(host) if v.family == 4}
    answers = host.who_has(asked) if any(a.address in vips for a in asked) else None
    if answers is None:
        return
    owners = {mac: a.address for a, macs in answers.items() if a.address not in vips for mac in macs}
    found = False
    for (device, vip), macs in answers.items():
        for mac in macs if vip in vips else ():
            found = True
            if server := owners.get(mac):
                detail = f"server {server} ({mac}) answers ARP for {vip} on {device}: requests may go to it"
                yield Finding(Name.VIP_ELSEWHERE, "fail", detail, SILENCE, server)
            else:
                detail = f"{mac} answers ARP for {vip} on {device}: another director, or an unknown server"
                mend = f"there: ip addr del {vip}/32 dev DEVICE, or, on a DR server: {SILENCE}"
                yield Finding(Name.VIP_ELSEWHERE, "fail", detail, mend)
    if not found:
        yield Finding(Name.VIP_ELSEWHERE, "ok", "nobody else answers ARP for a VIP")
