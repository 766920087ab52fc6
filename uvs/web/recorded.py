"""Walks as `uvs walk --json` wrote them."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

from uvs.errors import UserError
from uvs.ipvs.skb import Hook
from uvs.walk.jsontext import complete

SIZE_MAX = 64 << 20  # bytes
WALKS_MAX = 5000  # the page keeps all of them

# What the page reads of a walk (docs/reference/walk.schema.json).
_WALK: dict[str, type | tuple[type, ...]] = {
    "number": int, "time": int, "hook": str, "packet": str, "mark": int, "length": int, "data": str,
    "steps": list, "verdict": str, "why": str, "entry": dict, "sent": list, "omitted": int,
}  # fmt: skip
_STEP = {"depth": int, "function": str, "decision": str, "looked_at": dict}
_SENT = {"nexthop": str, "packet": str, "length": int, "data": str, "own": bool}
_ENTRY = {
    "protocol": str, "client": str, "virtual": str, "destination": str, "method": str, "state": str,
    "expires": int,
}  # fmt: skip
_CHANGE = {"layer": str, "field": str, "before": (str, type(None)), "after": (str, type(None))}


class Recorded:
    """A source of events: each walk, then `end`."""

    live = False

    def __init__(self, walks: list[dict[str, Any]]) -> None:
        self.walks = walks

    async def events(self) -> AsyncGenerator[tuple[str, Any], None]:
        """Name and data of each."""
        for walk in self.walks:
            yield "walk", walk
        yield "end", {"walks": len(self.walks)}

    def close(self) -> None:
        """Nothing goes on by itself."""

    async def ended(self) -> None:
        """It is."""


def read(path: str) -> list[dict[str, Any]]:
    """The walks of a file, `-`: of standard input. UserError: it cannot be read, or holds something else."""
    where = "<stdin>" if path == "-" else path
    try:
        if path == "-":
            data = sys.stdin.buffer.read(SIZE_MAX + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(SIZE_MAX + 1)
    except OSError as e:
        raise UserError(f"{where}: {e.strerror or e}") from None
    if len(data) > SIZE_MAX:
        raise UserError(f"{where}: more than {SIZE_MAX >> 20} MiB")
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UserError(f"{where}: no text: walks are read as `uvs walk --json` writes them") from None
    return parse(text.splitlines(), where)


def parse(lines: Iterable[str], where: str) -> list[dict[str, Any]]:
    """A walk a line, blank lines aside. UserError with the line's number."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if len(found) == WALKS_MAX:
            raise UserError(f"{where}: more than {WALKS_MAX} walks")
        try:
            walk = _checked(json.loads(line, parse_constant=_no_number))
            json.dumps(walk)  # nested too deep for that: not in the middle of a page's events
            found.append(walk)
        except (ValueError, RecursionError) as e:
            why = f": {e}" if type(e) is ValueError else ""
            raise UserError(f"{where}:{number}: no walk of `uvs walk --json`{why}") from None
    if not found:
        raise UserError(f"{where}: no walk in it: `uvs walk --json` writes them")
    return found


def _checked(walk: Any) -> dict[str, Any]:
    """A walk with its differences. ValueError: it is none."""
    _fields(walk, _WALK, "")
    if walk.get("version") != 1:
        raise ValueError("of another version")
    if walk["hook"] not in Hook.__members__:
        raise ValueError("hook")
    for step in walk["steps"]:
        _fields(step, _STEP, "steps: ")
    for sent in walk["sent"]:
        _fields(sent, _SENT, "sent: ")
    for when in ("before", "after"):
        if walk["entry"].get(when) is not None:
            _fields(walk["entry"][when], _ENTRY, f"entry.{when}: ")
    if "changes" not in walk:  # as a director records it
        try:
            walk = complete(walk)
        except (KeyError, TypeError, ValueError):
            raise ValueError("its bytes are none") from None
    for changes in (walk["changes"], *(sent.get("changes") for sent in walk["sent"])):
        if not isinstance(changes, list | None):
            raise ValueError("changes")
        for change in changes or ():
            _fields(change, _CHANGE, "changes: ")
    return dict(walk)


def _no_number(word: str) -> None:
    """Python's JSON has NaN and Infinity; browsers' has not."""
    raise ValueError(word)


def _fields(found: Any, wanted: dict[str, Any], where: str) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where}no object")
    for name, kind in wanted.items():
        if not isinstance(found.get(name), kind):
            raise ValueError(f"{where}{name}")
