"""What `uvs.toml` says: services, servers, sysctls, the host (docs/reference/configuration.md).

Models only, each key by itself; what several keys must be to each other is in `semantics`, what they are to
IPVS in `specs`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from uvs.config.checks import Address, Check, Fault, Hooks, Model, Monitor

INT_MAX = 2**31 - 1
TIMEOUT_MAX = 86400 * 31  # seconds; ipvsadm's
SECONDS_MAX = 86400


@lru_cache(65536)
def endpoint(text: str) -> tuple[str, int | None]:
    """Address and port of `192.0.2.100:80`, `[2001:db8::1]:80`, or of an address alone. ValueError."""
    bracket = re.fullmatch(r"\[([^]]*)\](?::([0-9]{1,5}))?", text)
    found = bracket or re.fullmatch(r"([^:]*)(?::([0-9]{1,5}))?", text)
    host, port = (found[1], found[2]) if found else (text, None)
    try:
        address = ip_address(host)
    except ValueError:
        address = None
    if address is None or (bracket and address.version != 6) or "%" in host:
        raise ValueError(f"{text!r} is no address: 192.0.2.1:80, [2001:db8::1]:80, with or without the port")
    if port is not None and int(port) > 65535:
        raise ValueError(f"{text!r} has no port: they are 0..65535")
    return str(address), None if port is None else int(port)


def _endpoint(text: str) -> str:
    endpoint(text)
    return text


def _interface(text: str) -> str:
    if not re.fullmatch(r"[^\s/:]{1,15}", text) or text in (".", ".."):
        raise ValueError(f"{text!r} is no name of a network interface")
    return text


def _netmask(mask: int | str) -> int | str:
    if isinstance(mask, str):
        try:
            ip_address(mask)
        except ValueError:
            mask = -1
        if mask == -1 or ":" in str(mask):
            raise ValueError('a netmask is a prefix length, as 24, or "255.255.255.0"')
    return mask


Endpoint = Annotated[str, AfterValidator(_endpoint)]
Interface = Annotated[str, AfterValidator(_interface)]
Netmask = Annotated[Annotated[int, Field(ge=1, le=128)] | str, AfterValidator(_netmask)]
Weight = Annotated[int, Field(ge=0, le=INT_MAX)]
Threshold = Annotated[int, Field(ge=0, le=INT_MAX)]
Timeout = Annotated[int, Field(ge=1, le=TIMEOUT_MAX)]
Method = Literal["nat", "dr", "tun"]
SchedulerFlag = Literal["flag-1", "flag-2", "flag-3", "sh-fallback", "sh-port", "mh-fallback", "mh-port"]


class Director(Model):
    """`[director]`: what `uvs director up` gives this host."""

    interface: Interface | None = None
    vips: list[Address] = Field(default_factory=list)


class Timeouts(Model):
    """`[timeouts]`: those of `ipvsadm --set`, seconds."""

    tcp: Timeout = 900
    tcp_fin: Timeout = 120
    udp: Timeout = 300


class Tunnel(Model):
    """How requests are put into a tunnel."""

    type: Literal["ipip", "gue", "gre"] = "ipip"
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    checksum: Literal["none", "full", "remote"] = "none"


class Server(Model):
    """`[[service.server]]`: a real server."""

    address: Endpoint
    weight: Weight = 1
    method: Method | None = None
    tunnel: Tunnel | None = None
    u_threshold: Threshold = 0
    l_threshold: Threshold = 0
    check: list[Check] = Field(default_factory=list)


class Service(Model):
    """`[[service]]`: a virtual service."""

    address: Endpoint | None = None
    protocol: Literal["tcp", "udp", "sctp"] | None = None
    fwmark: Annotated[int, Field(ge=1, le=0xFFFFFFFF)] | None = None
    family: Literal["ipv4", "ipv6"] | None = None
    scheduler: str = "wlc"
    flags: list[SchedulerFlag] = Field(default_factory=list)
    one_packet: bool = False
    persistent: Timeout | None = None
    netmask: Netmask | None = None
    engine: str | None = None
    method: Method = "nat"
    tunnel: Tunnel | None = None
    on_failure: Literal["quiesce", "remove"] = "quiesce"
    quorum: Annotated[int, Field(ge=1, le=INT_MAX)] = 1
    hysteresis: Annotated[int, Field(ge=0, le=INT_MAX)] = 0
    fallback: Endpoint | None = None
    slow_start: Annotated[float, Field(ge=0, le=SECONDS_MAX, allow_inf_nan=False)] = 0.0
    check: list[Check] = Field(default_factory=list)
    hooks: Hooks = Hooks()
    fault: Fault | None = None
    server: list[Server] = Field(default_factory=list)


class Config(Model):
    """The whole file."""

    director: Director = Director()
    sysctl: dict[str, int | str] = Field(default_factory=dict)
    timeouts: Timeouts = Timeouts()
    monitor: Monitor = Monitor()
    service: list[Service] = Field(default_factory=list)
