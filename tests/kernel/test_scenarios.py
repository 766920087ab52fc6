"""Every recorded scenario, played on uvs: on paper where that is possible, else in a network namespace.

What is expected was recorded from a kernel (`scripts/kernel-oracle --record`), not written by hand.
"""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from support.sandbox import sandboxed
from support.scenario import script
from support.scenario.paper import Paper
from support.scenario.play import Play
from support.scenario.wire import Uvs

ROOT = Path(__file__).parents[2]
SCENARIOS = {path.stem: script.load(path) for path in sorted((ROOT / "tests/kernel/scenarios").glob("*.txt"))}

ASKS = re.compile(r"([cd]|r[123]): |who |conns|entries|states |ipvsadm -L")


def on_wire(scenario: script.Script) -> bool:
    """Does it need more of a kernel than there is on paper?"""
    return any(step.text.startswith("topology") and "wire" in step.text for step in scenario.steps)


def play(scenario: script.Script, stage: type) -> None:
    """Play it; the test fails with the differences."""
    with closing(Play(stage)) as game:
        wrong = script.differences(scenario, game.expecting)
    if wrong:
        pytest.fail("\n".join([f"{scenario.name}: not as the kernel", *wrong]), pytrace=False)


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if not on_wire(one)])
def test_on_paper(name: str) -> None:
    """The hook path alone, with a clock that runs as fast as we like."""
    play(SCENARIOS[name], Paper)


@pytest.mark.parametrize("name", [name for name, one in SCENARIOS.items() if on_wire(one)])
@sandboxed(limit=600)
def test_on_the_wire(name: str) -> None:
    """`uvs run` with real packets."""
    play(SCENARIOS[name], Uvs)


@pytest.mark.parametrize("name", SCENARIOS)
def test_recorded(name: str) -> None:
    """Something was recorded for what is asked, and each difference is a row of docs/differences.md."""
    scenario = SCENARIOS[name]
    rows = (ROOT / "docs/differences.md").read_text()
    assert all(f"| {reason} |" in rows for reason in scenario.reasons), scenario.reasons
    asked = [step for step in scenario.steps if ASKS.match(step.words)]
    assert asked
    assert not [step.words for step in asked if not step.recorded]


def test_enough() -> None:
    """The kernel was asked about everything that it decides."""
    subjects = Counter(name.partition("-")[0] for name in SCENARIOS)
    assert len(SCENARIOS) >= 110
    assert {
        "sched",
        "service",
        "persist",
        "dest",
        "conn",
        "state",
        "icmp",
        "packet",
        "mtu",
        "fragment",
        "local",
        "ftp",
    } <= {*subjects}
