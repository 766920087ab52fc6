"""Changes of a director's table, all or none of them: what was done is undone when one is refused."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from uvs.config.converge import (
    Change,
    LayerChange,
    ServerChange,
    ServiceChange,
    Standing,
    SysctlChange,
    TimeoutsChange,
)
from uvs.control.ipvs_family import set_timeouts, timeouts
from uvs.ipvs.allowed import check_dest, check_service
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import IpvsError
from uvs.layers import Layers, text

Undo = Callable[[], object]


def standing(ipvs: NetnsIpvs, layers: Layers) -> Standing:
    """A director's table as it stands."""
    sysctl = ipvs.sysctl
    found = Standing(sysctls=sysctl.changed(), defaults=sysctl.default_texts(), timeouts=timeouts(ipvs.table))
    for svc in ipvs.services:
        found.services[svc.key.lookup] = svc.spec
        found.servers[svc.key.lookup] = layers.configured(svc)
    for key, server, layer in layers.every():
        if layer.health is not None:
            found.checked[key.lookup, server] = key
        if layer.drain is not None:
            found.drains[key.lookup, server] = layer.drain
    found.fallbacks = {key.lookup: (key, spec) for key, spec in layers.fallbacks()}
    return found


def apply(ipvs: NetnsIpvs, layers: Layers, changes: list[Change]) -> None:
    """Make the changes. IpvsError, with a text that says of what: refused, and nothing is changed."""
    for change in changes:
        _check(ipvs, change)
    undo: list[Undo] = []
    with layers.ruling():
        try:
            for change in changes:
                try:
                    _make(ipvs, layers, change, undo)
                except OSError as error:
                    raise IpvsError(error.errno, f"{_name(change)}: {error.strerror}") from None
        except BaseException:
            for back in reversed(undo):
                back()
            raise
    layers.settle()


def _check(ipvs: NetnsIpvs, change: Change) -> None:
    """What is refused whatever the table holds."""
    try:
        if isinstance(change, ServiceChange) and change.new is not None:
            check_service(change.new)
        elif isinstance(change, ServerChange) and change.new is not None:
            check_dest(change.key, change.new)
            if change.old is None and not ipvs.services.routes.is_unicast(change.new.af, change.new.addr):
                raise IpvsError(errno.EINVAL, "not a unicast address")
    except IpvsError as error:
        raise IpvsError(error.errno, f"{_name(change)}: {error.strerror}") from None


def _name(change: Change) -> str:
    if isinstance(change, SysctlChange):
        return f"sysctl {change.name}"
    if isinstance(change, ServiceChange):
        key = change.key
        return f"service {key.fwmark or text((key.af, key.addr, key.port))}"
    return f"server {text(change.server)}" if isinstance(change, ServerChange | LayerChange) else "time-outs"


def _make(ipvs: NetnsIpvs, layers: Layers, change: Change, undo: list[Undo]) -> None:
    match change:
        case SysctlChange():
            undo.append(partial(ipvs.sysctl.set, change.name, change.old))
            ipvs.sysctl.set(change.name, change.new)
        case TimeoutsChange():
            undo.append(partial(set_timeouts, ipvs.table, *change.old))
            set_timeouts(ipvs.table, *change.new)
        case ServiceChange():
            _service(ipvs, layers, change, undo)
        case ServerChange():
            _server(ipvs, layers, change, undo)
        case LayerChange():
            _layer(layers, change, undo)


def _service(ipvs: NetnsIpvs, layers: Layers, change: ServiceChange, undo: list[Undo]) -> None:
    services, key = ipvs.services, change.key
    if change.new is None:
        services.del_service(key)  # the last changes, which nothing can refuse
    elif change.old is None:
        services.add_service(change.new)
        undo.append(partial(services.del_service, key))
    else:
        undo.append(partial(services.edit_service, change.old))
        services.edit_service(change.new)


def _server(ipvs: NetnsIpvs, layers: Layers, change: ServerChange, undo: list[Undo]) -> None:
    services, key, server = ipvs.services, change.key, change.server
    layer = layers.of(key, server)
    if change.drain:
        undo.append(partial(layers.put, key, server, layer))
        layers.forget_drain(key, server)
    held = layer.held is not None
    if change.new is None:
        if held:
            layers.hold(key, server, None)
        else:
            services.del_dest(key, *server)
    elif held:
        undo.append(partial(layers.hold, key, server, layer.held))
        layers.hold(key, server, change.new)
    elif change.old is None:
        sorry = layers.fallback(key)
        if sorry is not None and (sorry.af, sorry.addr, sorry.port) == server:
            undo.append(partial(layers.set_fallback, key, sorry))
            layers.set_fallback(key, None)
        services.add_dest(key, change.new)
        undo.append(partial(services.del_dest, key, *server))
    else:
        undo.append(partial(services.edit_dest, key, change.old))
        services.edit_dest(key, change.new)


def _layer(layers: Layers, change: LayerChange, undo: list[Undo]) -> None:
    key, server = change.key, change.server
    before = layers.of(key, server)
    if change.what == "fallback":
        undo.append(partial(layers.set_fallback, key, layers.fallback(key)))
        layers.set_fallback(key, None)
    elif change.what == "health":
        undo.append(partial(layers.set_health, key, server, before.health))
        layers.set_health(key, server, None)
    else:
        undo.append(partial(layers.put, key, server, before))
        layers.forget_drain(key, server)
