"""`uvs monitor status`: what checks have found, for people."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

Row = dict[str, Any]  # of GET_HEALTH

HEAD = ("server", "state", "since", "weight", "why")
HISTORY = 5  # changes that are shown
MINUTE, HOUR, DAY = 60, 3600, 86400


def lines(rows: list[Row], now: float) -> Iterator[str]:
    """A table for each service, its servers' checks and last changes beneath each. `now`: Unix time."""
    services: dict[str, list[Row]] = {}
    for row in rows:
        services.setdefault(row["service"], []).append(row)
    if not services:
        yield "no real servers"
    for i, (service, servers) in enumerate(services.items()):
        if i:
            yield ""
        yield service
        table = [HEAD, *(_cells(row, now) for row in servers)]
        widths = [max(len(cells[column]) for cells in table) for column in range(len(HEAD))]
        for cells, about in zip(table, [{}, *(row["about"] for row in servers)], strict=True):
            pairs = zip(cells, widths, strict=True)
            yield "  " + "  ".join(cell.ljust(width) for cell, width in pairs).rstrip()
            yield from (f"    {line}" for line in _beneath(about, now))


def _cells(row: Row, now: float) -> tuple[str, ...]:
    about = row["about"]
    state = about.get("state") or ("not checked" if row["up"] is None else "OK" if row["up"] else "FAULTED")
    why = str(about.get("reason", ""))
    if row["fallback"]:
        state, why = "fallback", "the service's quorum is lost"
    elif about.get("held"):
        why = "stands aside: the service's quorum is lost"
    if row["drain"] is not None:
        why = "drained" if row["drain"].get("done") else "being drained"
    weight = str(row["effective"]) if row["present"] else "removed"
    if row["present"] and row["effective"] != row["configured"]:
        weight += f" of {row['configured']}"
    since = ago(now - about["since"]) if "since" in about else ""
    return row["server"], str(state), since, weight, why


def _beneath(about: Row, now: float) -> Iterator[str]:
    for check in about.get("checks", ()):
        if "at" not in check:
            yield f"{check['name']}: not run yet"
            continue
        streak = f", {check['streak']} in a row that say otherwise" if check["streak"] else ""
        yield (
            f"{check['name']}: {'up' if check['up'] else 'down'}{streak}; {ago(now - check['at'])} ago: "
            f"{check['detail']} ({check['duration'] * 1000:.1f} ms)"
        )
    if "process" in about:
        yield f"process {about['process']} is watched"
    for change in about.get("history", ())[-HISTORY:]:
        when = time.strftime("%F %T", time.localtime(change["at"]))
        yield f"{when}  {change['before']} → {change['after']}: {change['reason']}"


def ago(seconds: float) -> str:
    """`12s`, `3m20s`, `5h07m`, `2d03h`."""
    n = max(0, int(seconds))
    if n < MINUTE:
        return f"{n}s"
    if n < HOUR:
        return f"{n // MINUTE}m{n % MINUTE:02}s"
    if n < DAY:
        return f"{n // HOUR}h{n % HOUR // MINUTE:02}m"
    return f"{n // DAY}d{n % DAY // HOUR:02}h"
