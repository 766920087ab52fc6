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
from uvs.control.rows import (
    U16,
    U32,
    DamagedError,
    address,
    dest_row,
    layer_row,
    member,
    number,
    read_dest,
    read_layer,
    server_id,
)
from uvs.engine.core import AF_INET, AF_INET6
from uvs.ipvs.ipproto import IPPROTO_TCP
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.layers import Layer, Layers, ServerId
from uvs.layers import text as server_text

VERSION = 1


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
    layers: dict[tuple[ServiceKey, ServerId], Layer] = field(default_factory=dict)
    fallbacks: dict[ServiceKey, DestSpec] = field(default_factory=dict)

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


def layer(key: ServiceKey, server: ServerId, over: Layer) -> bytes:
    """What lies over a server now."""
    return line(["layer", _lookup(key), server_text(server), layer_row(over)])


def fallback(key: ServiceKey, spec: DestSpec | None) -> bytes:
    """A service's fallback server that is set, or None."""
    return line(["fallback", _lookup(key), None if spec is None else dest_row(spec)])


def capture(ipvs: NetnsIpvs, layers: Layers | None = None) -> Saved:
    """A director's table at this moment: specs are replaced, never changed, so that this is quick."""
    services = [(svc.spec, [dest.spec for dest in svc.dests]) for svc in ipvs.services]
    saved = Saved(services, timeouts(ipvs.table), ipvs.sysctl.changed())
    if layers is not None:
        saved.layers = {(key, server): over for key, server, over in layers.every()}
        saved.fallbacks = dict(layers.fallbacks())
    return saved


def lines(saved: Saved, journal: int, boot: str) -> Iterator[bytes]:
    """A table, line by line; `journal` and `boot` as in its Header."""
    yield header(Header(journal, boot, 2 + saved.size + len(saved.layers) + len(saved.fallbacks)))
    yield _settings(saved.timeouts, saved.sysctls)
    for (key, server), over in saved.layers.items():
        yield layer(key, server, over)
    for key, spec_ in saved.fallbacks.items():
        yield fallback(key, spec_)
    for spec, dests in saved.services:
        yield _change("add_service", spec, None)
        for dest in reversed(dests):
            yield _change("add_dest", spec, dest)


def _settings(times: tuple[int, int, int], sysctls: dict[str, str]) -> bytes:
    return line({"timeouts": times, "sysctls": sysctls})


def _change(event: str, spec: ServiceSpec, dest: DestSpec | None) -> bytes:
    key = _lookup(spec.key)
    if dest is not None:
        return line([event, key, dest_row(dest)])
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
    version = number(row, "uvs", 1 << 62)
    if version != VERSION:
        raise VersionError(version)
    high = 1 << 62
    return Header(number(row, "journal", high), member(row, "boot", str), number(row, "lines", high))


class Replay:
    """Does again what lines tell; one that does not fit changes nothing."""

    def __init__(self) -> None:
        self._services: dict[_Lookup, tuple[ServiceSpec, dict[tuple[int, bytes, int], DestSpec]]] = {}
        self._timeouts = (0, 0, 0)
        self._sysctls: dict[str, str] = {}
        self._layers: dict[tuple[ServiceKey, ServerId], Layer] = {}
        self._fallbacks: dict[ServiceKey, DestSpec] = {}

    @property
    def saved(self) -> Saved:
        """What has come of it."""
        services = [(spec, list(reversed(dests.values()))) for spec, dests in self._services.values()]
        return Saved(services, self._timeouts, self._sysctls, dict(self._layers), dict(self._fallbacks))

    def redo(self, row: Any) -> None:
        """One line. DamagedError."""
        if isinstance(row, dict):
            self._timeouts, self._sysctls = _read_settings(row)
            return
        try:
            if row[:1] in (["layer"], ["fallback"]):
                self._redo_layer(*row)
            else:
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
                dest = read_dest(row)
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

    def _redo_layer(self, event: str, lookup: list[Any], *rest: Any) -> None:
        key = _key(lookup)
        if event == "layer":
            server, row = rest
            self._layers.pop((key, server_id(server)), None)
            if row is not None:
                self._layers[key, server_id(server)] = read_layer(row)
        else:
            self._fallbacks.pop(key, None)
            if rest[0] is not None:
                self._fallbacks[key] = read_dest(rest[0])


def _key(lookup: list[Any]) -> ServiceKey:
    """The service of a KEY, which need not be in the table."""
    af, protocol, addr, port, fwmark = lookup
    packed = bytes.fromhex(addr) or bytes(4 if af == AF_INET else 16)
    if len(packed) != {AF_INET: 4, AF_INET6: 16}.get(af):
        raise DamagedError(f"no address of its family: {addr!r:.40}")
    row = {"protocol": protocol or IPPROTO_TCP, "port": port, "fwmark": fwmark}
    return ServiceKey(
        af, number(row, "protocol", U16), packed, number(row, "port", U16), number(row, "fwmark", U32)
    )


def replay(texts: Iterable[bytes]) -> Saved:
    """The table that lines (after the first) tell of, without a fault in them. DamagedError."""
    again = Replay()
    for text in texts:
        again.redo(read_line(text))
    return again.saved


def _read_settings(row: Any) -> tuple[tuple[int, int, int], dict[str, str]]:
    times = member(row, "timeouts", list)
    if len(times) != 3 or not all(type(n) is int and 0 <= n <= TIMEOUT_MAX for n in times):
        raise DamagedError("timeouts are not three numbers of seconds")
    sysctls = member(row, "sysctls", dict)
    if not all(isinstance(value, str) for value in sysctls.values()):
        raise DamagedError("a sysctl is no text")
    return (times[0], times[1], times[2]), sysctls


def _read_service(row: Any) -> ServiceSpec:
    af, addr = address(row)
    key = ServiceKey(
        af, number(row, "protocol", U16), addr, number(row, "port", U16), number(row, "fwmark", U32)
    )
    return ServiceSpec(
        key,
        member(row, "scheduler", str),
        number(row, "flags", U32),
        number(row, "timeout", U32),
        number(row, "netmask", U32),
        member(row, "pe", str),
    )
