"""Reads `uvs.toml`: all faults at once, each with its line and key, or the configuration."""

from __future__ import annotations

import difflib
import os
import re
import stat
import tomllib
import types
import typing
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from uvs.config import checks, semantics
from uvs.config.lines import Path, lines, show
from uvs.config.schema import Config
from uvs.errors import UserError

SIZE_MAX = 64 << 20  # bytes of a file

_AT = re.compile(r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", re.DOTALL)
_TYPES = {kind.model_fields["type"].annotation.__args__[0]: kind for kind in checks.Common.__subclasses__()}  # type: ignore[union-attr]
_TYPES |= {"https": checks.Https}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong in a file; `key`: where, as `service[0].server[1].weight`, empty for no key."""

    file: str
    line: int
    key: str
    text: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        return f"{where}: {self.key}: {self.text}" if self.key else f"{where}: {self.text}"


class ConfigError(UserError):
    """The configuration cannot be used; the text has a line for each fault."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("\n".join(map(str, faults)))
        self.faults = faults


def load(path: str) -> Config:
    """The configuration in a file. ConfigError."""
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfigError([Fault(path, 0, "", "it is no regular file, which can be read again")])
            data = file.read(SIZE_MAX + 1)
    except OSError as error:
        raise ConfigError([Fault(path, 0, "", f"it cannot be read: {error.strerror}")]) from None
    if len(data) > SIZE_MAX:
        raise ConfigError([Fault(path, 0, "", f"it is larger than {SIZE_MAX >> 20} MiB")])
    return parse(data, path)


def _without_waiting(path: str, flags: int) -> int:
    """A named pipe would be waited for, and all later reloads with it."""
    return os.open(path, flags | os.O_NONBLOCK)


def parse(data: bytes, name: str) -> Config:
    """The configuration that a text is; `name` for messages. ConfigError."""
    try:
        text = data.decode()
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError([Fault(name, line, "", "it is no UTF-8 text")]) from None
    except tomllib.TOMLDecodeError as error:
        where = _AT.fullmatch(str(error))
        line = int(where[2]) if where and where[2] else data.count(b"\n") + (not data.endswith(b"\n"))
        why = where[1] if where else str(error)
        raise ConfigError([Fault(name, line, "", f"no TOML: {why[:1].lower()}{why[1:]}")]) from None
    except RecursionError:
        raise ConfigError([Fault(name, 1, "", "no TOML that can be read: nested too deeply")]) from None
    told: dict[Path, list[str]] = {}
    config = None
    try:
        config = Config.model_validate(document)
    except ValidationError as error:
        for each in error.errors():
            path, what = _told(document, each)
            _add(told, path, what)
    for path, what in semantics.faults(document, config):
        _add(told, path, what)
    if told or config is None:
        raise ConfigError(_faults(name, text, told))
    return config


def _add(told: dict[Path, list[str]], path: Path, text: str) -> None:
    if text not in told.setdefault(path, []):
        told[path].append(text)


def _faults(name: str, text: str, told: dict[Path, list[str]]) -> list[Fault]:
    where = lines(text)
    found = []
    for path, texts in told.items():
        known = path
        while known and known not in where:
            known = known[:-1]
        line = where.get(known, 1)
        found.append(Fault(name, line, show(path), _joined(texts)))
    return sorted(found, key=lambda fault: fault.line)


def _joined(texts: list[str]) -> str:
    """What a union's members say, together."""
    heads = {text.partition(": must be ")[0] for text in texts}
    if len(texts) > 1 and len(heads) == 1 and all(": must be " in text for text in texts):
        return f"{heads.pop()}: must be {' or '.join(text.partition(': must be ')[2] for text in texts)}"
    return "; ".join(texts)


def _told(document: Any, error: Any) -> tuple[Path, str]:
    """Where an error of pydantic's is in the document, and what it says, for people."""
    kind, loc = error["type"], list(error["loc"])
    path = _path(document, loc, kind)
    match kind:
        case "missing":
            return path, "it is missing"
        case "extra_forbidden":
            return path, _unknown(document, path)
        case "value_error":
            return path, str(error["msg"]).removeprefix("Value error, ")
        case "union_tag_not_found":
            return (*path, "type"), f"it is missing: must be one of {_listed(_TYPES)}"
        case "union_tag_invalid":
            return (*path, "type"), f"{error['ctx']['tag']!r}: must be one of {_listed(_TYPES)}"
    text = str(error["msg"]).replace("Input should be", "must be")
    return path, f"{_shown(error['input'])}: {text[:1].lower()}{text[1:]}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _path(document: Any, loc: list[Any], kind: str) -> Path:
    """A location of pydantic's without the names of union members, which no document has."""
    path: list[Any] = []
    at, tagged = document, False
    for i, part in enumerate(loc):
        if isinstance(at, dict) and not tagged and part == at.get("type") and _is_check(path):
            tagged = True  # of the check's union
            continue
        tagged = False
        if _has(at, part):
            at = at[part]
        elif not (kind == "missing" and i == len(loc) - 1):
            continue
        path.append(part)
    return tuple(path)


def _has(at: Any, part: Any) -> bool:
    if isinstance(at, list):
        return isinstance(part, int) and part < len(at)
    return isinstance(at, dict) and part in at


def _is_check(path: list[Any]) -> bool:
    return len(path) > 1 and path[-2] == "check" and isinstance(path[-1], int)


def _unknown(document: Any, path: Path) -> str:
    model = _model(document, path[:-1])
    known = sorted(model.model_fields) if model else []
    near = difflib.get_close_matches(str(path[-1]), known, 1)
    return "no such key; " + (f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}")


def _model(document: Any, path: Path) -> type[BaseModel] | None:
    """The model of the table at `path`."""
    kind: Any = Config
    at = document
    for i, part in enumerate(path):
        at = at[part]
        if isinstance(part, int):
            continue
        if isinstance(kind, type) and issubclass(kind, BaseModel) and part in kind.model_fields:
            kind = _of(kind.model_fields[part].annotation)
        else:
            return None
        if part == "check" and i + 1 < len(path):
            kind = _TYPES.get(at[path[i + 1]].get("type"))
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _of(annotation: Any) -> Any:
    """The model within `list[…]`, `… | None`."""
    while typing.get_origin(annotation) in (list, types.UnionType, typing.Union, typing.Annotated):
        annotation = typing.get_args(annotation)[0]
    return annotation
