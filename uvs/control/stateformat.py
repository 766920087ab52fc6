"""The saved table as text: lines, each with a checksum of its own, so that a damaged one costs no other.

A line is eight hexadecimal digits (CRC-32 of the rest), a blank, and JSON. The first of a table says which
journal continues it and in which boot it was written; every other line, in the table and in a journal alike,
is a change: a table is the journal that makes it. Sans-io.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

from uvs.control.ipvs_family import TIMEOUT_MAX, timeouts
from uvs.engine.core import AF_INET, AF_INET6
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

VERSION = 1


class DamagedError(ValueError):
    """A line is not what was written, or does not fit; the text says why."""


class VersionError(ValueError):
    """A table of another version of uvs."""

    def __init__(self, version: int) -> None:
        super().__init__(f"written by another version of uvs (its format is {version}, this one's {VERSION})")
        self.version = version


@dataclass(slots=True)
class Saved:
    """What is saved. Destinations in list order, newest first."""

    services: list[tuple[ServiceSpec, list[DestSpec]]] = field(default_factory=list)
    timeouts: tuple[int, int, int] = (0, 0, 0)  # seconds; 0 leaves the default
    sysctls: dict[str, str] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Services and destinations."""
        return sum(1 + len(dests) for _, dests in self.services)


@dataclass(frozen=True, slots=True)
class Header:
    """A table's first line. `lines`: how many there are with it; `boot`: the kernel's boot id.

    `journal`: number of the first that continues it; 0: none does.
    """

    journal: int
    boot: str
    lines: int = 0


# ---------------------------------------------------------------- writing

_encode = json.JSONEncoder(separators=(",", ":")).encode


def line(row: Any) -> bytes:
    """A line with its checksum and its end."""
    text = _encode(row).encode()
    return b"%08x %s\n" % (crc32(text), text)


def header(head: Header) -> bytes:
    """A table's first line."""
    return line({"uvs": VERSION, "journal": head.journal, "boot": head.boot, "lines": head.lines})


def settings(ipvs: NetnsIpvs) -> bytes:
    """Time-outs and sysctls: all of them, at each change."""
    return _settings(timeouts(ipvs.table), ipvs.sysctl.changed())


def change(event: str, svc: Service, dest: Dest | None) -> bytes:
    """A change as the services' observers are told it."""
    return _change(event, svc.spec, None if dest is None else dest.spec)


def capture(ipvs: NetnsIpvs) -> Saved:
    """A director's table at this moment: specs are replaced, never changed, so that this is quick."""
    services = [(svc.spec, [dest.spec for dest in svc.dests]) for svc in ipvs.services]
    return Saved(services, timeouts(ipvs.table), ipvs.sysctl.changed())


def lines(saved: Saved, journal: int, boot: str) -> Iterator[bytes]:
    """A table, line by line; `journal` and `boot` as in its Header."""
    yield header(Header(journal, boot, 2 + saved.size))
    yield _settings(saved.timeouts, saved.sysctls)
    for spec, dests in saved.services:
        yield _change("add_service", spec, None)
        for dest in reversed(dests):
            yield _change("add_dest", spec, dest)


def _settings(times: tuple[int, int, int], sysctls: dict[str, str]) -> bytes:
    return line({"timeouts": times, "sysctls": sysctls})


def _change(event: str, spec: ServiceSpec, dest: DestSpec | None) -> bytes:
    key = _lookup(spec.key)
    if dest is not None:
        return line([event, key, _dest(dest)])
    return line([event, key] if event == "del_service" else [event, key, _service(spec)])


_Lookup = tuple[int, int, str, int, int]


def _lookup(key: ServiceKey) -> _Lookup:
    af, protocol, addr, port, fwmark = key.lookup
    return af, protocol, addr.hex(), port, fwmark


def _service(spec: ServiceSpec) -> dict[str, Any]:
    key = spec.key
    return {
        "family": key.af,
        "protocol": key.protocol,
        "address": socket.inet_ntop(key.af, key.addr or bytes(4 if key.af == AF_INET else 16)),
        "port": key.port,
        "fwmark": key.fwmark,
        "scheduler": spec.sched_name,
        "flags": spec.flags,
        "timeout": spec.timeout,
        "netmask": spec.netmask,
        "pe": spec.pe_name,
    }


_OPTIONAL = ("u_threshold", "l_threshold", "tun_type", "tun_port", "tun_flags")  # of a destination


def _dest(spec: DestSpec) -> dict[str, Any]:
    row = {
        "family": spec.af,
        "address": socket.inet_ntop(spec.af, spec.addr),
        "port": spec.port,
        "method": spec.fwd,
        "weight": spec.weight,
    }
    return row | {name: value for name in _OPTIONAL if (value := getattr(spec, name))}


# ---------------------------------------------------------------- reading


