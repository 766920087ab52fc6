"""What a configuration asks of IPVS: services and destinations as specs."""

from __future__ import annotations

import ipaddress
import os
import socket
from dataclasses import dataclass, field

from uvs.adm.grammar import SCHED_FLAGS, TUN_CSUMS, TUN_TYPES
from uvs.config.schema import Config, Server, Service, endpoint
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, DestSpec, ServiceKey, ServiceSpec
from uvs.ipvs.sysctl import Sysctl
from uvs.layers import Lookup, ServerId, id_of

PROTOCOLS = {"tcp": IPPROTO_TCP, "udp": IPPROTO_UDP, "sctp": IPPROTO_SCTP}
CHECKSUMS = {"none": "tun-nocsum", "full": "tun-csum", "remote": "tun-remcsum"}
METHODS = {"nat": 0, "tun": 2, "dr": 3}  # IP_VS_CONN_F_*


@dataclass(slots=True)
class Wanted:
    """The table that a configuration asks for."""

    services: dict[Lookup, ServiceSpec] = field(default_factory=dict)
    servers: dict[Lookup, dict[ServerId, DestSpec]] = field(default_factory=dict)
    checked: set[tuple[Lookup, ServerId]] = field(default_factory=set)  # of services that have checks
    fallbacks: dict[Lookup, DestSpec] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)  # as /proc shows them
    timeouts: tuple[int, int, int] = (900, 120, 300)

    @property
    def entries(self) -> dict[tuple[Lookup, ServerId], DestSpec]:
        """Every server that is named."""
        return {(key, name): spec for key, found in self.servers.items() for name, spec in found.items()}


def wanted(config: Config) -> Wanted:
    """The table that it asks for."""
    times = config.timeouts
    found = Wanted(timeouts=(times.tcp, times.tcp_fin, times.udp))
    sysctl = Sysctl(frozenset(os.sched_getaffinity(0)))
    for name, value in config.sysctl.items():
        sysctl.set(name, value)
        found.sysctls[name] = sysctl.get(name)
    for service in config.service:
        spec = service_spec(service)
        lookup = spec.key.lookup
        found.services[lookup] = spec
        servers = found.servers[lookup] = {}
        for server in service.server:
            dest = dest_spec(service, server)
            servers[id_of(dest)] = dest
        if service.check or any(server.check for server in service.server):
            found.checked.update((lookup, server) for server in servers)
            if (sorry := fallback_spec(service)) is not None:
                found.fallbacks[lookup] = sorry
    return found


def service_key(service: Service) -> ServiceKey:
    """What names a service. ValueError: it has neither an address nor a mark."""
    if service.fwmark is not None:
        six = service.family == "ipv6"
        family = socket.AF_INET6 if six else socket.AF_INET
        return ServiceKey(family, IPPROTO_TCP, bytes(16 if six else 4), 0, service.fwmark)
    if service.address is None:
        raise ValueError("a service has an address or a fwmark")
    af, addr, port = _address(service.address)
    return ServiceKey(af, PROTOCOLS[service.protocol or "tcp"], addr, port or 0)


def service_spec(service: Service) -> ServiceSpec:
    """A service as IPVS has it."""
    key = service_key(service)
    flags = SVC_F_PERSISTENT if service.persistent is not None else 0
    flags |= SVC_F_ONEPACKET if service.one_packet else 0
    for name in service.flags:
        flags |= SCHED_FLAGS[name][0]
    return ServiceSpec(
        key,
        service.scheduler,
        flags,
        service.persistent or 0,
        _netmask(key.af, service.netmask),
        service.engine or "",
    )


def fallback_spec(service: Service) -> DestSpec | None:
    """A service's fallback server, by the service's method."""
    return None if service.fallback is None else dest_spec(service, Server(address=service.fallback))


def dest_spec(service: Service, server: Server) -> DestSpec:
    """A real server as IPVS has it; without a port of its own it has the service's."""
    af, addr, port = _address(server.address)
    method = server.method or service.method
    spec = DestSpec(
        af,
        addr,
        service_key(service).port if port is None else port,
        METHODS[method],
        server.weight,
        server.u_threshold,
        server.l_threshold,
    )
    tunnel = server.tunnel or service.tunnel
    if method == "tun" and tunnel is not None:
        spec.tun_type = TUN_TYPES[tunnel.type]
        spec.tun_port = tunnel.port or 0
        spec.tun_flags = TUN_CSUMS[CHECKSUMS[tunnel.checksum]]
    return spec


def _address(text: str) -> tuple[int, bytes, int | None]:
    host, port = endpoint(text)
    found = ipaddress.ip_address(host)
    return socket.AF_INET6 if found.version == 6 else socket.AF_INET, found.packed, port


def _netmask(af: int, mask: int | str | None) -> int:
    if af == socket.AF_INET6:
        return mask if isinstance(mask, int) else 128
    if isinstance(mask, str):
        return int(ipaddress.IPv4Address(mask))
    bits = 32 if mask is None else min(mask, 32)  # more is told as a fault
    return 0xFFFFFFFF >> (32 - bits) << (32 - bits)
