"""The command line of `uvs metrics`: where it listens, files for the textfile collector."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from support.control import running

from uvs.cli import main

UVS = [sys.executable, "-m", "uvs.cli", "metrics"]


def test_it_serves_until_it_is_told_to_stop(tmp_path: Path) -> None:
    with running(tmp_path) as director:
        env = os.environ | {"UVS_SOCKET": director.path}
        argv = [*UVS, "--listen", "127.0.0.1:0", "--log-format", "text"]
        with subprocess.Popen(argv, env=env, stderr=subprocess.PIPE, text=True) as process:
            said = process.stderr.readline()
            assert said.startswith("uvs: metrics at http://127.0.0.1:")
            with urllib.request.urlopen(said.split()[-1], timeout=60) as answer:
                assert b"\nuvs_up 1.0\n" in answer.read()
            process.send_signal(signal.SIGTERM)
            assert (process.wait(60), process.stderr.read()) == (0, "")


@pytest.mark.parametrize("there", [True, False])
def test_a_file_for_the_textfile_collector(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], there: bool
) -> None:
    """It is whole or as before, others can read it, nothing else is left; without a director it says so."""
    file = tmp_path / "out/uvs.prom"
    file.parent.mkdir()
    file.write_text("old")
    os.umask(os.umask(0o077))
    with running(tmp_path) as director:
        monkeypatch.setenv("UVS_SOCKET", director.path if there else str(tmp_path / "none.sock"))
        assert main(["metrics", "--textfile", str(file)]) == (0 if there else 1)
    assert f"\nuvs_up {float(there)}\n" in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o644
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    assert ("no director listens" in capsys.readouterr().err) is not there


def test_a_file_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "--textfile", str(tmp_path / "nosuch/uvs.prom")]) == 1
    assert "No such file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (
            ["--listen", "nowhere"],
            2,
            "--listen nowhere: an address and a port, as 127.0.0.1:9781 or [::1]:9781",
        ),
        (["--listen", "192.0.2.1:0"], 1, "cannot listen on 192.0.2.1"),
    ],
)
def test_wrong_use(capsys: pytest.CaptureFixture[str], words: list[str], status: int, says: str) -> None:
    assert main(["metrics", *words]) == status
    assert says in capsys.readouterr().err
