"""The command line: what it listens on, and its one line for what is wrong."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from support.web import recording, served

from uvs.cli import main
from uvs.web import command


def one_line(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["web", *words]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


def test_what_is_wrong_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none"))
    assert "no director listens" in one_line(capsys)
    assert "No such file" in one_line(capsys, str(tmp_path / "none"))
    walks = tmp_path / "walks"
    walks.write_text("{}")
    assert "walks:1: no walk" in one_line(capsys, str(walks))
    walks.write_text(recording())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = one_line(capsys, "--listen", f"127.0.0.1:{port}", str(walks))
    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use: another program has it" in said
    assert "cannot listen on 192.0.2.77" in one_line(capsys, "--listen", "192.0.2.77:0", str(walks))
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert "pip install 'uvs[web]'" in one_line(capsys, str(walks))


def test_it_serves_what_stdin_has() -> None:
    with served("-", stdin=recording()) as address:
        with urllib.request.urlopen(f"{address}events", timeout=60) as answer:
            assert answer.read().count(b"event: walk\n") == 4
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address.rsplit("/", 2)[0] + "/events", timeout=60)
    with (
        served("--no-key", "-", stdin=recording()) as address,
        urllib.request.urlopen(address, timeout=60) as answer,
    ):
        assert answer.read().startswith(b"<!doctype html>")
