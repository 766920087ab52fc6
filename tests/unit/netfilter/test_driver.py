"""What the queue drivers share."""

from __future__ import annotations

from pathlib import Path

import pytest

from uvs.netfilter import driver, nfnetlink

# A kernel's file: two queues, the second of which had no room for 3 packets and its socket none for 4.
ROWS = """\
    0   4711     5 2 65531     0     0      123  1
    1   4711     0 2 65531     3     4 4294967295  1
"""


def test_the_kernels_part_of_each_queues_counters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "nfnetlink_queue").write_text(ROWS)
    monkeypatch.setattr(nfnetlink, "ROWS", tmp_path / "nfnetlink_queue")
    rows = driver.with_kernels({"queue": number, "packets": 9} for number in (0, 1, 2))
    assert rows == [
        {"queue": 0, "packets": 9, "dropped": 0, "waiting": 5},
        {"queue": 1, "packets": 9, "dropped": 7, "waiting": 0},
        {"queue": 2, "packets": 9, "dropped": None, "waiting": None},
    ]


def test_a_kernel_that_does_not_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nfnetlink, "ROWS", tmp_path / "not to be read")
    assert driver.with_kernels([{"queue": 0}]) == [{"queue": 0, "dropped": None, "waiting": None}]
