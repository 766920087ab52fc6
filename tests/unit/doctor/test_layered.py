"""Servers that their checks took out, and drains."""

from __future__ import annotations

from typing import Any

import pytest
from support.machine import VIP, Fault, Machine, check, directing, of, real, service


def row(server: str, service: str = "tcp:192.0.2.100:80", **more: Any) -> dict[str, Any]:
    """As GET_HEALTH has it."""
    return {"service": service, "server": server, "up": True, "drain": None, "about": {}} | more


DOWN = row("198.51.100.11:80", up=False, about={"state": "FAULTED", "reason": "http: status 503"})
DRAIN = row("198.51.100.11:80", drain={"since": 1.0, "deadline": None, "done": False})
WEIGHTLESS = service(VIP, 80, real("nat", "198.51.100.11", weight=0))
FAULTS: list[Fault] = [
    ("down", directing(WEIGHTLESS, layers=[DOWN]),
     "server down", "warn", "198.51.100.11:80 of tcp:192.0.2.100:80 is out of service: http: status 503",
     "uvs monitor status"),
    ("down, and nobody says why", directing(WEIGHTLESS, layers=[row("198.51.100.11:80", up=False, about=None)]),
     "server down", "warn", "its checks fail", "uvs monitor status"),
    ("up", directing(WEIGHTLESS, layers=[row("198.51.100.11:80")]), "server down", "ok", "", None),
    ("unchecked", directing(WEIGHTLESS, layers=[row("198.51.100.11:80", up=None)]), "server down", "ok", "", None),
    ("drained", directing(WEIGHTLESS, layers=[DRAIN]),
     "server drained", "note", "198.51.100.11:80 of tcp:192.0.2.100:80",
     "uvs drain --cancel tcp:192.0.2.100:80 198.51.100.11:80"),
    ("weight 0 by checks", directing(WEIGHTLESS, layers=[DOWN]), "weight 0", "warn", "", "checks or drains"),
    ("weight 0 by a drain", directing(WEIGHTLESS, layers=[DRAIN]), "weight 0", "warn", "", "checks or drains"),
    ("weight 0 by hand", directing(WEIGHTLESS, layers=[row("198.51.100.11:80")]), "weight 0", "warn", "", "-w 1"),
    ("taken out by checks", directing(service(), layers=[DOWN]), "no server", "warn", "", "checks or drains"),
    ("another service's", directing(service(), layers=[DOWN | {"service": "tcp:192.0.2.100:81"}]),
     "no server", "warn", "", "uvsadm -a"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_many_are_not_told_one_by_one() -> None:
    rows = [row(f"198.51.100.{i}:80", up=False) for i in range(20)]
    found = of(directing(WEIGHTLESS, layers=rows), "server down")
    assert (len(found), found[-1].detail) == (9, "and 12 more")


def test_without_a_director() -> None:
    assert of(Machine(told="none"), "server down") == []
