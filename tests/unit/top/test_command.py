"""The command line of `uvs top`: what it refuses, what it prints without a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import Mock

import pytest
from support.control import running
from support.top import snapshot

from uvs.cli import main
from uvs.control.client import Unreachable
from uvs.ipvs.spec import IpvsError
from uvs.top import command


def test_no_director(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none"))
    for how in ("--once", "--json"):
        assert main(["top", how]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("uvs top: no director listens on ")
        assert err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "inf", "3601", "0.09"])
def test_intervals_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["top", "--once", "--interval", seconds]) == 2
    assert "--interval takes 0.1..3600 seconds, not" in capsys.readouterr().err


def test_no_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Here standard output is none: a page full of control sequences in a file is of no use."""
    monkeypatch.setattr(command, "find_spec", lambda name: object())
    assert main(["top"]) == 2
    assert (
        capsys.readouterr().err
        == "uvs top: this is no terminal: for files and pipes there are --once and --json\n"
    )


def test_without_textual(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["top"]) == 1
    err = capsys.readouterr().err
    assert "pip install 'uvs[top]'" in err
    assert err.count("\n") == 1


def test_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "find_spec", lambda name: None)  # nothing else is needed for these
    with running(tmp_path) as director:
        monkeypatch.setenv("UVS_SOCKET", director.path)
        assert main(["top", "--once"]) == 0
        assert capsys.readouterr().out.startswith("0 services, ")
        assert main(["top", "--once", "--json"]) == 0
        (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["services"] == []


def test_a_line_for_each_look(capsys: pytest.CaptureFixture[str]) -> None:
    """A director that is gone is told of in a line, and followed when it is back; a slow one is asked less often."""
    slow = snapshot(at=3.0)._replace(took=2.0)
    source = Mock(take=Mock(side_effect=[snapshot(at=1.0), Unreachable(2, "gone"), slow, KeyboardInterrupt]))
    sleep = Mock()
    with pytest.raises(KeyboardInterrupt):
        command.follow(source, 5.0, 1.0, sleep)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line.get("error") for line in lines] == [None, "gone", None]
    assert [call.args[0] for call in sleep.call_args_list] == [4.0, 4.99, 5.0, 6.0]


# what came of asking, what is said
WHY = [
    (Unreachable(2, "no director listens on x: start one"), "no director listens on x: start one"),
    (IpvsError(1, "Operation not permitted"), "the director refused it (Operation not permitted): only those who may control it may look"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "said"), WHY)
def test_why(error: OSError, said: str) -> None:
    assert command.explain(error) == said
