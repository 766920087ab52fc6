"""Why not: the table of reasons."""

from __future__ import annotations

import re
from pathlib import Path

from uvs.engine.core import Why
from uvs.trace import summary

REASONS = Path(__file__).parents[3] / "docs/reference/reasons.md"


def test_what_is_to_be_done_is_what_the_reference_says() -> None:
    """Advice for every reason that has some there, and for no other."""
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$|^\| `(\w+)` \|.*\| \|$", REASONS.read_text(), re.M)
    assert [reason for reason, advice, _ in rows if advice.strip()] == list(summary.ADVICE)
    assert sorted(summary.ADVICE) == sorted(set(summary.ADVICE) & {why.label for why in Why})


def test_the_table() -> None:
    """Drops first, the most frequent on top; what nothing is to be done about has no advice."""
    reasons = {"forwarded": 10, "reply": 5, "no_service": 3, "no_conn": 30, "weight_0": 2, "app": 7, "ttl": 0}
    assert list(summary.lines(reasons, "now", 80)) == [
        "now: 15 packets handled, 9 dropped, 33 let pass",
        "  dropped",
        "         7  app           an application helper refused it",
        "         2  weight_0      every real server has weight 0",
        "                          → give one a weight: uvsadm -e ... -w 1",
        "  let pass: not ours",
        "        30  no_conn       of no connection",
        "         3  no_service    no virtual service has this address, protocol and port",
        "                          → uvsadm -Ln: is the service there, with this address,",
        "                            protocol and port?",
    ]


def test_nothing_to_tell() -> None:
    assert list(summary.lines({"reply": 0}, "now", 80)) == ["now: 0 packets handled, 0 dropped, 0 let pass"]


def test_between_two_looks() -> None:
    assert summary.since({"ttl": 2, "app": 1}, {"ttl": 5, "app": 1, "new": 1}) == {
        "ttl": 3,
        "app": 0,
        "new": 1,
    }
    assert summary.since({"ttl": 2}, {"ttl": 1}) == {"ttl": 1}, "it began anew"
