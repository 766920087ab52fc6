"""From the table as it stands to the one that a configuration asks for: a list of changes.

Pure. Health, drains and fallback servers are layers over what is configured and stay as they are, but for
those of what the configuration names no longer, or otherwise. No server that stays is deleted in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from uvs.config.specs import Wanted
from uvs.ipvs.spec import SVC_F_HASHED, DestSpec, ServiceKey, ServiceSpec
from uvs.layers import Drain, Lookup, ServerId, id_of

Name = tuple[Lookup, ServerId]
_AUTOMATIC = ("drop_entry", "drop_packet", "secure_tcp")  # 1 becomes 2, and 2 1, by the memory that there is


@dataclass(slots=True)
class Standing:
    """The table as it stands. Servers as they are configured, those that are held back too."""

    services: dict[Lookup, ServiceSpec] = field(default_factory=dict)
    servers: dict[Lookup, dict[ServerId, DestSpec]] = field(default_factory=dict)
    drains: dict[Name, Drain] = field(default_factory=dict)
    checked: dict[Name, ServiceKey] = field(default_factory=dict)  # servers of which checks have told
    fallbacks: dict[Lookup, tuple[ServiceKey, DestSpec]] = field(default_factory=dict)
    sysctls: dict[str, str] = field(default_factory=dict)  # that are not as in the beginning
    defaults: dict[str, str] = field(default_factory=dict)
    timeouts: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Change:
    """One change. `sign`: `+` added, `-` deleted, `~` changed; the kind is the class."""

    sign: str


@dataclass(frozen=True, slots=True)
class SysctlChange(Change):
    """net.ipv4.vs.NAME."""

    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class TimeoutsChange(Change):
    """TCP, FIN_WAIT, UDP; seconds."""

    old: tuple[int, int, int]
    new: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ServiceChange(Change):
    """A service; with a deleted one its servers go."""

    old: ServiceSpec | None
    new: ServiceSpec | None

    @property
    def key(self) -> ServiceKey:
        """What names it."""
        spec = self.new or self.old
        assert spec is not None
        return spec.key


@dataclass(frozen=True, slots=True)
class ServerChange(Change):
    """A real server. `drain`: this ends its drain."""

    key: ServiceKey
    old: DestSpec | None
    new: DestSpec | None
    drain: bool = False

    @property
    def server(self) -> ServerId:
        """What names it within its service."""
        spec = self.new or self.old
        assert spec is not None
        return id_of(spec)


@dataclass(frozen=True, slots=True)
class LayerChange(Change):
    """What lies over a server goes: `what` is `health`, `fallback`, or `drain`."""

    key: ServiceKey
    server: ServerId
    what: str


def converge(wanted: Wanted, standing: Standing) -> list[Change]:
    """The changes, in an order in which none hinders a later one: what can be refused comes first."""
    parts: list[list[Change]] = [[], [], [], [], []]
    settings, services, servers, deleted, layers = parts
    settings += _settings(wanted, standing)
    for lookup, spec in wanted.services.items():
        old = standing.services.get(lookup)
        if old is None:
            services.append(ServiceChange("+", None, spec))
        elif not _same(old, spec):
            services.append(ServiceChange("~", old, replace(spec, key=old.key)))
        for change in _servers(wanted, standing, lookup, spec.key if old is None else old.key):
            (deleted if change.sign == "-" else servers).append(change)
    for lookup, spec in standing.services.items():
        if lookup not in wanted.services:
            deleted.append(ServiceChange("-", spec, None))
    layers += _layers(wanted, standing)
    return [change for part in parts for change in part]


def _same(a: ServiceSpec, b: ServiceSpec) -> bool:
    return replace(a, key=b.key, flags=a.flags | SVC_F_HASHED) == replace(b, flags=b.flags | SVC_F_HASHED)


def _settings(wanted: Wanted, standing: Standing) -> Iterator[Change]:
    for name in sorted(standing.sysctls.keys() | wanted.sysctls.keys()):
        default = standing.defaults.get(name, "")
        old, new = standing.sysctls.get(name, default), wanted.sysctls.get(name, default)
        if old != new and not (name in _AUTOMATIC and {old, new} == {"1", "2"}):
            yield SysctlChange("~", name, old, new)
    if wanted.timeouts != standing.timeouts:
        yield TimeoutsChange("~", standing.timeouts, wanted.timeouts)


def _servers(wanted: Wanted, standing: Standing, lookup: Lookup, key: ServiceKey) -> Iterator[Change]:
    there, asked = standing.servers.get(lookup, {}), wanted.servers[lookup]
    for server, spec in asked.items():
        drain = standing.drains.get((lookup, server))
        ends = drain is not None and drain.entry is not None and drain.entry != spec
        old = there.get(server)
        if old is None:
            if drain is None or not drain.done or ends:
                yield ServerChange("+", key, None, spec, ends)
        elif old != spec or ends:
            yield ServerChange("~", key, old, spec, ends)
    for server, spec in there.items():
        if server not in asked:
            yield ServerChange("-", key, spec, None)


def _layers(wanted: Wanted, standing: Standing) -> Iterator[Change]:
    for (lookup, server), key in standing.checked.items():
        if (lookup, server) not in wanted.checked:
            yield LayerChange("-", key, server, "health")
    for lookup, (key, spec) in standing.fallbacks.items():
        if wanted.fallbacks.get(lookup) != spec:
            yield LayerChange("-", key, id_of(spec), "fallback")
    for (lookup, server), drain in standing.drains.items():
        if drain.done and server not in wanted.servers.get(lookup, {}) and lookup in standing.services:
            yield LayerChange("-", standing.services[lookup].key, server, "drain")
