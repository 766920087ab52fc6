"""The table on disk: services, destinations, time-outs and sysctls, so that a restarted director has them.

A JSON file, written whole beside the old one and renamed over it: after a crash there is the old
table or the new one, never half of one.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvs.control.ipvs_family import set_timeouts, timeouts
from uvs.engine.core import AF_INET, AF_INET6
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

VERSION = 1


class DamagedError(ValueError):
    """The file is no saved table; the text says what is wrong with it."""


@dataclass(slots=True)
class Saved:
    """What a file holds. Destinations in list order, newest first."""

    services: list[tuple[ServiceSpec, list[DestSpec]]] = field(default_factory=list)
    timeouts: tuple[int, int, int] = (0, 0, 0)  # seconds; 0 leaves the default
    sysctls: dict[str, str] = field(default_factory=dict)


class SavedTable:
    """The file of one director."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._written = b""

    def save(self, ipvs: NetnsIpvs) -> None:
        """Write the table if it has changed; atomic, mode 0600. OSError: the text names the file."""
        text = encode(ipvs)
        if text == self._written:
            return
        temporary = self.path.with_name(self.path.name + ".new")
        try:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "wb") as f:
                f.write(text)
                f.flush()
                os.fsync(f.fileno())
            os.rename(temporary, self.path)
        except OSError as e:
            raise OSError(e.errno, f"the table cannot be saved to {self.path}: {e.strerror}") from None
        self._written = text

    def load(self) -> tuple[Saved, str]:
        """What was saved, and a message (empty if all is well); a damaged file is set aside."""
        try:
            return decode(self.path.read_bytes()), ""
        except FileNotFoundError:
            return Saved(), ""
        except ValueError as e:
            aside = self.path.with_name(self.path.name + ".damaged")
            self.path.rename(aside)
            return Saved(), f"the saved table is damaged ({e}): set aside as {aside}, starting empty"

    def restore(self, ipvs: NetnsIpvs) -> str:
        """Put the saved table into a fresh director; returns a message, empty if all is well."""
        saved, message = self.load()
        messages = [message] if message else []
        ipvs.services.attach(saved.services)
        set_timeouts(ipvs.table, *saved.timeouts)
        for name, value in saved.sysctls.items():
            try:
                ipvs.sysctl.set(name, value)
            except OSError as e:
                messages.append(f"saved sysctl not restored: {e.strerror}")
        return "; ".join(messages)


# ---------------------------------------------------------------- encoding


def encode(ipvs: NetnsIpvs) -> bytes:
    """A director's table as the file's text."""
    return json.dumps(
        {
            "version": VERSION,
            "timeouts": timeouts(ipvs.table),
            "sysctls": {name: str(ipvs.sysctl.get(name)) for name in ipvs.sysctl.names()},
            "services": [_service(svc) for svc in ipvs.services],
        },
        indent=1,
    ).encode()


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
        "servers": [_dest(dest) for dest in svc.dests],
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


def decode(text: bytes) -> Saved:
    """The file's text, checked member by member. DamagedError."""
    try:
        top = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise DamagedError(f"no JSON: {e}") from None
    if _member(top, "version", int) != VERSION:
        raise DamagedError(f"written by another version of uvs (version {top['version']})")
    timeouts = _member(top, "timeouts", list)
    if len(timeouts) != 3 or not all(type(n) is int and 0 <= n < 1 << 22 for n in timeouts):
        raise DamagedError("timeouts are not three numbers of seconds")
    sysctls = _member(top, "sysctls", dict)
    if not all(isinstance(value, str) for value in sysctls.values()):
        raise DamagedError("a sysctl is no text")
    saved = Saved([], (timeouts[0], timeouts[1], timeouts[2]), sysctls)
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
    return saved


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
