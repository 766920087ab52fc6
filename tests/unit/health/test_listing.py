"""`uvs monitor status`, for people."""

from __future__ import annotations

import time
from typing import Any

import pytest

from uvs.health.listing import ago, lines

NOW = 1_700_000_000.0


def row(server: str, **more: Any) -> dict[str, Any]:
    base = {"service": "tcp:192.0.2.100:80", "server": server, "configured": 1, "effective": 1, "present": True,
            "fallback": False, "up": None, "drain": None, "about": {}}  # fmt: skip
    return base | more


def test_a_table_for_each_service() -> None:
    about = {
        "state": "FAULTED",
        "reason": "http check: status 503",
        "since": NOW - 200,
        "checks": [
            {"name": "http", "up": False, "streak": 1, "at": NOW - 2, "ok": False, "detail": "status 503", "duration": 0.0021},
            {"name": "tcp", "up": True, "streak": 0},
        ],
        "history": [{"at": NOW - 200, "before": "DEGRADED", "after": "FAULTED", "reason": "http check: status 503"}],
        "process": 12,
    }  # fmt: skip
    rows = [
        row("198.51.100.11:80"),
        row("198.51.100.12:80", up=False, effective=0, about=about),
        row("198.51.100.13:80", up=True, drain={"done": False}, present=False, about={"state": "OK"}),
        row("127.0.0.1:80", fallback=True),
        row("198.51.100.14:53", service="udp:192.0.2.100:53", up=True, about={"state": "OK", "held": True}),
    ]
    when = time.strftime("%F %T", time.localtime(NOW - 200))
    assert list(lines(rows, NOW)) == [
        "tcp:192.0.2.100:80",
        "  server            state        since  weight   why",
        "  198.51.100.11:80  not checked         1",
        "  198.51.100.12:80  FAULTED      3m20s  0 of 1   http check: status 503",
        "    http: down, 1 in a row that say otherwise; 2s ago: status 503 (2.1 ms)",
        "    tcp: not run yet",
        "    process 12 is watched",
        f"    {when}  DEGRADED → FAULTED: http check: status 503",
        "  198.51.100.13:80  OK                  removed  being drained",
        "  127.0.0.1:80      fallback            1        the service's quorum is lost",
        "",
        "udp:192.0.2.100:53",
        "  server            state  since  weight  why",
        "  198.51.100.14:53  OK            1       stands aside: the service's quorum is lost",
    ]


def test_where_there_is_nothing() -> None:
    assert list(lines([], NOW)) == ["no real servers"]


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (59.9, "59s"), (61, "1m01s"), (18420, "5h07m"), (183600, "2d03h")]
)
def test_ago(seconds: float, text: str) -> None:
    assert ago(seconds) == text
