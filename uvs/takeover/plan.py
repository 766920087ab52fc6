"""Which changes make this host the director for some VIPs: from what is asked and what there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from uvs.takeover.changes import Address, Change, Sysctl

V4, V6 = "net/ipv4/conf", "net/ipv6/conf"


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for: VIPs without prefix length; `forwards`: are there servers behind NAT?"""

    interface: str
    vips: tuple[str, ...]
    forwards: bool = True


@dataclass(frozen=True, slots=True)
class Host:
    """What the plan needs to know: a sysctl's value or None, keys' devices, is an address there?"""

    value: Callable[[str], str | None]
    devices: Callable[[str], list[str]]  # of V4 or V6, `all` and `default` among them
    has: Callable[[str], bool]


def plan(asked: Request, host: Host) -> list[Change]:
    """The changes, in order; what is right already is left out. The VIPs come last."""
    families = {6 if ":" in vip else 4 for vip in asked.vips}
    sysctls: list[tuple[str, str | None]] = []
    if 4 in families:
        sysctls += _v4(asked, host)
    if 6 in families and asked.forwards:
        sysctls += _forward_v6(host)
    before = ((key, value, host.value(key)) for key, value in sysctls)
    changes: list[Change] = [Sysctl(k, v, b) for k, v, b in before if b is not None and v != b]
    if all(c.value is None for c in changes if isinstance(c, Sysctl)):
        changes = []  # nothing changes what was to be put back
    return changes + [Address(vip, asked.interface) for vip in asked.vips if not host.has(vip)]


def _v4(asked: Request, host: Host) -> Iterator[tuple[str, str | None]]:
    own = f"{V4}/{asked.interface}"
    # The larger of both counts (ip-sysctl). Strict, clients whose route is another would be dropped.
    if max(host.value(f"{V4}/all/rp_filter") or "0", host.value(f"{own}/rp_filter") or "0") == "1":
        yield f"{own}/rp_filter", "2"
    if not asked.forwards:  # DR and TUN: replies to the director itself come from its own VIP
        yield f"{V4}/all/accept_local", "1"
        return
    # Switching forwarding changes these as well (inet_forward_change).
    for device in host.devices(V4):
        if device != "all":
            yield f"{V4}/{device}/forwarding", None
    for name in ("all", "default"):
        yield f"{V4}/{name}/accept_redirects", None
    yield "net/ipv4/ip_forward", "1"
    # Nobody may be told a way round the director; it is sent if `all` or the device says so.
    yield f"{V4}/all/send_redirects", "0"
    yield f"{own}/send_redirects", "0"


def _forward_v6(host: Host) -> Iterator[tuple[str, str | None]]:
    devices = host.devices(V6)
    for device in devices:
        # A router forgets the routes that it learned from routers, unless this is 2.
        if host.value(f"{V6}/{device}/accept_ra") == "1":
            yield f"{V6}/{device}/accept_ra", "2"
    for device in devices:
        if device != "all":  # addrconf_fixup_forwarding
            yield f"{V6}/{device}/forwarding", None
    yield f"{V6}/all/forwarding", "1"
