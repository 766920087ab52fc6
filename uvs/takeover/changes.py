"""One change of the host, with what was there before, so that it can be undone exactly."""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute, NetlinkError

from uvs.errors import UserError

PROC_SYS = Path("/proc/sys")
IFA_F_NODAD = 0x02  # linux/if_addr.h: usable at once
FOREVER = 0xFFFFFFFF  # INFINITY_LIFE_TIME


@dataclass(frozen=True, slots=True)
class Sysctl:
    """A file below /proc/sys gets `value`; None: what comes next may change it, so it is put back."""

    key: str
    value: str | None
    before: str

    def __str__(self) -> str:
        return f"{self.key} = {self.value}"

    def holds(self) -> bool:
        """Is it so now?"""
        return self.value is None or read(self.key) == self.value

    def make(self) -> None:
        """OSError if the kernel refuses it."""
        if self.value is not None:
            (PROC_SYS / self.key).write_text(self.value)

    def undo(self) -> None:
        """Put back what was there, unless it is gone or somebody else has changed it since."""
        now = read(self.key)
        if now is not None and now != self.before and self.value in (None, now):
            with contextlib.suppress(OSError):
                (PROC_SYS / self.key).write_text(self.before)


@dataclass(frozen=True, slots=True)
class Address:
    """A virtual address, without prefix length, on an interface where it was not."""

    address: str
    interface: str

    def __str__(self) -> str:
        return f"{self.address} on {self.interface}"

    def holds(self) -> bool:
        """Is it there?"""
        return present(self.address, self.interface)

    def make(self) -> None:
        """OSError if the kernel refuses it; it was there already: good.

        An IPv6 one is deprecated, lest it become the source of the host's own connections.
        """
        more: dict[str, Any] = {}
        if ":" in self.address:
            lifetimes = {"ifa_preferred": 0, "ifa_valid": FOREVER}
            more = {"IFA_FLAGS": IFA_F_NODAD, "IFA_CACHEINFO": lifetimes}
        try:
            self._ask("add", **more)
        except NetlinkError as e:
            if e.code != errno.EEXIST:
                raise OSError(e.code, str(e.args[1]) if len(e.args) > 1 else str(e)) from None

    def undo(self) -> None:
        """Take it away, if it is still there."""
        with contextlib.suppress(NetlinkError, OSError):
            self._ask("delete")

    def _ask(self, command: str, **more: Any) -> None:
        with IPRoute() as kernel:
            kernel.addr(
                command,
                index=socket.if_nametoindex(self.interface),
                family=socket.AF_INET6 if ":" in self.address else socket.AF_INET,
                address=self.address,
                prefixlen=128 if ":" in self.address else 32,
                **more,
            )


Change = Sysctl | Address
KINDS: dict[str, type[Change]] = {"sysctl": Sysctl, "address": Address}


def to_json(change: Change) -> dict[str, Any]:
    """As kept in the state file."""
    return {"kind": next(k for k, c in KINDS.items() if isinstance(change, c)), **asdict(change)}


def from_json(row: Mapping[str, Any]) -> Change:
    """The reverse; KeyError or TypeError if it is none."""
    fields = {k: v for k, v in row.items() if k != "kind"}
    return KINDS[row["kind"]](**fields)


def read(key: str) -> str | None:
    """A sysctl's value; None where the kernel has none of that name."""
    try:
        return (PROC_SYS / key).read_text().strip()
    except OSError:
        return None


def present(address: str, interface: str) -> bool:
    """Does this interface have the address? UserError if there is no such interface."""
    wanted = ipaddress.ip_address(address)
    with IPRoute() as kernel:
        for row in kernel.get_addr(index=index(interface)):
            mine = row.get_attr("IFA_LOCAL") or row.get_attr("IFA_ADDRESS")
            if ipaddress.ip_address(mine) == wanted:
                return True
    return False


def index(interface: str) -> int:
    """Its number; UserError if there is none."""
    try:
        return socket.if_nametoindex(interface)
    except OSError:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise UserError(f"no interface {interface}: this host has {names}") from None
