"""What several keys of a configuration must be to each other, and to IPVS.

Each part is looked at by itself, with what is wrong in it left out, so that faults of all kinds are told at
once. What IPVS refuses is asked of `uvs.ipvs`.
"""

from __future__ import annotations

import difflib
import ipaddress
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from uvs.adm.grammar import SCHED_FLAGS
from uvs.adm.options import TUNNEL_RULES
from uvs.config.lines import Path, show
from uvs.config.schema import Config, Director, Server, Service, Tunnel
from uvs.config.specs import CHECKSUMS, dest_spec, fallback_spec, service_key, service_spec
from uvs.ipvs import scheduling
from uvs.ipvs.allowed import check_dest, check_service
from uvs.ipvs.knobs import KNOBS
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey
from uvs.ipvs.sysctl import Sysctl
from uvs.layers import id_of

Told = tuple[Path, str]
M = TypeVar("M", bound=BaseModel)
WITHOUT_USUAL_PORT = ("tcp", "udp", "forward")  # checks that ask at a port, and none is usual


def faults(document: dict[str, Any], config: Config | None) -> Iterator[Told]:
    """What is wrong in a document beside what the models say of each key by itself.

    `config`: the document as a model, if it could be made.
    """
    yield from _director(document.get("director"))
    yield from _sysctls(document.get("sysctl"))
    seen: dict[Any, Path] = {}
    services = config.service if config else document.get("service")
    for i, raw in enumerate(services if isinstance(services, list) else []):
        yield from _service(("service", i), raw, seen)


def lenient(kind: type[M], raw: Any) -> tuple[M | None, set[str]]:
    """A model of what is right in `raw`, and the keys that are not. None: too little is right."""
    if isinstance(raw, kind):
        return raw, set()
    if not isinstance(raw, dict):
        return None, set()
    try:
        return kind.model_validate(raw), set()
    except ValidationError as error:
        bad = {str(each["loc"][0]) for each in error.errors() if each["loc"]}
    try:
        return kind.model_validate({name: value for name, value in raw.items() if name not in bad}), bad
    except ValidationError:
        return None, bad


def _director(raw: Any) -> Iterator[Told]:
    director, _ = lenient(Director, raw)
    if director is None:
        return
    for i, vip in enumerate(director.vips):
        if vip in director.vips[:i]:
            yield ("director", "vips", i), f"{vip} is there twice"


def _sysctls(raw: Any) -> Iterator[Told]:
    for name, value in raw.items() if isinstance(raw, dict) else ():
        if type(value) not in (int, str):
            continue  # the model says so
        knob = KNOBS.get(name)
        if knob is None:
            yield ("sysctl", name), f"there is no such sysctl of IPVS; {_nearest(name, KNOBS)}"
        elif isinstance(value, str) == isinstance(knob.default, int):
            yield ("sysctl", name), f"{value!r}: it takes {knob.range}"
        else:
            try:
                Sysctl(frozenset(os.sched_getaffinity(0))).set(name, value)
            except OSError:
                yield ("sysctl", name), f"{value!r}: it takes {knob.range}"


def _nearest(name: str, names: Any) -> str:
    near = difflib.get_close_matches(name, list(names), 1)
    return f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"


def _service(path: Path, raw: Any, seen: dict[Any, Path]) -> Iterator[Told]:
    service, bad = lenient(Service, raw)
    if service is None:
        return
    yield from _named(path, service, bad)
    if bad & {"address", "fwmark", "family", "protocol"}:
        return
    if (service.address is None) == (service.fwmark is None):
        return
    key = service_key(service)
    if key.lookup in seen:
        yield path, f"the same service as {show(seen[key.lookup])}"
    seen.setdefault(key.lookup, path)
    yield from _settings(path, service, key)
    servers = service.server if raw is service else raw.get("server")
    yield from _servers(path, service, key, servers, "tunnel" in bad or "method" in bad)


def _named(path: Path, service: Service, bad: set[str]) -> Iterator[Told]:
    if "address" not in bad and "fwmark" not in bad:
        if service.address is None and service.fwmark is None:
            yield path, 'it has neither an address ("192.0.2.100:80") nor a fwmark (1)'
        if service.address is not None and service.fwmark is not None:
            yield (*path, "fwmark"), "a service has an address or a fwmark, not both"
    if service.fwmark is not None and service.protocol is not None:
        yield (*path, "protocol"), "a fwmark service has none: packets of any protocol bear marks"
    if service.address is not None and service.fwmark is None and service.family is not None:
        yield (*path, "family"), "only a fwmark service has it: the address tells it"


