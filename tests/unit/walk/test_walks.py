"""Walks as they are printed, against kept texts: tests/walks/*.txt.

A case: what it shows, then `== services`, `== options` (of `uvs walk`, left out if there are none), `== packets`
(a line each) and `== walk`, the text. UVS_KEEP=1 writes the texts anew: read what changed before it is committed.
"""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

import pytest

from uvs.cli import main

WALKS = Path(__file__).parents[2] / "walks"
CASES = sorted(WALKS.glob("*.txt"))
PARTS = re.compile(r"^== (services|options|packets|walk)\n", re.M)
ENOUGH = 40


def parts(text: str) -> tuple[str, dict[str, str]]:
    """What a case shows, and its parts by name."""
    shows, *rest = PARTS.split(text)
    return shows, dict(zip(rest[::2], rest[1::2], strict=True))


def test_there_are_cases() -> None:
    assert len(CASES) >= ENOUGH


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_the_walk_is_the_kept_one(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = path.read_text()
    shows, case = parts(text)
    assert shows.startswith("# ")
    services = tmp_path / "services"
    services.write_text(case["services"])
    words = ["walk", "--services", str(services), *case.get("options", "").split()]
    assert main([*words, *case["packets"].split("\n\n")[0].splitlines()]) == 0
    now = capsys.readouterr().out
    if os.environ.get("UVS_KEEP"):
        path.write_text(text[: text.index("== walk\n")] + "== walk\n" + now)
        return
    if now != case["walk"]:
        lines = difflib.unified_diff(
            case["walk"].splitlines(), now.splitlines(), f"tests/walks/{path.name}", "now", lineterm=""
        )
        pytest.fail("\n".join(lines), pytrace=False)


@pytest.mark.parametrize("path", CASES, ids=lambda p: p.stem)
def test_kept_walks_fit_a_terminal(path: Path) -> None:
    """100 columns, but for what cannot be broken: an IPv6 connection's ends."""
    _, case = parts(path.read_text())
    long = [line for line in case["walk"].splitlines() if len(line) > 100 and ":db8:" not in line]
    assert long == []
