"""What lies over the configured weights: what checks say of servers, drains, fallback servers.

The configured weight is what the configuration, `uvsadm` or keepalived said last; the table's
(`DestRecord.weight`) is what follows from it and these layers. They are kept as they are when whoever sets
them goes away, and saved with the table. Light to import: a monitor in a process of its own needs `Health`.
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

from uvs.ipvs.allowed import check_dest
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey

if TYPE_CHECKING:
    from uvs.ipvs.services import Dest, Service, Services

log = logging.getLogger("uvs")

Lookup = tuple[int, int, bytes, int, int]  # ServiceKey.lookup
ServerId = tuple[int, bytes, int]  # family, packed address, port in host order


@dataclass(frozen=True, slots=True)
class Health:
    """What checks say of a server; a layer over its configured weight."""

    up: bool = True
    weight: int | None = None  # instead of the configured one (a command's dynamic weight)
    share: float = 1.0  # slow start: so much of the weight, at least 1
    remove: bool = False  # when down: out of the table (its connections go by the trash); else weight 0
    about: Mapping[str, object] = field(default_factory=dict)  # JSON, kept and shown only

    @property
    def away(self) -> bool:
        """Is the server to be out of the table?"""
        return self.remove and not self.up


@dataclass(frozen=True, slots=True)
class Drain:
    """A server is being taken out gently. Times are seconds since the epoch, so that they outlive a boot."""

    since: float
    deadline: float | None = None
    entry: DestSpec | None = None  # what the configuration said of the server then
    done: bool = False  # the server is gone; kept as long as the configuration goes on naming it


@dataclass(frozen=True, slots=True)
class Layer:
    """All that lies over one server. `held`: as configured, while it is out of the table."""

    health: Health | None = None
    drain: Drain | None = None
    held: DestSpec | None = None


class Row(NamedTuple):
    """A server as it is listed."""

    service: ServiceKey
    server: ServerId
    configured: int
    effective: int
    layer: Layer
    fallback: bool  # is it the service's fallback server?
    present: bool  # is it in the table?
    left: tuple[int, int, int]  # connections: active, inactive, templates


NOTHING = Layer()
Observer = Callable[[ServiceKey, ServerId | None], None]


class Layers:
    """The only one that puts weights over the configured ones of a director.

    `observers` are told the service and the server of a layer that has changed, None for the fallback
    server. `commit` is called when the table may have changed by it. Control requests end with `settle`.
    """

    def __init__(self, services: Services, wall: Callable[[], float] = time.time) -> None:
        self.services = services
        self.wall = wall
        self.observers: list[Observer] = []
        self.commit: Callable[[], None] = lambda: None
        self.entries: Mapping[tuple[Lookup, ServerId], DestSpec] = {}  # what the configuration names
        self._layers: dict[Lookup, dict[ServerId, Layer]] = {}
        self._keys: dict[Lookup, ServiceKey] = {}
        self._fallbacks: dict[Lookup, DestSpec] = {}
        self._draining: set[tuple[Lookup, ServerId]] = set()
        self._unsettled: set[Lookup] = set()  # services that others have changed
        self._ours = self._ruling = False  # the change under way: ours, the configuration's
        services.weigh = self.effective
        services.observers.append(self._changed)

    # ---- what follows

    def effective(self, key: ServiceKey, spec: DestSpec) -> int:
        """The weight that a server has in the table. One that is configured as 0 stays at 0."""
        layer = self.of(key, id_of(spec))
        health = layer.health or Health()
        if layer.drain or not health.up or not spec.weight:
            return 0
        weight = spec.weight if health.weight is None else health.weight
        return max(1, round(weight * health.share)) if weight else 0

    def of(self, key: ServiceKey, server: ServerId) -> Layer:
        """What lies over a server."""
        return self._layers.get(key.lookup, {}).get(server, NOTHING)

    def fallback(self, key: ServiceKey) -> DestSpec | None:
        """The service's fallback server, if it is to be in the table."""
        return self._fallbacks.get(key.lookup)

    def configured(self, svc: Service) -> dict[ServerId, DestSpec]:
        """A service's servers as they are configured: those that are held back too, no fallback server."""
        found = {dest.id: dest.spec for dest in reversed(svc.dests)}
        for server, layer in self._layers.get(svc.key.lookup, {}).items():
            if layer.held is not None:
                found[server] = layer.held
        sorry = self._fallbacks.get(svc.key.lookup)
        if sorry is not None and found.get(id_of(sorry)) == sorry:
            del found[id_of(sorry)]
        return found

    # ---- health

    def set_health(self, service: ServiceKey, server: ServerId, health: Health | None) -> None:
        """What checks say of a server, in the table or not; None: it is not checked (any more)."""
        layer = self.of(service, server)
        if layer.health == health:
            return
        same = layer.health is not None and health is not None
        if same and replace(layer.health, about={}) == replace(health, about={}):  # type: ignore[type-var]
            self._layers[service.lookup][server] = replace(layer, health=health)  # nothing follows from it
            return
        self.put(service, server, replace(layer, health=health))
        self._follow(service, server)
        self.commit()

    def set_fallback(self, service: ServiceKey, dest: DestSpec | None) -> None:
        """The server of last resort: in the table exactly while it is set.

        IpvsError EEXIST: it is a server of the service; and what refuses a server.
        """
        old = self._fallbacks.get(service.lookup)
        if old == dest:
            return
        svc = self._service(service)
        if dest is not None:
            check_dest(service, dest)
            if svc is not None and id_of(dest) in self.configured(svc):
                raise IpvsError(errno.EEXIST, "the fallback server is a server of the service")
        if old is not None and svc is not None and (dest is None or id_of(old) != id_of(dest)):
            self._delete(svc, id_of(old))
        self._keys[service.lookup] = service
        self._fallbacks.pop(service.lookup, None)
        try:
            if dest is not None:
                self._fallbacks[service.lookup] = dest
                if svc is not None:
                    self._add_or_edit(svc, dest)
        except IpvsError:
            del self._fallbacks[service.lookup]
            raise
        finally:
            self._tell(service, None)
            self.commit()

    # ---- drains

    def drain(self, service: ServiceKey, server: ServerId, deadline: float | None = None) -> Drain:
        """Begin to take a server out, `deadline` seconds from now at the latest; once more: another deadline.

        IpvsError: ESRCH no such service, ENOENT no such server, EBUSY it is the fallback server.
        """
        svc = self.services.get(service)
        layer = self.of(service, server)
        sorry = self.fallback(service)
        if sorry is not None and id_of(sorry) == server:
            raise IpvsError(errno.EBUSY, "it is the fallback server, which goes when the quorum is back")
        if svc.dest(*server) is None and layer.held is None:
            raise IpvsError(errno.ENOENT, "no such server")
        now = self.wall()
        entry = self.entries.get((service.lookup, server))
        drain = Drain(
            layer.drain.since if layer.drain else now, None if deadline is None else now + deadline, entry
        )
        self.put(svc.key, server, replace(layer, drain=drain))
        self._follow(service, server)
        self.commit()
        return drain

    def cancel(self, service: ServiceKey, server: ServerId, why: str = "it was cancelled") -> None:
        """End a drain: the configured weight counts again, and a server that is gone already comes back.

        IpvsError ENOENT: it is not being drained.
        """
        layer = self.of(service, server)
        if layer.drain is None:
            raise IpvsError(errno.ENOENT, "it is not being drained")
        entry = layer.held or layer.drain.entry
        held = entry if layer.drain.done else layer.held
        self.put(service, server, replace(layer, drain=None, held=held))
        log.info("drain of %s: ended, %s", text(server), why)
        self._follow(service, server)
        self.commit()

    def draining(self) -> Iterator[tuple[ServiceKey, ServerId, Drain]]:
        """The drains that there are, those that are done too."""
        for lookup, server in sorted(self._draining):
            if drain := self._layers[lookup][server].drain:
                yield self._keys[lookup], server, drain

    def forget_drain(self, service: ServiceKey, server: ServerId) -> None:
        """A drain is over; a server that is gone by it does not come back by this."""
        layer = self.of(service, server)
        if layer.drain is not None:
            self.put(service, server, replace(layer, drain=None))

    def left(self, service: ServiceKey, server: ServerId) -> tuple[int, int, int]:
        """Connections that a server has: active, inactive, persistence templates."""
        svc = self._service(service)
        dest = svc.dest(*server) if svc else None
        return (dest.rec.activeconns, dest.rec.inactconns, dest.rec.persistconns) if dest else (0, 0, 0)

    def second(self) -> None:
        """Once a second: remove servers whose drain has come to its end; try again what was refused."""
        self.settle()
        for service, server, drain in list(self.draining()):
            if drain.done:
                continue
            *conns, templates = self.left(service, server)
            if self.services.sysctl.expire_quiescent_template:
                templates = 0  # they do not steer to a server of weight 0
            late = drain.deadline is not None and self.wall() >= drain.deadline
            if late or not any((*conns, templates)):
                self._end(service, server, drain, late)

    def _end(self, service: ServiceKey, server: ServerId, drain: Drain, late: bool) -> None:
        svc = self._service(service)
        active, inactive, templates = self.left(service, server)
        told = f"{active} active and {inactive} inactive connections, {templates} templates were left"
        layer = self.of(service, server)
        done = None if drain.entry is None else replace(drain, done=True)
        self.put(service, server, replace(layer, drain=done, held=None))
        if svc is not None:
            self._delete(svc, server)
        log.info("drain of %s: the server is removed%s", text(server), f", late: {told}" if late else "")
        self.commit()

    # ---- following the table

    def settle(self) -> None:
        """After changes by others: what layers keep out of the table, or in it, is so again."""
        unsettled, self._unsettled = self._unsettled, set()
        for lookup in unsettled:
            if (svc := self._service(self._keys.get(lookup))) is None:
                continue
            sorry = self._fallbacks.get(lookup)
            if sorry is not None and id_of(sorry) not in svc.by_id:
                self._try(self._add_or_edit, svc, sorry)
            for server in list(self._layers.get(lookup, {})):
                self._follow(svc.key, server)

    def _changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        """An observer of the services: what others do to them."""
        lookup = svc.key.lookup
        if self._ours or lookup not in self._keys:
            return
        self._unsettled.add(lookup)
        if event == "del_service":
            for server, layer in list(self._layers.get(lookup, {}).items()):
                self.put(svc.key, server, Layer(layer.health))
        elif dest is not None and (layer := self.of(svc.key, dest.id)) is not NOTHING:
            if event == "del_dest":
                self.put(svc.key, dest.id, Layer(layer.health))
            elif self._ruling:
                return
            elif event == "add_dest" or (event == "edit_dest" and layer.drain and dest.spec.weight):
                if layer.drain:
                    log.info(
                        "drain of %s: ended, it was given the weight %d", text(dest.id), dest.spec.weight
                    )
                self.put(svc.key, dest.id, Layer(layer.health))
                self.services.reweigh(dest)

    def _follow(self, service: ServiceKey, server: ServerId) -> None:
        """The table follows a server's layer."""
        if (svc := self._service(service)) is None:
            return
        layer, dest = self.of(service, server), svc.dest(*server)
        away = layer.health is not None and layer.health.away
        if dest is not None and away:
            self.put(service, server, replace(layer, held=dest.spec))
            self._delete(svc, server)
        elif dest is not None:
            self.services.reweigh(dest)
        elif layer.held is not None and not away:
            self._try(self._add_or_edit, svc, layer.held)

    def _try(self, change: Callable[[Service, DestSpec], None], svc: Service, spec: DestSpec) -> None:
        """A server that the table has no room for is tried again."""
        try:
            change(svc, spec)
        except IpvsError as error:
            if svc.key.lookup not in self._unsettled:
                log.error("%s is not in the table as it should be: %s", text(id_of(spec)), error.strerror)
            self._unsettled.add(svc.key.lookup)

    def _add_or_edit(self, svc: Service, spec: DestSpec) -> None:
        with _Ours(self):
            if id_of(spec) in svc.by_id:
                self.services.edit_dest(svc.key, spec)
            else:
                self.services.add_dest(svc.key, spec)
        layer = self.of(svc.key, id_of(spec))
        if layer.held is not None:
            self.put(svc.key, id_of(spec), replace(layer, held=None))

    def _delete(self, svc: Service, server: ServerId) -> None:
        if server in svc.by_id:
            with _Ours(self):
                self.services.del_dest(svc.key, *server)

    def hold(self, service: ServiceKey, server: ServerId, spec: DestSpec | None) -> None:
        """What is configured of a server that is held back; None: nothing, it does not come back."""
        self.put(service, server, replace(self.of(service, server), held=spec))

    def adopt(self, entries: Mapping[tuple[Lookup, ServerId], DestSpec]) -> None:
        """A configuration rules that names these servers; also those whose drain began without it."""
        self.entries = entries
        for service, server, drain in list(self.draining()):
            entry = entries.get((service.lookup, server))
            if drain.entry is None and entry is not None:
                layer = self.of(service, server)
                self.put(service, server, replace(layer, drain=replace(drain, entry=entry)))

    @contextmanager
    def ruling(self) -> Iterator[None]:
        """While it lasts, servers are changed because the configuration says so: that ends no drain."""
        self._ruling = True
        try:
            yield
        finally:
            self._ruling = False

    def _service(self, key: ServiceKey | None) -> Service | None:
        try:
            return None if key is None else self.services.get(key)
        except IpvsError:
            return None

    # ---- listed and kept

    def rows(self) -> Iterator[Row]:
        """Every server: of the table, held back, drained away."""
        for svc in self.services:
            sorry = self._fallbacks.get(svc.key.lookup)
            shown = {dest.id: dest.spec for dest in reversed(svc.dests)}
            for server, layer in self._layers.get(svc.key.lookup, {}).items():
                spec = layer.held or (layer.drain and layer.drain.done and layer.drain.entry)
                if spec and server not in shown:
                    shown[server] = spec
            for server, spec in shown.items():
                dest = svc.by_id.get(server)
                yield Row(
                    svc.key,
                    server,
                    spec.weight,
                    dest.weight if dest else 0,
                    self.of(svc.key, server),
                    sorry is not None and id_of(sorry) == server,
                    dest is not None,
                    self.left(svc.key, server),
                )

    def put(self, service: ServiceKey, server: ServerId, layer: Layer) -> None:
        """What lies over a server is this now; the table does not follow."""
        lookup = service.lookup
        self._keys[lookup] = service
        servers = self._layers.setdefault(lookup, {})
        if layer == NOTHING:
            servers.pop(server, None)
        else:
            servers[server] = layer
        (self._draining.add if layer.drain else self._draining.discard)((lookup, server))
        self._tell(service, server)

    def _tell(self, service: ServiceKey, server: ServerId | None) -> None:
        for observer in self.observers:
            observer(service, server)

    def down(self) -> int:
        """How many servers checks have found down."""
        return sum(bool(layer.health and not layer.health.up) for _, _, layer in self.every())

    def every(self) -> Iterator[tuple[ServiceKey, ServerId, Layer]]:
        """All layers of servers."""
        for lookup, servers in self._layers.items():
            for server, layer in servers.items():
                yield self._keys[lookup], server, layer

    def fallbacks(self) -> Iterator[tuple[ServiceKey, DestSpec]]:
        """All fallback servers that are set."""
        for lookup, spec in self._fallbacks.items():
            yield self._keys[lookup], spec

    def restore(
        self,
        layers: Mapping[tuple[ServiceKey, ServerId], Layer],
        fallbacks: Mapping[ServiceKey, DestSpec],
        attach: Callable[[], None],
    ) -> None:
        """Put back what was saved, then the table by `attach`: no server comes to life in between."""
        for (service, server), layer in layers.items():
            self.put(service, server, layer)
        for service, spec in fallbacks.items():
            self._keys[service.lookup] = service
            self._fallbacks[service.lookup] = spec
        with _Ours(self):
            attach()
        self._unsettled.update(self._keys)


class _Ours:
    """While it lasts, changes of the table are the layers' own."""

    def __init__(self, layers: Layers) -> None:
        self._layers = layers

    def __enter__(self) -> None:
        self._layers._ours = True

    def __exit__(self, *exc: object) -> None:
        self._layers._ours = False


def id_of(spec: DestSpec) -> ServerId:
    """What names a server within its service."""
    return spec.af, spec.addr, spec.port


def text(server: ServerId) -> str:
    """A server for people: `198.51.100.11:80`, `[2001:db8::1]:80`."""
    af, addr, port = server
    host = socket.inet_ntop(af, addr)
    return f"[{host}]:{port}" if af == socket.AF_INET6 else f"{host}:{port}"
