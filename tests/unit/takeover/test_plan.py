"""Which changes a host needs to become the director, from what it has."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from uvs.takeover.changes import Address, Sysctl
from uvs.takeover.plan import Host, Request, plan

VIP4, VIP6 = "192.0.2.100", "2001:db8:a::100"
# A Debian host as it comes.
USUAL = {
    "net/ipv4/ip_forward": "0",
    **{f"net/ipv4/conf/{d}/{n}": v for d in ("all", "default", "eth0", "eth1") for n, v in (
        ("rp_filter", "0"), ("accept_local", "0"), ("forwarding", "0"), ("accept_redirects", "1"), ("send_redirects", "1"))},
    **{f"net/ipv6/conf/{d}/{n}": v for d in ("all", "default", "eth0", "eth1") for n, v in (
        ("forwarding", "0"), ("accept_ra", "1"))},
}  # fmt: skip


def changes(
    vips: tuple[str, ...], forwards: bool, has: tuple[str, ...] = (), **other: str
) -> list[tuple[str, str | None, str] | tuple[str, str]]:
    """(key without its `net/`, value, before), (address, interface)"""
    values: Mapping[str, str] = USUAL | {f"net/{k.replace('__', '/')}": v for k, v in other.items()}

    def devices(conf: str) -> list[str]:
        return sorted({k.split("/")[3] for k in values if k.startswith(f"{conf}/")})

    host = Host(values.get, devices, lambda vip: vip in has)
    return [
        (c.address, c.interface)
        if isinstance(c, Address)
        else (c.key.removeprefix("net/"), c.value, c.before)
        for c in plan(Request("eth0", vips, forwards), host)
    ]


KEPT = [
    ("ipv4/conf/default/forwarding", None, "0"),
    ("ipv4/conf/eth0/forwarding", None, "0"),
    ("ipv4/conf/eth1/forwarding", None, "0"),
    ("ipv4/conf/all/accept_redirects", None, "1"),
    ("ipv4/conf/default/accept_redirects", None, "1"),
]
REDIRECTS = [("ipv4/conf/all/send_redirects", "0", "1"), ("ipv4/conf/eth0/send_redirects", "0", "1")]


def test_nat() -> None:
    """Forwarding with what else the kernel changes then; redirects off; the VIP last."""
    assert changes((VIP4,), True) == [*KEPT, ("ipv4/ip_forward", "1", "0"), *REDIRECTS, (VIP4, "eth0")]


def test_routes_that_were_learned_stay_when_ipv6_is_forwarded() -> None:
    assert changes((VIP6,), True) == [
        *((f"ipv6/conf/{d}/accept_ra", "2", "1") for d in ("all", "default", "eth0", "eth1")),
        *((f"ipv6/conf/{d}/forwarding", None, "0") for d in ("default", "eth0", "eth1")),
        ("ipv6/conf/all/forwarding", "1", "0"),
        (VIP6, "eth0"),
    ]


def test_without_nat_forwarding_stays() -> None:
    assert changes((VIP4, VIP6), False) == [
        ("ipv4/conf/all/accept_local", "1", "0"),
        (VIP4, "eth0"),
        (VIP6, "eth0"),
    ]


@pytest.mark.parametrize(
    ("everywhere", "own", "changed"),
    [("0", "0", False), ("1", "0", True), ("0", "1", True), ("2", "1", False), ("1", "2", False)],
)
def test_a_strict_filter_is_loosened_on_the_interface(everywhere: str, own: str, changed: bool) -> None:
    """The larger of both counts."""
    found = changes((VIP4,), False, ipv4__conf__all__rp_filter=everywhere, ipv4__conf__eth0__rp_filter=own)
    assert (("ipv4/conf/eth0/rp_filter", "2", own) in found) == changed


def test_what_is_right_already_is_left_alone() -> None:
    ready = {
        "ipv4__ip_forward": "1",
        "ipv4__conf__all__send_redirects": "0",
        "ipv4__conf__eth0__send_redirects": "0",
    }
    assert changes((VIP4,), True, (VIP4,), **ready) == []


def test_a_kernel_without_ipv6_or_with_less_is_not_asked_for_it() -> None:
    less = {"net/ipv4/ip_forward": "0"}
    host = Host(less.get, lambda _: [], lambda _: False)
    assert plan(Request("eth0", (VIP4, VIP6)), host) == [
        Sysctl("net/ipv4/ip_forward", "1", "0"),
        Address(VIP4, "eth0"),
        Address(VIP6, "eth0"),
    ]
