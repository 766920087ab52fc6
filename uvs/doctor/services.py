"""Virtual services: can their packets come, and is there a server for them?"""

from __future__ import annotations

import ipaddress
import socket
import sys
from collections.abc import Iterator

from uvs.doctor.finding import HERE, Finding, Name, some
from uvs.doctor.host import Address, Host
from uvs.doctor.knobs import device, devices
from uvs.doctor.layered import covers
from uvs.doctor.table import PROTOCOLS, Real, Virtual, addressed, reals, text, virtuals

TCP_LISTEN = "0A"  # include/net/tcp_states.h; a UDP socket that waits for anybody has TCP_CLOSE
UDP_OPEN = "07"


def _vips(host: Host) -> list[str]:
    return list(dict.fromkeys(v.address for v in addressed(host)))


def check_vips(host: Host) -> Iterator[Finding]:
    """Requests reach LOCAL_IN only for addresses of this host."""
    vips = _vips(host)
    if not vips:
        return
    away = [vip for vip in vips if not ((route := host.route(vip)) and route.local)]
    for vip in away:
        detail = f"{vip} is no address of this host: its requests are not delivered here, so never seen"
        mend = f"ip addr add {vip}/{128 if ':' in vip else 32} dev {_home(host.addresses(), vip)}"
        yield Finding(Name.VIP, "fail", detail, mend, HERE)
    if not away:
        yield Finding(Name.VIP, "ok", f"{some(vips)}: of this host")


def _home(addresses: list[Address], vip: str) -> str:
    """The device where a VIP belongs: that of its network, else the first one."""
    one = ipaddress.ip_address(vip)
    outside = [a for a in addresses if a.device != "lo"]
    for a in outside:
        if one in ipaddress.ip_network(f"{a.address}/{a.prefix}", strict=False):
            return a.device
    return outside[0].device if outside else "lo"


def check_vip_on_lo(host: Host) -> Iterator[Finding]:
    """A VIP on lo alone is announced by nobody if this host keeps silent about it, as a DR server has to."""
    homes: dict[str, set[str]] = {}
    for address in host.addresses():
        homes.setdefault(address.address, set()).add(address.device)
    hidden = [vip for vip in _vips(host) if homes.get(vip) == {"lo"} and not vip.startswith("127.")]
    four, six = [v for v in hidden if ":" not in v], [v for v in hidden if ":" in v]
    silent = [
        d for d in devices(host) if max(device(host, d, "arp_ignore"), device(host, "all", "arp_ignore"))
    ]
    if four and silent:
        detail = (
            f"{some(four)} is on lo, and arp_ignore on {some(silent)}: this host does not answer ARP for it"
        )
        home = _home(host.addresses(), four[0])
        moved = "; ".join(f"ip addr add {vip}/32 dev {home}; ip addr del {vip}/32 dev lo" for vip in four)
        yield Finding(Name.VIP_ON_LO, "warn", detail, moved, HERE)
    for vip in six:
        detail = (
            f"{vip} is on lo: Linux does not answer for it on other devices, a router must have a route here"
        )
        home = _home(host.addresses(), vip)
        mend = f"ip addr add {vip}/128 dev {home} nodad; ip addr del {vip}/128 dev lo"
        yield Finding(Name.VIP_ON_LO, "warn", detail, mend, HERE)
    if _vips(host) and not six and not (four and silent):
        yield Finding(Name.VIP_ON_LO, "ok", "neighbours are told where VIPs are")


