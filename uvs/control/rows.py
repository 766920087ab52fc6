"""Servers and what lies over them as JSON: in the saved table, and between a monitor and its director.

Light to import. A row that is not what it should be is a DamagedError.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from socket import AF_INET, AF_INET6
from typing import Any

from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.spec import DestSpec, ServiceKey
from uvs.layers import Drain, Health, Layer, Row, ServerId
from uvs.layers import text as server_text

PROTOCOLS = {"tcp": IPPROTO_TCP, "udp": IPPROTO_UDP, "sctp": IPPROTO_SCTP}
NAMES = {number: name for name, number in PROTOCOLS.items()}
U8, U16, U32 = 0xFF, 0xFFFF, 0xFFFFFFFF
WEIGHT_MAX = 0x7FFFFFFF
ABOUT_MAX = 48_000  # bytes of JSON: an attribute has 64 KiB
_OPTIONAL = ("u_threshold", "l_threshold", "tun_type", "tun_port", "tun_flags")  # of a destination


class DamagedError(ValueError):
    """Something is not what was written, or does not fit; the text says why."""


# ---------------------------------------------------------------- members


def member(row: Any, name: str, kind: type) -> Any:
    """A member of an object. DamagedError."""
    if not isinstance(row, dict) or type(row.get(name)) is not kind:
        raise DamagedError(f"{name} is missing or no {kind.__name__}")
    return row[name]


def number(row: Any, name: str, high: int) -> int:
    """A member that is 0..`high`. DamagedError."""
    value: int = member(row, name, int)
    if not 0 <= value <= high:
        raise DamagedError(f"{name} is out of range: {value}")
    return value


def address(row: Any) -> tuple[int, bytes]:
    """The members `family` and `address`. DamagedError."""
    af = number(row, "family", AF_INET6)
    if af not in (AF_INET, AF_INET6):
        raise DamagedError(f"family is neither {AF_INET} nor {AF_INET6}")
    text = member(row, "address", str)
    try:
        return af, socket.inet_pton(af, text)
    except (OSError, ValueError):
        raise DamagedError(f"no address of its family: {text!r}") from None


# ---------------------------------------------------------------- names


def service_text(key: ServiceKey) -> str:
    """What names a service: `tcp:192.0.2.100:80`, `fwmark:1`, `fwmark:1/ipv6`."""
    if key.fwmark:
        return f"fwmark:{key.fwmark}" + ("/ipv6" if key.af == AF_INET6 else "")
    return f"{NAMES.get(key.protocol, key.protocol)}:{server_text((key.af, key.addr, key.port))}"


def service_key(text: object) -> ServiceKey:
    """The service of such a name. DamagedError."""
    kind, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
    if kind == "fwmark":
        mark, _, family = rest.partition("/")
        if _digits(mark) and 0 < int(mark) <= U32 and family in ("", "ipv4", "ipv6"):
            six = family == "ipv6"
            return ServiceKey(
                AF_INET6 if six else AF_INET, IPPROTO_TCP, bytes(16 if six else 4), 0, int(mark)
            )
    elif kind in PROTOCOLS or (_digits(kind) and int(kind) <= U16):
        return ServiceKey(
            *_with_protocol(PROTOCOLS[kind] if kind in PROTOCOLS else int(kind), server_id(rest))
        )
    raise DamagedError(f"no service: {text!r:.80}; they are named like tcp:192.0.2.100:80 or fwmark:1")


def _with_protocol(protocol: int, server: ServerId) -> tuple[int, int, bytes, int]:
    af, addr, port = server
    return af, protocol, addr, port


def server_id(text: object) -> ServerId:
    """A server, or a service without its protocol: `198.51.100.11:80`, `[2001:db8::1]:80`. DamagedError."""
    host, colon, port = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    six = host.startswith("[") and host.endswith("]")
    af = AF_INET6 if six else AF_INET
    try:
        packed = socket.inet_pton(af, host[1:-1] if six else host)
    except (OSError, ValueError):
        packed = b""
    if not packed or not colon or not _digits(port) or int(port) > U16:
        raise DamagedError(f"no address and port: {text!r:.80}")
    return af, packed, int(port)


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 10


# ---------------------------------------------------------------- destinations


def dest_row(spec: DestSpec) -> dict[str, Any]:
    """A destination as it is configured."""
    row = {
        "family": spec.af,
        "address": socket.inet_ntop(spec.af, spec.addr),
        "port": spec.port,
        "method": spec.fwd,
        "weight": spec.weight,
    }
    return row | {name: value for name in _OPTIONAL if (value := getattr(spec, name))}


def read_dest(row: Any) -> DestSpec:
    """The same back. DamagedError."""
    af, addr = address(row)
    spec = DestSpec(
        af, addr, number(row, "port", U16), number(row, "method", 7), number(row, "weight", WEIGHT_MAX)
    )
    for name, high in zip(_OPTIONAL, (U32, U32, U8, U16, U16), strict=True):
        if name in row:
            setattr(spec, name, number(row, name, high))
    return spec


# ---------------------------------------------------------------- layers


def health_row(health: Health) -> dict[str, Any]:
    """What checks say; members that say nothing are left out, but `up`."""
    row: dict[str, Any] = {"up": health.up}
    if health.weight is not None:
        row["weight"] = health.weight
    if health.share != 1:
        row["share"] = health.share
    if health.remove:
        row["remove"] = True
    if health.about:
        row["about"] = dict(health.about)
    return row


def read_health(row: Any) -> Health:
    """The same back. DamagedError."""
    share = row.get("share", 1.0) if isinstance(row, dict) else None
    if type(share) not in (int, float) or not 0 <= share <= 1:  # type: ignore[operator]
        raise DamagedError(f"share is not 0..1: {share!r:.40}")
    about = row.get("about", {})
    if not isinstance(about, dict):
        raise DamagedError("about is no object")
    return Health(
        member(row, "up", bool),
        number(row, "weight", WEIGHT_MAX) if row.get("weight") is not None else None,
        float(share),  # type: ignore[arg-type]
        member(row, "remove", bool) if "remove" in row else False,
        about,
    )


def drain_row(drain: Drain) -> dict[str, Any]:
    """A drain; seconds since the epoch."""
    row: dict[str, Any] = {"since": drain.since, "deadline": drain.deadline, "done": drain.done}
    return row | ({"entry": dest_row(drain.entry)} if drain.entry else {})


def read_drain(row: Any) -> Drain:
    """The same back. DamagedError."""
    deadline = row.get("deadline") if isinstance(row, dict) else None
    return Drain(
        _time(member(row, "since", type(row.get("since"))) if isinstance(row, dict) else None),
        None if deadline is None else _time(deadline),
        read_dest(row["entry"]) if "entry" in row else None,
        member(row, "done", bool),
    )


def _time(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value < 1e12:
        raise DamagedError(f"no time: {value!r:.40}")
    return float(value)


def layer_row(layer: Layer) -> dict[str, Any] | None:
    """All that lies over a server; None: nothing."""
    row: dict[str, Any] = {}
    if layer.health is not None:
        row["health"] = health_row(layer.health)
    if layer.drain is not None:
        row["drain"] = drain_row(layer.drain)
    if layer.held is not None:
        row["held"] = dest_row(layer.held)
    return row or None


def read_layer(row: Any) -> Layer:
    """The same back. DamagedError."""
    if row is None:
        return Layer()
    if not isinstance(row, dict):
        raise DamagedError("a layer is no object")
    return Layer(
        read_health(row["health"]) if "health" in row else None,
        read_drain(row["drain"]) if "drain" in row else None,
        read_dest(row["held"]) if "held" in row else None,
    )


def listed(row: Row) -> dict[str, Any]:
    """A server as GET_HEALTH lists it; described in docs/reference/control-protocol.md."""
    health, drain = row.layer.health, row.layer.drain
    active, inactive, templates = row.left
    return {
        "service": service_text(row.service),
        "server": server_text(row.server),
        "configured": row.configured,
        "effective": row.effective,
        "present": row.present,
        "fallback": row.fallback,
        "up": None if health is None else health.up,
        "weight": None if health is None else health.weight,
        "share": 1.0 if health is None else health.share,
        "connections": {"active": active, "inactive": inactive, "templates": templates},
        "drain": None
        if drain is None
        else {"since": drain.since, "deadline": drain.deadline, "done": drain.done},
        "about": _about(health.about) if health else {},
    }


def _about(about: Mapping[str, object]) -> dict[str, object]:
    if len(json.dumps(dict(about))) <= ABOUT_MAX:
        return dict(about)
    return {name: value for name, value in about.items() if isinstance(value, str | int | float)}
