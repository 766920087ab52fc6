"""Changes for people: a sign, and the words of `uvsadm` or `uvs sysctl` that would make them."""

from __future__ import annotations

from typing import Any

from uvs.adm import save
from uvs.adm.names import Names
from uvs.config.converge import (
    Change,
    LayerChange,
    ServerChange,
    ServiceChange,
    SysctlChange,
    TimeoutsChange,
)
from uvs.config.specs import METHODS
from uvs.control.messages import NO_STATS, DestEntry
from uvs.control.rows import service_text
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.layers import text

_NAMES = Names(plain=True)
_METHODS = {number: name for name, number in METHODS.items()}
_SERVER = ("weight", "fwd", "u_threshold", "l_threshold", "tun_type", "tun_port", "tun_flags")
_SERVICE = ("sched_name", "flags", "timeout", "netmask", "pe_name")
_SHOWN = {"fwd": "method", "sched_name": "scheduler", "pe_name": "engine", "timeout": "persistent"}
_LAYERS = {
    "health": "it is not checked any more",
    "fallback": "it is the fallback server no longer",
    "drain": "it was drained, and is not named any more",
}


def row(change: Change) -> dict[str, Any]:
    """A change as `uvs diff --json` has it: `sign`, `line`, `was`, and what it is about."""
    match change:
        case SysctlChange():
            name = f"net.ipv4.vs.{change.name}"
            return _row(
                change, f"{name}={_blanks(change.new)}", f"it was {_blanks(change.old)}", sysctl=change.name
            )
        case TimeoutsChange():
            old, new = (" ".join(map(str, times)) for times in (change.old, change.new))
            return _row(change, f"--set {new}", f"it was {old}")
        case ServiceChange():
            return _service(change)
        case ServerChange():
            return _server(change)
        case LayerChange():
            about = _about(change.key, change)
            return _row(change, f"{about['service']} {about['server']}", _LAYERS[change.what], **about)
    raise TypeError(change)


def line(found: dict[str, Any]) -> str:
    """A row as a line."""
    return f"{found['sign']} {found['line']}" + (f"  # {found['was']}" if found["was"] else "")


def _row(change: Change, words: str, was: str = "", **about: str) -> dict[str, Any]:
    return {"sign": change.sign, "line": words, "was": was, **about}


def _about(key: ServiceKey, change: ServerChange | LayerChange) -> dict[str, str]:
    return {"service": service_text(key), "server": text(change.server)}


def _service(change: ServiceChange) -> dict[str, Any]:
    spec = change.new or change.old
    assert spec is not None
    words = next(save.lines(spec, [], _NAMES))
    if change.new is None:
        words = f"-D {words.removeprefix('-A ').partition(' -s ')[0]}"
    elif change.old is not None:
        words = f"-E {words.removeprefix('-A ')}"
    was = _differing(_SERVICE, change.old, change.new)
    return _row(change, words, was, service=service_text(change.key))


def _server(change: ServerChange) -> dict[str, Any]:
    spec = change.new or change.old
    assert spec is not None
    entry = DestEntry(spec, 0, 0, 0, NO_STATS)
    words = list(save.lines(ServiceSpec(change.key), [entry], _NAMES))[1]
    if change.new is None:
        service, _, rest = words.removeprefix("-a ").partition(" -r ")
        words = f"-d {service} -r {rest.split()[0]}"
    elif change.old is not None:
        words = f"-e {words.removeprefix('-a ')}"
    was = _differing(_SERVER, change.old, change.new)
    if change.drain:
        was = f"{was}, its drain ends" if was else "its drain ends"
    return _row(change, words, was, **_about(change.key, change))


def _differing(
    names: tuple[str, ...], old: ServiceSpec | DestSpec | None, new: ServiceSpec | DestSpec | None
) -> str:
    if old is None or new is None:
        return ""
    differing = [name for name in names if _shown(name, old) != _shown(name, new)]
    return ", ".join(f"{_SHOWN.get(name, name)} was {_shown(name, old)}" for name in differing)


def _shown(name: str, spec: ServiceSpec | DestSpec) -> str:
    value = getattr(spec, name)
    if name == "fwd":
        return _METHODS.get(value, str(value))
    if name == "flags":
        return hex(value & ~2)  # without SVC_F_HASHED
    return str(value) or "none"


def _blanks(value: str) -> str:
    return value.replace("\t", " ")
