"""The table on disk: services, destinations, time-outs and sysctls, so that a restarted director has them.

A JSON file, written whole beside the old one and renamed over it, and a journal of changes beside it: after
a crash there is what was acknowledged, never half of a change.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvs.control.ipvs_family import TIMEOUT_MAX, set_timeouts, timeouts
from uvs.engine.core import AF_INET, AF_INET6
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

VERSION = 1
JOURNAL_MIN = 100_000  # lines; writing a large table whole takes a moment in which no packet is handled


class DamagedError(ValueError):
    """The file is no saved table; the text says what is wrong with it."""


@dataclass(slots=True)
class Saved:
    """What a file holds. Destinations in list order, newest first."""

    services: list[tuple[ServiceSpec, list[DestSpec]]] = field(default_factory=list)
    timeouts: tuple[int, int, int] = (0, 0, 0)  # seconds; 0 leaves the default
    sysctls: dict[str, str] = field(default_factory=dict)


class SavedTable:
    """The files of one director: the table as it was, and a journal of what has changed since.

    A change appends a line, so that it costs the same however large the table is; when the journal has
    grown as long as the table, the table is written anew. The table names its journal by number: one that
    belongs to an older table is never read.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._changes: list[str] = []
        self._settings = ""
        self._number = 0
        self._lines = 0  # in the journal
        self._size = 0  # services and destinations in the table
        self._whole = False  # is there a table that the journal can continue?

    def _journal(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    # ---- saving

    def save(self, ipvs: NetnsIpvs) -> None:
        """Write down what has changed since the last call. OSError: the text names the file."""
        settings = json.dumps(_settings(ipvs))
        if settings != self._settings:
            self._changes.append(settings)
        try:
            if not self._whole or self._lines + len(self._changes) > max(JOURNAL_MIN, self._size):
                self._write(ipvs)
            elif self._changes:
                with open(self._journal(self._number), "ab", opener=_private) as f:
                    f.write("".join(line + "\n" for line in self._changes).encode())
                self._lines += len(self._changes)
        except OSError as e:
            self._whole = False  # the next call writes all of it
            raise OSError(e.errno, f"the table cannot be saved to {self.path}: {e.strerror}") from None
        self._changes.clear()
        self._settings = settings

    def _write(self, ipvs: NetnsIpvs) -> None:
        temporary = self.path.with_name(self.path.name + ".new")
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        with contextlib.suppress(FileNotFoundError):
            self._journal(self._number + 1).unlink()
        with open(temporary, "xb", opener=_private) as f:
            f.write(encode(ipvs, self._number + 1))
            f.flush()
            os.fsync(f.fileno())
        os.rename(temporary, self.path)
        with contextlib.suppress(OSError):
            self._journal(self._number).unlink()
        self._number += 1
        self._lines = 0
        self._size = sum(1 + len(svc.dests) for svc in ipvs.services)
        self._whole = True

    def _changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        """An observer of the services."""
        if event == "gone_dest":
            return
        key = list(_key(svc))
        if dest is None:
            row: list[Any] = [event, key] if event == "del_service" else [event, key, _service(svc)]
        else:
            row = [event, key, _dest(dest)]
        self._changes.append(json.dumps(row))

    # ---- restoring

    def load(self) -> tuple[Saved, str]:
        """What was saved, and a message (empty if all is well); a damaged file is set aside."""
        try:
            saved, self._number = decode(self.path.read_bytes())
        except FileNotFoundError:
            return Saved(), ""
        except ValueError as e:
            aside = self.path.with_name(self.path.name + ".damaged")
            self.path.rename(aside)
            return Saved(), f"the saved table is damaged ({e}): set aside as {aside}, starting empty"
        journal = self._journal(self._number)
        try:
            lines = journal.read_bytes().split(b"\n")
        except FileNotFoundError:
            return saved, ""
        try:
            return replay(saved, lines[:-1]), ""  # a last line without its end was never acknowledged
        except ValueError as e:
            aside = self.path.with_name(self.path.name + ".damaged")
            journal.rename(aside)
            message = f"the journal of the saved table is damaged ({e}): set aside as {aside}"
            return decode(self.path.read_bytes())[0], f"{message}, starting with what is whole"

    def restore(self, ipvs: NetnsIpvs) -> str:
        """Put the saved table into a fresh director; returns a message, empty if all is well.

        From now on changes are noted; `save` writes them.
        """
        saved, message = self.load()
        messages = [message] if message else []
        ipvs.services.attach(saved.services)
        set_timeouts(ipvs.table, *saved.timeouts)
        for name, value in saved.sysctls.items():
            try:
                ipvs.sysctl.set(name, value)
            except OSError as e:
                messages.append(f"saved sysctl not restored: {e.strerror}")
        ipvs.services.observers.append(self._changed)
        return "; ".join(messages)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


# ---------------------------------------------------------------- encoding


def encode(ipvs: NetnsIpvs, number: int = 1) -> bytes:
    """A director's table as the file's text; `number` of the journal that continues it."""
    return json.dumps(
        {
            "version": VERSION,
            "journal": number,
            **_settings(ipvs),
            "services": [
                {**_service(svc), "servers": [_dest(d) for d in svc.dests]} for svc in ipvs.services
            ],
        },
        indent=1,
    ).encode()


def _settings(ipvs: NetnsIpvs) -> dict[str, Any]:
    return {
        "timeouts": timeouts(ipvs.table),
        "sysctls": ipvs.sysctl.changed(),
    }


def _key(svc: Service) -> tuple[int, int, str, int, int]:
    af, protocol, addr, port, fwmark = svc.key.lookup
    return af, protocol, addr.hex(), port, fwmark


def _service(svc: Service) -> dict[str, Any]:
    spec = svc.spec
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


def _dest(dest: Dest) -> dict[str, Any]:
    spec = dest.spec
    return {
        "family": spec.af,
        "address": socket.inet_ntop(spec.af, spec.addr),
        "port": spec.port,
        "method": spec.fwd,
        "weight": spec.weight,
        "u_threshold": spec.u_threshold,
        "l_threshold": spec.l_threshold,
        "tun_type": spec.tun_type,
        "tun_port": spec.tun_port,
        "tun_flags": spec.tun_flags,
    }


# ---------------------------------------------------------------- decoding


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as e:
        raise DamagedError(f"no JSON: {e}") from None


def decode(text: bytes) -> tuple[Saved, int]:
    """The file's text, checked member by member, and the number of its journal. DamagedError."""
    top = _json(text)
    if _member(top, "version", int) != VERSION:
        raise DamagedError(f"written by another version of uvs (version {top['version']})")
    saved = Saved([], *_decode_settings(top))
    seen = set()
    for row in _member(top, "services", list):
        spec = _decode_service(row)
        if spec.key.lookup in seen:
            raise DamagedError("a service appears twice")
        seen.add(spec.key.lookup)
        dests = [_decode_dest(d) for d in _member(row, "servers", list)]
        if len({(d.af, d.addr, d.port) for d in dests}) != len(dests):
            raise DamagedError("a server appears twice in a service")
        saved.services.append((spec, dests))
    return saved, _number(top, "journal", 1 << 62)


def _decode_settings(row: Any) -> tuple[tuple[int, int, int], dict[str, str]]:
    timeouts = _member(row, "timeouts", list)
    if len(timeouts) != 3 or not all(type(n) is int and 0 <= n <= TIMEOUT_MAX for n in timeouts):
        raise DamagedError("timeouts are not three numbers of seconds")
    sysctls = _member(row, "sysctls", dict)
    if not all(isinstance(value, str) for value in sysctls.values()):
        raise DamagedError("a sysctl is no text")
    return (timeouts[0], timeouts[1], timeouts[2]), sysctls


def replay(saved: Saved, lines: list[bytes]) -> Saved:
    """Do again what a journal tells. DamagedError: it does not fit the table."""
    services = {_lookup(spec.key): (spec, dests) for spec, dests in saved.services}
    for line in lines:
        row = _json(line)
        if isinstance(row, dict):
            saved.timeouts, saved.sysctls = _decode_settings(row)
            continue
        try:
            _redo(services, *row)
        except (TypeError, KeyError, ValueError) as e:
            raise DamagedError(f"a line does not fit: {line[:80]!r} ({e})") from None
    saved.services = list(services.values())
    return saved


_Lookup = tuple[int, int, str, int, int]


def _lookup(key: ServiceKey) -> _Lookup:
    af, protocol, addr, port, fwmark = key.lookup
    return af, protocol, addr.hex(), port, fwmark


def _redo(
    services: dict[_Lookup, tuple[ServiceSpec, list[DestSpec]]], event: str, key: list[Any], row: Any = None
) -> None:
    """One change. `del_service` comes after the `del_dest` of its destinations."""
    lookup: _Lookup = tuple(key)
    match event:
        case "add_service":
            services[lookup] = (_decode_service(row), [])
        case "edit_service":
            services[lookup] = (_decode_service(row), services[lookup][1])
        case "del_service":
            del services[lookup]
        case "add_dest" | "edit_dest" | "del_dest":
            dest = _decode_dest(row)
            dests = services[lookup][1]
            if event == "add_dest":
                dests.insert(0, dest)
                return
            at = [(d.af, d.addr, d.port) for d in dests].index((dest.af, dest.addr, dest.port))
            if event == "edit_dest":
                dests[at] = dest
            else:
                del dests[at]
        case _:
            raise ValueError(f"no such change: {event!r}")


def _member(row: Any, name: str, kind: type) -> Any:
    if not isinstance(row, dict) or type(row.get(name)) is not kind:
        raise DamagedError(f"{name} is missing or no {kind.__name__}")
    return row[name]


def _number(row: Any, name: str, high: int, low: int = 0) -> int:
    value: int = _member(row, name, int)
    if not low <= value <= high:
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


_U16, _U32 = 0xFFFF, 0xFFFFFFFF


def _decode_service(row: Any) -> ServiceSpec:
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


def _decode_dest(row: Any) -> DestSpec:
    af, addr = _address(row)
    return DestSpec(
        af,
        addr,
        _number(row, "port", _U16),
        _number(row, "method", 7),
        _number(row, "weight", 0x7FFFFFFF),
        _number(row, "u_threshold", _U32),
        _number(row, "l_threshold", _U32),
        _number(row, "tun_type", 0xFF),
        _number(row, "tun_port", _U16),
        _number(row, "tun_flags", _U16),
    )
