"""`uvs top --once` and `--json`: the same as plain text, and for programs (docs/reference/top.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator

from uvs.adm import jsontext
from uvs.top.model import NARROW, Model
from uvs.top.source import Snapshot


def lines(model: Model) -> Iterator[str]:
    """What is shown at once, without a terminal: every row, no name cut."""
    yield from model.totals()
    yield ""
    width = max(model.longest(), NARROW)
    yield "".join(piece for piece, _ in model.head(width))
    for row in range(len(model)):
        yield model.line(row, width, marks=False)
    yield ""
    yield from model.queues()
    yield "dropped: " + (", ".join(model.dropped()) or "nothing")
    yield "not ours: " + (", ".join(model.ignored()) or "nothing")


def json_line(snapshot: Snapshot) -> str:
    """One object on one line."""
    services = [jsontext.service(entry, servers) for entry, servers in snapshot.services]
    beside = jsontext.counters(snapshot.queues, snapshot.reasons, snapshot.table)
    total = jsontext.stats(snapshot.total)
    return json.dumps({"time": round(snapshot.time, 3), "services": services, "total": total, **beside})


def json_absence(time: float, why: str) -> str:
    """The line of a moment at which the director does not answer."""
    return json.dumps({"time": round(time, 3), "error": why})
