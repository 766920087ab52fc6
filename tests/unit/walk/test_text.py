"""The tree, its width, its colours, and what must never reach a terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from uvs.walk import text
from uvs.walk.jsontext import complete

CONN = {
    "protocol": "TCP", "client": "192.0.2.2:1024", "virtual": "192.0.2.100:80", "destination": "198.51.100.11:80",
    "method": "Masq", "state": "ESTABLISHED", "expires": 900_000, "template": False,
}  # fmt: skip


def walk(**different: Any) -> dict[str, Any]:
    bare = {
        "version": 1, "number": 1, "time": 10**9, "hook": "LOCAL_IN", "packet": "TCP a > b S", "mark": 0, "frame": None,
        "length": 1, "data": "45", "steps": [], "verdict": "DROP", "why": "weight_0", "entry": {"before": None, "after": None},
        "delivered": None, "sent": [], "omitted": 0, "changes": None,
    }  # fmt: skip
    return bare | different


def step(depth: int, function: str = "f", decision: str = "d", **looked_at: Any) -> dict[str, Any]:
    return {"depth": depth, "function": function, "decision": decision, "looked_at": looked_at}


@pytest.mark.parametrize(
    ("depths", "tree"),
    [
        ([0], ["└─"]),
        ([0, 0], ["├─", "└─"]),
        ([0, 1, 0], ["├─", "│ └─", "└─"]),
        ([0, 1, 1, 2], ["└─", "  ├─", "  └─", "    └─"]),
        ([0, 1, 2, 1], ["└─", "  ├─", "  │ └─", "  └─"]),
        ([0, 2, 2, 0], ["├─", "│ ├─", "│ └─", "└─"]),  # a level that nobody is at
        ([1, 0], ["├─", "└─"]),
        ([], []),
    ],
)
def test_branches(depths: list[int], tree: list[str]) -> None:
    lines = text.render(walk(steps=[step(d) for d in depths])).splitlines()[1:-1]
    assert [line[3:].split("f ")[0] for line in lines] == tree


def test_what_a_step_looked_at_wraps_under_it() -> None:
    steps = [step(0), step(1, "g", "found", **{f"word{i}": "x" * 9 for i in range(9)}), step(1, "h")]
    lines = text.render(walk(steps=steps), width=60).splitlines()
    assert all(len(line) <= 60 for line in lines)
    (first,) = (i for i, line in enumerate(lines) if "word0" in line)
    assert lines[first].startswith("     │ ")


def test_zero_is_told_and_false_is_not() -> None:
    (_, line, _) = text.render(walk(steps=[step(0, active=0, template=False, mtu=None)])).splitlines()
    assert line.endswith("active 0")


def test_colour_only_adds() -> None:
    told = walk(steps=[step(0, mtu=5)], entry={"before": CONN, "after": CONN | {"state": "CLOSE"}})
    coloured = text.render(told, colour=True)
    assert "\033[31mDROP" in coloured
    assert re.sub(r"\033\[\d*m", "", coloured) == text.render(told)


def test_of_an_entry_what_changed() -> None:
    lines = text.render(
        walk(entry={"before": CONN, "after": CONN | {"state": "FIN_WAIT", "expires": 120_000}})
    ).splitlines()
    assert lines[-2:] == [
        "   entry   TCP 192.0.2.2:1024 → 192.0.2.100:80 → 198.51.100.11:80 Masq,",
        "           ESTABLISHED → FIN_WAIT, 900 s → 120 s",
    ]


@pytest.mark.parametrize(
    ("why", "verdict", "style"),
    [
        ("forwarded", "STOLEN", 32),
        ("weight_0", "DROP", 31),
        ("no_service", "ACCEPT", 33),
        ("no_neighbour", "STOLEN", 31),
    ],
)
def test_colours_of_verdicts(why: str, verdict: str, style: int) -> None:
    assert f"\033[{style}m{verdict}" in text.render(walk(why=why, verdict=verdict), colour=True)


def test_in_ascii() -> None:
    assert text.in_ascii("├─a\n│ └─b → c ··").isascii()


def test_a_director_leaves_the_changes_out() -> None:
    came = "4500001c000100004011f66ac0000202c00002640001000200084b1e"
    left = came[:16] + "3f11" + came[20:]
    sent = {"nexthop": "198.51.100.11", "packet": "p", "length": 28, "data": left, "own": False}
    bare = walk(data=came, sent=[sent])
    del bare["changes"]
    assert "64 → 63" in text.render(bare)
    assert complete(bare)["sent"][0]["changes"][1]["field"] == "ttl"


def test_a_reason_of_another_version_is_shown() -> None:
    assert "solar_flare" in text.render(walk(why="solar_flare"))


def test_nothing_steers_the_terminal() -> None:
    evil = "\033]0;x\007"
    told = walk(
        packet=evil,
        why=evil,
        steps=[step(0, evil, evil, word=evil)],
        entry={"before": None, "after": CONN | {"state": evil}},
    )
    assert all(line.isprintable() for line in text.render(told).splitlines())


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_a_terminals_width_is_kept_to(width: int) -> None:
    told = walk(
        verdict="ACCEPT", why="no_service", entry={"before": CONN, "after": CONN | {"state": "FIN_WAIT"}},
        steps=[step(0), step(1, "ip_vs_service_find", "no service", protocol="TCP", address="192.0.2.100:81", mark=3, more="x" * 20)],
    )  # fmt: skip
    assert max(map(len, text.render(told, width=width).splitlines())) <= width
