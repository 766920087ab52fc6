"""The documents' sessions, typed in a lab: every command does what its page says (`support.session`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import session

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if session.BLOCK.search(path.read_text())]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_the_page_is_true(path: Path) -> None:
    wrong = list(session.differences(path.read_text()))
    if wrong:
        pytest.fail(
            "\n\n".join([f"{path.relative_to(DOCS.parent)}: not what the lab prints", *wrong]), pytrace=False
        )


@pytest.mark.parametrize(
    ("page", "printed", "agree"),
    [
        ("rs1", "rs1", True),
        ("rs1", "rs2", False),
        ("", "rs1", False),
        ("rs1", "", False),
        ("rs1\n...\nrs3", "rs1\nrs3", True),
        ("rs1\n...\nrs3", "rs1\nrs2\nrs2\nrs3", True),
        ("rs1\n...\nrs3", "rs1\nrs2", False),
        ("TCP 01:59  TIME_WAIT   192.0.2.2:40000    192.0.2.100:80", "TCP 01:58  TIME_WAIT   192.0.2.2:60999    192.0.2.100:80", True),
        ("TCP 01:59  TIME_WAIT   192.0.2.2:40000    192.0.2.100:80", "TCP 01:58  TIME_WAIT   192.0.2.2:40000    192.0.2.100:81", False),
    ],
)  # fmt: skip
def test_what_counts_as_the_same_output(page: str, printed: str, agree: bool) -> None:
    assert session.agrees(page.splitlines(), printed.splitlines()) is agree


@pytest.mark.parametrize(
    ("command", "words", "behind"),
    [
        ("uvsadm -Ln", ["uvsadm", "-Ln"], ""),
        ("uvs walk 'a | b' \\\n  'c' | grep -e d | head", ["uvs", "walk", "a | b", "c"], " grep -e d | head"),
        ("uvsadm -Sn > table", [], ""),
        ("uvsadm -Ln; sleep 1", [], ""),
    ],
)
def test_what_has_no_work_for_a_shell_is_typed_without_one(
    command: str, words: list[str], behind: str
) -> None:
    first, rest = session.piped(command)
    assert (session.plain(first), rest) == (words, behind)


def test_a_page_that_lies_is_found() -> None:
    page = "```console\n$ uvs lab up\nclient$ echo true\nfalse\nclient$ echo x\nx\n```\n"
    assert list(session.differences(page)) == ["client$ echo true\n- false\n+ true"]
