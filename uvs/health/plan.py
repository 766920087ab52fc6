"""What is to be checked, out of a configuration."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from uvs.config.checks import Common, Fault, Hooks
from uvs.config.schema import Config
from uvs.config.schema import Service as ServiceModel
from uvs.config.specs import dest_spec, fallback_spec, service_key
from uvs.health.checks.base import service_name
from uvs.ipvs.spec import DestSpec, ServiceKey
from uvs.layers import Lookup, ServerId, id_of


@dataclass(frozen=True, slots=True)
class ServerPlan:
    """A real server and its checks by name: `http`, `http 2`; none: it is always in service."""

    spec: DestSpec
    checks: dict[str, Common]


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """A service that has checks, or a server that has; it may have no server."""

    key: ServiceKey
    name: str
    servers: dict[ServerId, ServerPlan]
    quorum: int
    hysteresis: int
    fallback: DestSpec | None
    slow_start: float
    remove: bool
    hooks: Hooks
    fault: Fault | None


def plan(config: Config) -> dict[Lookup, ServicePlan]:
    """Services to look after."""
    checked = (s for s in config.service if s.check or any(server.check for server in s.server))
    return {p.key.lookup: p for p in map(_service, checked)}


def _service(service: ServiceModel) -> ServicePlan:
    key = service_key(service)
    servers = {}
    for server in service.server:
        spec = dest_spec(service, server)
        servers[id_of(spec)] = ServerPlan(spec, _named([*service.check, *server.check]))
    return ServicePlan(
        key,
        service_name(key),
        servers,
        service.quorum,
        service.hysteresis,
        fallback_spec(service),
        service.slow_start,
        service.on_failure == "remove",
        service.hooks,
        service.fault,
    )


def _named(checks: list[Common]) -> dict[str, Common]:
    seen: Counter[str] = Counter()
    named = {}
    for check in checks:
        kind: str = check.type  # type: ignore[attr-defined]
        seen[kind] += 1
        named[kind if seen[kind] == 1 else f"{kind} {seen[kind]}"] = check
    return named