def _settings(path: Path, service: Service, key: ServiceKey) -> Iterator[Told]:
    spec = service_spec(service)
    plain = replace(spec, sched_name="none", pe_name="", netmask=128)
    for here, told in _refused(
        (*path, "scheduler"), check_service, replace(plain, sched_name=spec.sched_name)
    ):
        yield here, f"{told}; {_nearest(spec.sched_name, scheduling.names())}"
    yield from _refused((*path, "engine"), check_service, replace(plain, pe_name=spec.pe_name))
    for i, name in enumerate(service.flags):
        if SCHED_FLAGS[name][1] not in (None, service.scheduler):
            yield (*path, "flags", i), f"{name} is a flag of the scheduler {SCHED_FLAGS[name][1]} only"
    if not key.fwmark and not key.port and service.persistent is None:
        told = "it has no port; a service of every port must be persistent (persistent = 300)"
        yield (*path, "address"), told
    if service.one_packet and not key.fwmark and service.protocol != "udp":
        yield (*path, "one_packet"), "only services of UDP or of a fwmark can have it"
    for only in ("netmask", "engine"):
        if getattr(service, only) is not None and service.persistent is None:
            yield (*path, only), "only a persistent service has it (persistent = 300)"
    if service.netmask is not None:
        six = key.af == socket.AF_INET6
        if six and isinstance(service.netmask, str):
            yield (*path, "netmask"), f"{service.netmask!r}: an IPv6 service takes a prefix length of 1..128"
        elif not six and isinstance(service.netmask, int) and service.netmask > 32:
            yield (*path, "netmask"), f"{service.netmask}: an IPv4 service takes a prefix length of 1..32"
    if service.hysteresis >= service.quorum and service.hysteresis:
        told = f"{service.hysteresis}: it must be below quorum ({service.quorum}), or that is never lost"
        yield (*path, "hysteresis"), told
    if service.tunnel is not None:
        yield from _tunnel((*path, "tunnel"), service.tunnel)


def _servers(path: Path, service: Service, key: ServiceKey, raw: Any, unknown: bool) -> Iterator[Told]:
    """`unknown`: what the service says for its servers is wrong, and told already."""
    names: dict[Any, Path] = {}
    for i, each in enumerate(raw if isinstance(raw, list) else []):
        here = (*path, "server", i)
        server, bad = lenient(Server, each)
        if server is None:
            continue
        if server.tunnel is not None:
            yield from _tunnel((*here, "tunnel"), server.tunnel)
        spec = dest_spec(service, server)
        if not unknown and not bad & {"method", "tunnel"}:
            method = server.method or service.method
            if server.tunnel is not None and method != "tun":
                yield (*here, "tunnel"), f"only a server by tun has it, not one by {method}"
            yield from _dest(here, "address", key, spec, method)
        if id_of(spec) in names:
            yield (*here, "address"), f"the same server as {show(names[id_of(spec)])}"
        names.setdefault(id_of(spec), here)
        yield from _checks((*here, "check"), server, spec)
        yield from _checks((*path, "check"), service, spec)
    if service.fallback is not None and not unknown:
        sorry = fallback_spec(service)
        assert sorry is not None
        if id_of(sorry) in names:
            yield (*path, "fallback"), f"it is a server of the service, {show(names[id_of(sorry)])}"
        yield from _dest(path, "fallback", key, sorry, service.method)


def _dest(path: Path, name: str, key: ServiceKey, spec: DestSpec, method: str) -> Iterator[Told]:
    bare = DestSpec(spec.af, spec.addr, spec.port, spec.fwd)
    yield from _refused((*path, name), check_dest, key, bare)
    if spec.l_threshold > spec.u_threshold:
        told = f"{spec.l_threshold}: it may be u_threshold ({spec.u_threshold}) at most"
        yield (*path, "l_threshold"), told
    addr = ipaddress.ip_address(spec.addr)
    if addr.is_multicast or addr.is_unspecified or str(addr) == "255.255.255.255":
        yield (*path, name), f"{addr} is no unicast address"
    if spec.fwd and not key.fwmark and spec.port != key.port:
        yield (*path, name), f"port {spec.port}: {method} leaves the port as it is, the service's {key.port}"


def _tunnel(path: Path, tunnel: Tunnel) -> Iterator[Told]:
    rule = TUNNEL_RULES[tunnel.type]
    if tunnel.port is None and "tun-port" in rule.needs:
        yield path, f"a {tunnel.type} tunnel needs a port"
    if tunnel.port is not None and "tun-port" not in rule.needs:
        yield (*path, "port"), f"a {tunnel.type} tunnel has none"
    if tunnel.checksum != "none" and CHECKSUMS[tunnel.checksum] not in rule.one:
        yield (*path, "checksum"), f"{tunnel.checksum!r}: a {tunnel.type} tunnel has no such"


def _checks(path: Path, of: Service | Server, spec: DestSpec) -> Iterator[Told]:
    for i, check in enumerate(of.check):
        if not spec.port and check.port is None and check.type in WITHOUT_USUAL_PORT:
            yield (*path, i), "which port? The server has none of its own (port = 80)"


def _refused(path: Path, check: Callable[..., None], *what: object) -> Iterator[Told]:
    try:
        check(*what)
    except IpvsError as error:
        yield path, str(error.strerror)
