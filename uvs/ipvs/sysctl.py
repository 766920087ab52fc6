"""IPVS's knobs, net.ipv4.vs.*: names, defaults and checks of the kernel (ip_vs_ctl.c, vs_vars)."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass


class SysctlError(OSError):
    """A name that does not exist (ENOENT) or a value that is out of range (EINVAL)."""


@dataclass(frozen=True, slots=True)
class Knob:
    """One sysctl: default, smallest and largest value, what it does."""

    default: int
    low: int
    high: int
    doc: str


_INT_MAX = 2**31 - 1

KNOBS: dict[str, Knob] = {
    "am_droprate": Knob(10, 0, _INT_MAX, "drop rate of drop_packet=3"),
    "amemthresh": Knob(1024, 0, _INT_MAX, "pages below which memory counts as low"),
    "backup_only": Knob(0, 0, 1, "a backup ignores packets"),
    "cache_bypass": Knob(0, 0, 1, "send to the packet's own destination when a fwmark service has no server"),
    "conn_reuse_mode": Knob(
        1, 0, 3, "reschedule a client port that is used again: bit 0 closed, bit 1 FIN_WAIT"
    ),
    "conntrack": Knob(0, 0, 1, "keep netfilter conntrack for connections"),
    "drop_entry": Knob(0, 0, 3, "defence: drop entries"),
    "drop_packet": Knob(0, 0, 3, "defence: drop packets"),
    "expire_nodest_conn": Knob(0, 0, 1, "expire connections of deleted servers at once"),
    "expire_quiescent_template": Knob(0, 0, 1, "templates do not steer to a server of weight 0"),
    "ignore_tunneled": Knob(0, 0, 1, "mark packets of other protocols as handled"),
    "lblc_expiration": Knob(86400, 0, _INT_MAX, "seconds that lblc remembers an unused address"),
    "lblcr_expiration": Knob(
        86400, 0, _INT_MAX, "seconds that lblcr remembers an unused address, or keeps a set"
    ),
    "nat_icmp_send": Knob(0, 0, 1, "tell servers about packets of no connection"),
    "pmtu_disc": Knob(1, 0, 1, "path MTU discovery for tunnels"),
    "schedule_icmp": Knob(0, 0, 1, "schedule ICMP errors of no connection"),
    "secure_tcp": Knob(0, 0, 3, "defence: the stricter TCP state table"),
    "sloppy_sctp": Knob(0, 0, 1, "schedule SCTP from any chunk"),
    "sloppy_tcp": Knob(0, 0, 1, "schedule TCP from any segment but RST"),
    "snat_reroute": Knob(1, 0, 1, "route replies again after translation"),
}

# Accepted and kept, but nothing here depends on them yet.
WITHOUT_EFFECT = frozenset({"backup_only", "conntrack", "snat_reroute"})


class Sysctl:
    """The values of one director. Attributes are read on the packet path: `sysctl.pmtu_disc`."""

    am_droprate: int
    amemthresh: int
    backup_only: int
    cache_bypass: int
    conn_reuse_mode: int
    conntrack: int
    drop_entry: int
    drop_packet: int
    expire_nodest_conn: int
    expire_quiescent_template: int
    ignore_tunneled: int
    lblc_expiration: int
    lblcr_expiration: int
    nat_icmp_send: int
    pmtu_disc: int
    schedule_icmp: int
    secure_tcp: int
    sloppy_sctp: int
    sloppy_tcp: int
    snat_reroute: int

    def __init__(self) -> None:
        self.observers: list[Callable[[str, int], None]] = []
        for name, knob in KNOBS.items():
            setattr(self, name, knob.default)

    def names(self) -> list[str]:
        """All names, sorted."""
        return sorted(KNOBS)

    def get(self, name: str) -> int:
        """A value. SysctlError ENOENT: no such name."""
        if name not in KNOBS:
            raise SysctlError(errno.ENOENT, f"no sysctl net.ipv4.vs.{name}")
        value: int = getattr(self, name)
        return value

    def set(self, name: str, value: int | str) -> None:
        """Set a value. SysctlError ENOENT: no such name; EINVAL: not a number, or out of range."""
        self.get(name)
        knob = KNOBS[name]
        try:
            number = int(value)
        except ValueError:
            raise SysctlError(errno.EINVAL, f"net.ipv4.vs.{name} takes a number, not {value!r}") from None
        if not knob.low <= number <= knob.high:
            raise SysctlError(errno.EINVAL, f"net.ipv4.vs.{name} takes {knob.low}..{knob.high}, not {number}")
        setattr(self, name, number)
        for observer in self.observers:
            observer(name, number)
