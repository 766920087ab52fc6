"""Recorded walks: what is taken, and what is told of anything else."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from support.web import recording

from uvs.errors import UserError
from uvs.web import recorded


@pytest.fixture(scope="module")
def lines() -> list[str]:
    return recording().splitlines()


def test_walks_come_as_they_were_written(lines: list[str], tmp_path: Path) -> None:
    path = tmp_path / "walks"
    path.write_text("\n\n".join(lines))
    walks = recorded.read(str(path))
    assert walks == [json.loads(line) for line in lines]
    assert [walk["why"] for walk in walks] == ["forwarded", "reply", "no_dest", "no_service"]

    async def events() -> list[tuple[str, Any]]:
        return [event async for event in recorded.Recorded(walks).events()]

    assert asyncio.run(events()) == [*(("walk", walk) for walk in walks), ("end", {"walks": 4})]


def test_what_a_director_recorded_gets_its_differences(lines: list[str]) -> None:
    whole = json.loads(lines[0])
    bare = {name: value for name, value in whole.items() if name != "changes"}
    bare["sent"] = [{k: v for k, v in sent.items() if k != "changes"} for sent in whole["sent"]]
    assert recorded.parse([json.dumps(bare)], "x") == [whole]


# what is done to a walk; what is said
WRONG = [
    (lambda w: "{", "x:1: no walk of `uvs walk --json`"),
    (lambda w: "[" * 100_000, "x:1: no walk of `uvs walk --json`"),
    (lambda w: "3", "x:1: no walk of `uvs walk --json`: no object"),
    (lambda w: w | {"version": 2}, "x:1: no walk of `uvs walk --json`: of another version"),
    (lambda w: w | {"time": "now"}, "x:1: no walk of `uvs walk --json`: time"),
    (lambda w: w | {"hook": "constructor"}, "x:1: no walk of `uvs walk --json`: hook"),
    (lambda w: w | {"more": float("nan")}, "x:1: no walk of `uvs walk --json`: NaN"),
    (lambda w: w | {"steps": [{"depth": 0}]}, "x:1: no walk of `uvs walk --json`: steps: function"),
    (lambda w: w | {"sent": [{}]}, "x:1: no walk of `uvs walk --json`: sent: nexthop"),
    (lambda w: w | {"entry": {"after": {}}}, "x:1: no walk of `uvs walk --json`: entry.after: protocol"),
    (lambda w: w | {"changes": [{"layer": 1}]}, "x:1: no walk of `uvs walk --json`: changes: layer"),
    (lambda w: {k: v for k, v in (w | {"data": "x"}).items() if k != "changes"}, "x:1: no walk of `uvs walk --json`: its bytes are none"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "said"), WRONG)
def test_what_is_no_walk(lines: list[str], spoil: Any, said: str) -> None:
    spoilt = spoil(json.loads(lines[0]))
    with pytest.raises(UserError) as error:
        recorded.parse([spoilt if isinstance(spoilt, str) else json.dumps(spoilt)], "x")
    assert str(error.value) == said


def test_files_that_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xd4\xc3\xb2\xa1")
    for name, said in (
        ("empty", "no walk in it"),
        ("bytes", "no text"),
        ("gone", "No such file"),
        ("", "directory"),
    ):
        with pytest.raises(UserError, match=said):
            recorded.read(str(tmp_path / name))
    monkeypatch.setattr(recorded, "SIZE_MAX", 0)
    with pytest.raises(UserError, match="more than 0 MiB"):
        recorded.read(str(tmp_path / "bytes"))
    monkeypatch.setattr(recorded, "WALKS_MAX", 0)
    with pytest.raises(UserError, match="more than 0 walks"):
        recorded.parse(["{}"], "x")
