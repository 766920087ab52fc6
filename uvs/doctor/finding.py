"""What the doctor tells: findings, and all their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warn", "fail"]
HERE = "here"


class Name(enum.StrEnum):
    """Everything that is looked at, in the order of docs/reference/doctor.md, which explains each."""

    PRIVILEGES = "privileges"
    NFQUEUE = "NFQUEUE"
    BACK_END = "rule back end"
    AF_PACKET = "AF_PACKET"
    USER_NAMESPACES = "user namespaces"
    IPIP = "ipip"
    CLOCK = "clock"
    OFFLOAD = "offload"
    FORWARDING4 = "IPv4 forwarding"
    FORWARDING6 = "IPv6 forwarding"
    RP_FILTER = "rp_filter"
    ACCEPT_LOCAL = "accept_local"
    SEND_REDIRECTS = "send_redirects"
    ROUTE_LOCALNET = "route_localnet"
    BRIDGE = "bridge netfilter"
    CONNTRACK = "conntrack full"
    NOTRACK = "notrack"
    FIREWALL = "firewall"
    FWMARK = "fwmark"
    STALE = "stale rules"
    IP_VS = "ip_vs"
    DIRECTORS = "two directors"
    DIRECTOR = "director"
    QUEUE = "queue dropping"
    TABLE = "table full"
    VIP = "VIP"
    VIP_ON_LO = "VIP on lo"
    VIP_ELSEWHERE = "VIP elsewhere"
    NO_SERVER = "no server"
    WEIGHT = "weight 0"
    OVERLOAD = "overload"
    DOWN = "server down"
    DRAINED = "server drained"
    SHADOWED = "port in use"
    SERVER_PORT = "server's port"
    ROUTE = "way to servers"
    OFF_LINK = "DR off link"
    BESIDE = "client beside servers"
    REPLIES = "NAT replies"
    SILENT = "silent server"
    MTU = "tunnel MTU"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at.

    `mend`: None if there is nothing to mend. `on`: where `mend` is to be run: HERE, or the address of another
    host; None if it is advice, not a command line.
    """

    name: Name
    state: State
    detail: str
    mend: str | None = None
    on: str | None = None


def some(names: list[str], most: int = 4) -> str:
    """Names as a list for people, each once; a thousand would be too many."""
    names = list(dict.fromkeys(names))
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
