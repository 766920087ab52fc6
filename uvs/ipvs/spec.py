"""What is asked of a director: services and destinations as data.

Free of the engine, so that a control program (`uvsadm`) need not load it. Addresses are packed
bytes, ports host order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

# Service flags, IP_VS_SVC_F_* (include/uapi/linux/ip_vs.h).
SVC_F_PERSISTENT = 1
SVC_F_HASHED = 2
SVC_F_ONEPACKET = 4
SVC_F_SCHED1, SVC_F_SCHED2, SVC_F_SCHED3 = 8, 0x10, 0x20


# A queue's counters, by the names of docs/reference/control-protocol.md, GET_QUEUES; None: not known.
QueueRow = dict[str, int | str | None]


class IpvsError(OSError):
    """A refused change; `errno` is what the kernel's IPVS answers."""


class ServiceKey(NamedTuple):
    """What names a service: a mark, or protocol, address and port (then fwmark is 0)."""

    af: int
    protocol: int
    addr: bytes
    port: int
    fwmark: int = 0

    @property
    def lookup(self) -> tuple[int, int, bytes, int, int]:
        """The key in the hash: a fwmark service has neither protocol nor address."""
        return (self.af, 0, b"", 0, self.fwmark) if self.fwmark else tuple(self)  # type: ignore[return-value]


@dataclass(slots=True)
class ServiceSpec:
    """A service as it is asked for.

    `netmask`: the IPv4 mask as a number (255.255.255.0 is 0xFFFFFF00), or the IPv6 prefix length;
    `timeout` in seconds.
    """

    key: ServiceKey
    sched_name: str = "wlc"
    flags: int = 0
    timeout: int = 0
    netmask: int = 0xFFFFFFFF
    pe_name: str = ""


@dataclass(slots=True)
class DestSpec:
    """A destination as it is asked for.

    `fwd`: connection flag bits of the method (0 MASQ, 2 TUNNEL, 3 DROUTE).
    """

    af: int
    addr: bytes
    port: int
    fwd: int = 0
    weight: int = 1
    u_threshold: int = 0
    l_threshold: int = 0
    tun_type: int = 0
    tun_port: int = 0
    tun_flags: int = 0
