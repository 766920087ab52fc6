"""What the demo takes for success."""

import pytest

from uvs.lab.demo import judge

SERVERS = ("rs1", "rs2", "rs3")
FAIR = ["rs3", "rs2", "rs1"] * 4


@pytest.mark.parametrize(
    ("what", "answers", "words", "good"),
    [
        ("round after round in one order", FAIR, "x: 12 of 12 answered, rs1 4, rs2 4, rs3 4", True),
        (
            "evenly, but not in turns",
            sorted(FAIR),
            "x: 12 of 12 answered, rs1 4, rs2 4, rs3 4: not as rr spreads them",
            False,
        ),
        (
            "one server only",
            ["rs1"] * 12,
            "x: 12 of 12 answered, rs1 12, rs2 0, rs3 0: not as rr spreads them",
            False,
        ),
        (
            "one request unanswered",
            [*FAIR[:11], "no answer: timed out"],
            "x: 11 of 12 answered, rs1 3, rs2 4, rs3 4",
            False,
        ),
        ("nothing at all", [], "x: 0 of 12 answered, rs1 0, rs2 0, rs3 0", False),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_judge(what: str, answers: list[str], words: str, good: bool) -> None:
    assert judge("x", SERVERS, answers) == (words, good), what
