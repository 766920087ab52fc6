"""What lies over configured weights: servers that their checks took out, and drains."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from uvs.doctor.finding import HERE, Finding, Name
from uvs.doctor.host import Host
from uvs.doctor.table import Virtual, director

SHOWN = 8  # servers, one by one
STATUS = "mend what the reason names; uvs monitor status tells more"


def rows(host: Host) -> list[dict[str, Any]]:
    """Servers and what lies over them (GET_HEALTH); none of a director that has too many, or none to tell."""
    found = director(host)
    return found.layers if found else []


def covers(host: Host, service: Virtual) -> bool:
    """Is it checks or drains that leave this service without a server?"""
    return any(row["service"] == service.label and (row["up"] is False or row["drain"]) for row in rows(host))


def check_layers(host: Host) -> Iterator[Finding]:
    """Servers that are down by their checks, and those that are drained."""
    down = [row for row in rows(host) if row["up"] is False]
    drained = [row for row in rows(host) if row["drain"]]
    for row in down[:SHOWN]:
        about = row["about"] if isinstance(row["about"], dict) else {}
        reason = about.get("reason") or "its checks fail"
        detail = f"{row['server']} of {row['service']} is out of service: {reason}"
        yield Finding(Name.DOWN, "warn", detail, STATUS)
    if len(down) > SHOWN:
        yield Finding(Name.DOWN, "warn", f"and {len(down) - SHOWN} more", STATUS)
    for row in drained[:SHOWN]:
        detail = f"{row['server']} of {row['service']} is being drained, or was: it gets no new connection"
        mend = f"uvs drain --cancel {row['service']} {row['server']}"
        yield Finding(Name.DRAINED, "note", detail, mend, HERE)
    if rows(host) and not down:
        yield Finding(Name.DOWN, "ok", "no server is out of service by its checks")