def check_servers(host: Host) -> Iterator[Finding]:
    """A service needs a server with weight, below its upper threshold."""
    services = virtuals(host)
    empty = [v for v in services if not v.dests]
    weightless = [v for v in services if v.dests and not any(d.spec.weight for d in v.dests)]
    full: list[str] = []
    over: list[str] = []
    for v in services:
        able = [d for d in v.dests if d.spec.weight]
        # IP_VS_DEST_F_OVERLOAD (ip_vs_bind_dest(), ip_vs_dest_totalconns())
        loaded = [
            d for d in able if d.spec.u_threshold and d.activeconns + d.inactconns >= d.spec.u_threshold
        ]
        if able and len(loaded) == len(able):
            full.append(v.name)
        elif loaded:
            over += [Real(v, d, False).name for d in loaded]
    if empty:
        detail = f"{some([v.name for v in empty])}: no server: clients are told 'port unreachable'"
        mend = f"uvsadm -a {empty[0].option} -r SERVER, with -m, -g or -i"
        if covers(host, empty[0]):
            mend = "checks or drains took them out: uvs monitor status, uvs drain"
        yield Finding(Name.NO_SERVER, "warn", detail, mend)
    if weightless:
        names = some([v.name for v in weightless])
        first = Real(weightless[0], weightless[0].dests[0], False)
        flag = {"nat": "-m", "tun": "-i"}.get(first.method, "-g")
        detail = f"{names}: every server has weight 0: no new connection is taken"
        if covers(host, first.service):
            yield Finding(
                Name.WEIGHT, "warn", detail, "checks or drains did that: uvs monitor status, uvs drain"
            )
        else:
            mend = f"uvsadm -e {first.service.option} -r {first.name} {flag} -w 1"
            yield Finding(Name.WEIGHT, "warn", detail, mend, HERE)
    if full:
        detail = f"{some(full)}: every server is above its upper threshold: no new connection is taken"
        yield Finding(
            Name.OVERLOAD, "warn", detail, "add servers, or raise the threshold: uvsadm -e ... -x N"
        )
    elif over:
        detail = f"{some(over)}: above the upper threshold: others get new connections"
        yield Finding(Name.OVERLOAD, "note", detail, "raise the threshold: uvsadm -e ... -x N")
    if services:
        if not empty:
            yield Finding(Name.NO_SERVER, "ok", "every service has servers")
        if not weightless:
            yield Finding(Name.WEIGHT, "ok", "no service has only servers of weight 0")
        if not full and not over:
            yield Finding(Name.OVERLOAD, "ok", "no server is above its upper threshold")


def check_shadowed(host: Host) -> Iterator[Finding]:
    """A program of this host that listens where a service is gets nothing any more."""
    services = [v for v in virtuals(host) if v.protocol in (6, 17)]
    if not services:
        return
    heard, own = _listening(host), {a.address for a in host.addresses()}
    hidden = [v for v in services if _hides(v, heard, own)]
    if hidden:
        detail = f"a program of this host listens on {some([v.name for v in hidden])}: requests pass it by"
        mend = "none is needed if that is meant; `ss -lnp` names the program"
        yield Finding(Name.SHADOWED, "note", detail, mend)
    else:
        yield Finding(Name.SHADOWED, "ok", "no program of this host listens where a service is")


def _hides(v: Virtual, heard: set[tuple[int, str, int]], own: set[str]) -> bool:
    if any(text(d.spec.addr) in own and d.spec.port in (0, v.port) for d in v.dests):
        return False  # a server of its own
    anyone = ("::",) if v.family == 6 else ("0.0.0.0", "::")
    if v.port:
        return any((v.protocol, address, v.port) in heard for address in (v.address, *anyone))
    return any(protocol == v.protocol and address in (v.address, *anyone) for protocol, address, _ in heard)


def _listening(host: Host) -> set[tuple[int, str, int]]:
    """Protocol, address and port of each socket that waits for requests (proc(5), /proc/net/tcp)."""
    found = set()
    for protocol, name in PROTOCOLS.items():
        for suffix in ("", "6"):
            listed = host.read(f"/proc/net/{name.lower()}{suffix}") if protocol in (6, 17) else None
            for line in (listed or "").splitlines()[1:]:
                _, local, _, state, *_ = line.split()
                if state == (TCP_LISTEN if protocol == 6 else UDP_OPEN):
                    address, _, port = local.partition(":")
                    found.add((protocol, _address(address), int(port, 16)))
    return found


def _address(words: str) -> str:
    """Words of 32 bits in the host's byte order, as hexadecimal digits."""
    data = b"".join(int(words[i : i + 8], 16).to_bytes(4, sys.byteorder) for i in range(0, len(words), 8))
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def check_server_ports(host: Host) -> Iterator[Finding]:
    """DR and TUN leave the port as it is, whatever a server was given."""
    other = [
        r for r in reals(host)
        if r.method in ("dr", "tun") and not r.service.mark and r.service.port
        and r.port not in (0, r.service.port)
    ]  # fmt: skip
    if not other:
        return
    first = other[0]
    detail = (
        f"{some([r.name for r in other])} of {first.service.name}: direct routing and tunnels do not"
        f" translate ports, requests come to port {first.service.port}"
    )
    yield Finding(
        Name.SERVER_PORT, "warn", detail, "give it the service's port, or use NAT: uvsadm -e ... -m"
    )
