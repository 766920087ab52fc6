"""All checks together."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.machine import VIP, VIP6, Machine, directing, real, service

import uvs.doctor
from uvs.doctor.examination import examine
from uvs.doctor.finding import Name, some
from uvs.doctor.host import Route

SERVED = {
    "nothing": [],
    "nat": [service(VIP, 80, real("nat", "198.51.100.11")), service(VIP6, 80, real("nat", "2001:db8:b::11"))],
    "dr": [service(VIP, 80, real("dr", "192.0.2.11")), service(VIP6, 80, real("dr", "2001:db8:a::11"))],
    "tun": [service(VIP, 80, real("tun", "198.51.100.11")), service(VIP6, 80, real("tun", "2001:db8:b::11"))],
}


@pytest.mark.parametrize("services", SERVED.values(), ids=SERVED)
def test_a_good_machine_has_no_findings_but_ok(services: list) -> None:  # type: ignore[type-arg]
    assert [f for f in examine(directing(*services)) if f.state != "ok"] == []


def test_a_machine_of_which_nothing_is_known() -> None:
    """No file, no tool, no privilege, no director: it is said, and nothing breaks."""
    machine = Machine(
        files={}, outputs={}, told="none", processes=[], own=[], answers=None, unanswered=None, in_step=None
    )
    states = {f.name: f.state for f in examine(machine)}
    assert states["director"] == "note"
    assert "fail" not in states.values()


def test_findings_come_in_the_order_of_their_names() -> None:
    order = list(Name)
    for services in SERVED.values():
        found = [order.index(f.name) for f in examine(directing(*services))]
        assert found == sorted(found)


def test_every_name_is_of_a_check() -> None:
    folder = Path(uvs.doctor.__file__).parent
    code = "".join(p.read_text() for p in folder.glob("*.py") if p.name != "finding.py")
    used = set(re.findall(r"\bName\.(\w+)", code))
    assert {name.name for name in Name} == used


def test_of_thousands_only_some_are_asked_for() -> None:
    """The kernel, and others, are asked a bounded number of times."""
    asked = []

    class Counting(Machine):
        def route(self, address: str) -> Route | None:
            asked.append(address)
            return super().route(address)

    services = [
        service(
            f"10.{n // 250}.{n % 250}.1", 80, *(real("nat", f"10.{n // 250}.{n % 250}.{i}") for i in (2, 3))
        )
        for n in range(5000)
    ]
    examine(Counting(told=directing(*services).told))
    assert len(set(asked)) <= 2 * 256


def test_a_list_for_people() -> None:
    assert some(["a", "b", "a"]) == "a, b"
    assert some([str(n) for n in range(6)]) == "0, 1, 2, 3 and 2 more"