def read_line(text: bytes) -> Any:
    """The JSON of a line without its end. DamagedError."""
    digits, blank, rest = text[:8], text[8:9], text[9:]
    if blank != b" " or digits != b"%08x" % crc32(rest):
        raise DamagedError("the checksum does not fit" if text else "it is empty")
    try:
        return json.loads(rest)
    except (ValueError, RecursionError) as e:
        raise DamagedError(f"no JSON: {e}") from None


def read_header(text: bytes) -> Header:
    """A table's first line. DamagedError, VersionError."""
    row = read_line(text)
    version = _number(row, "uvs", 1 << 62)
    if version != VERSION:
        raise VersionError(version)
    high = 1 << 62
    return Header(_number(row, "journal", high), _member(row, "boot", str), _number(row, "lines", high))


class Replay:
    """Does again what lines tell; one that does not fit changes nothing."""

    def __init__(self) -> None:
        self._services: dict[_Lookup, tuple[ServiceSpec, dict[tuple[int, bytes, int], DestSpec]]] = {}
        self._timeouts = (0, 0, 0)
        self._sysctls: dict[str, str] = {}

    @property
    def saved(self) -> Saved:
        """What has come of it."""
        services = [(spec, list(reversed(dests.values()))) for spec, dests in self._services.values()]
        return Saved(services, self._timeouts, self._sysctls)

    def redo(self, row: Any) -> None:
        """One line. DamagedError."""
        if isinstance(row, dict):
            self._timeouts, self._sysctls = _read_settings(row)
            return
        try:
            self._redo(*row)
        except (TypeError, KeyError, ValueError) as e:
            if isinstance(e, DamagedError):
                raise
            raise DamagedError(f"it does not fit what stands before it: {_encode(row)[:80]}") from None

    def _redo(self, event: str, key: list[Any], row: Any = None) -> None:
        lookup: _Lookup = tuple(key)
        services = self._services
        match event:
            case "add_service" | "edit_service":
                spec = _read_service(row)
                if _lookup(spec.key) != lookup:
                    raise ValueError(key)
                services[lookup] = spec, {} if event == "add_service" else services[lookup][1]
            case "del_service":
                del services[lookup]
            case "add_dest" | "edit_dest" | "del_dest":
                dest = _read_dest(row)
                name = dest.af, dest.addr, dest.port
                dests = services[lookup][1]
                if (name in dests) == (event == "add_dest"):
                    raise ValueError(name)
                if event == "del_dest":
                    del dests[name]
                else:
                    dests[name] = dest
            case _:
                raise DamagedError(f"no such change: {event!r:.40}")


def replay(texts: Iterable[bytes]) -> Saved:
    """The table that lines (after the first) tell of, without a fault in them. DamagedError."""
    again = Replay()
    for text in texts:
        again.redo(read_line(text))
    return again.saved


def _read_settings(row: Any) -> tuple[tuple[int, int, int], dict[str, str]]:
    times = _member(row, "timeouts", list)
    if len(times) != 3 or not all(type(n) is int and 0 <= n <= TIMEOUT_MAX for n in times):
        raise DamagedError("timeouts are not three numbers of seconds")
    sysctls = _member(row, "sysctls", dict)
    if not all(isinstance(value, str) for value in sysctls.values()):
        raise DamagedError("a sysctl is no text")
    return (times[0], times[1], times[2]), sysctls


def _member(row: Any, name: str, kind: type) -> Any:
    if not isinstance(row, dict) or type(row.get(name)) is not kind:
        raise DamagedError(f"{name} is missing or no {kind.__name__}")
    return row[name]


def _number(row: Any, name: str, high: int) -> int:
    value: int = _member(row, name, int)
    if not 0 <= value <= high:
        raise DamagedError(f"{name} is out of range: {value}")
    return value


def _address(row: Any) -> tuple[int, bytes]:
    af = _number(row, "family", AF_INET6)
    if af not in (AF_INET, AF_INET6):
        raise DamagedError(f"family is neither {AF_INET} nor {AF_INET6}")
    text = _member(row, "address", str)
    try:
        return af, socket.inet_pton(af, text)
    except (OSError, ValueError):
        raise DamagedError(f"no address of its family: {text!r}") from None


_U8, _U16, _U32 = 0xFF, 0xFFFF, 0xFFFFFFFF


def _read_service(row: Any) -> ServiceSpec:
    af, addr = _address(row)
    key = ServiceKey(
        af, _number(row, "protocol", _U16), addr, _number(row, "port", _U16), _number(row, "fwmark", _U32)
    )
    return ServiceSpec(
        key,
        _member(row, "scheduler", str),
        _number(row, "flags", _U32),
        _number(row, "timeout", _U32),
        _number(row, "netmask", _U32),
        _member(row, "pe", str),
    )


def _read_dest(row: Any) -> DestSpec:
    af, addr = _address(row)
    spec = DestSpec(
        af, addr, _number(row, "port", _U16), _number(row, "method", 7), _number(row, "weight", 0x7FFFFFFF)
    )
    for name, high in zip(_OPTIONAL, (_U32, _U32, _U8, _U16, _U16), strict=True):
        if name in row:
            setattr(spec, name, _number(row, name, high))
    return spec
