"""`uvs install-units`: written, replaced, removed; what somebody changed is not touched without a word."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from uvs.cli import main
from uvs.units import command

Run = Callable[..., tuple[int, list[str], str]]
SYSTEM = "etc/systemd/system"


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs it below a root of its own, for a uvs in /opt/uvs: status, lines, errors."""

    def run(*words: str) -> tuple[int, list[str], str]:
        status = main(["install-units", "--root", str(tmp_path), "--prefix", "/opt/uvs", *words])
        out, err = capsys.readouterr()
        return status, out.splitlines(), err

    return run


def below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


FILES = [
    "etc/systemd/system/uvs-metrics.service",
    "etc/systemd/system/uvs-monitor.service",
    "etc/systemd/system/uvs.service",
    "etc/sysusers.d/uvs.conf",
]


def test_written_then_unchanged_then_removed(tmp_path: Path, run: Run) -> None:
    status, lines, _ = run()
    assert (status, below(tmp_path)) == (0, FILES)
    assert [line.split()[0] for line in lines[:4]] == ["written"] * 4
    assert any("systemctl enable --now uvs" in line for line in lines)
    assert (tmp_path / FILES[0]).stat().st_mode & 0o777 == 0o644
    assert "ExecStart=/opt/uvs/bin/uvs run " in (tmp_path / SYSTEM / "uvs.service").read_text()
    assert [line.split()[0] for line in run()[1][:4]] == ["unchanged"] * 4
    status, lines, _ = run("--remove")
    assert (status, below(tmp_path)) == (0, [])
    assert [line.split()[0] for line in lines[:4]] == ["removed"] * 4
    assert run("--remove")[:2] == (0, [])


def test_an_older_version_is_replaced(tmp_path: Path, run: Run) -> None:
    main(["install-units", "--root", str(tmp_path), "--prefix", "/opt/older"])
    status, lines, _ = run()
    assert status == 0
    assert [line.split()[0] for line in lines if line.startswith(("replaced", "unchanged"))] == [
        "replaced", "replaced", "replaced", "unchanged"
    ]  # fmt: skip
    assert "/opt/older" not in (tmp_path / SYSTEM / "uvs.service").read_text()


@pytest.mark.parametrize("how", ["changed", "somebody else's", "masked"])
def test_what_was_changed_stays(tmp_path: Path, run: Run, how: str) -> None:
    """Nothing at all is written then; --force keeps the old file beside the new."""
    unit = tmp_path / SYSTEM / "uvs.service"
    if how == "changed":
        run()
        unit.write_text(unit.read_text() + "Nice=5\n")
        (tmp_path / FILES[0]).unlink()
    else:
        unit.parent.mkdir(parents=True)
        if how == "masked":
            unit.symlink_to("/dev/null")
        else:
            unit.write_text("[Service]\nExecStart=/bin/true\n")
    before = below(tmp_path), None if how == "masked" else unit.read_text()
    for words in ([], ["--remove"], ["--dry-run"]):
        status, _, err = run(*words)
        assert status == 1
        assert "uvs.service was changed, or is somebody else's" in err
        assert err.count("\n") == 1
        assert (below(tmp_path), None if how == "masked" else unit.read_text()) == before
    assert run("--force")[0] == 0
    assert set(FILES) <= set(below(tmp_path))
    kept = unit.with_name("uvs.service.old")
    assert kept.is_symlink() if how == "masked" else kept.read_text() == before[1]
    assert not unit.is_symlink()


def test_a_dry_run_writes_nothing(tmp_path: Path, run: Run) -> None:
    status, lines, _ = run("-n")
    assert (status, below(tmp_path)) == (0, [])
    assert [line.split()[0] for line in lines[:4]] == ["written"] * 4
    run()
    assert [line.split()[0] for line in run("--remove", "--dry-run")[1][:4]] == ["removed"] * 4
    assert below(tmp_path) == FILES


class Systemctl:
    """What stands in for systemd's programs: notes its calls, answers by a table."""

    def __init__(self, where: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self._active = where / "calls", where / "active"
        self.calls.write_text("")
        for name in ("systemctl", "systemd-sysusers"):
            program = where / name
            program.write_text(
                f'#!/bin/sh\necho "{name} $*" >> {self.calls}\n'
                f'case "$*" in *is-*) grep -qx "$2 $3" {self._active} ;; esac\n'
            )
            program.chmod(0o755)
        self.says()
        monkeypatch.setenv("PATH", f"{where}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(command, "RUNNING", where)

    def says(self, *lines: str) -> None:
        self._active.write_text("".join(f"{line}\n" for line in lines))

    def called(self) -> list[str]:
        lines = self.calls.read_text().splitlines()
        self.calls.write_text("")
        return lines


def test_systemd_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where it runs: the user is made, units are read; what is enabled or runs is not removed."""
    root, programs = tmp_path / "root", tmp_path / "programs"
    root.mkdir()
    programs.mkdir()
    systemctl = Systemctl(programs, monkeypatch)
    real = Path

    def rooted(*parts: str) -> Path:  # `/` is a folder of the test's own
        return root if parts == ("/",) else real(*parts)

    monkeypatch.setattr(command, "Path", rooted)
    monkeypatch.setattr(command, "_check_program", lambda program: None)
    args = ["install-units", "--prefix", "/opt/uvs"]
    assert main([*args, "-n"]) == 0
    assert systemctl.called() == []
    assert main(args) == 0
    assert systemctl.called() == [
        f"systemd-sysusers {root}/etc/sysusers.d/uvs.conf",
        "systemctl daemon-reload",
    ]
    for verb in ("is-active", "is-enabled"):
        systemctl.says(f"{verb} uvs-monitor.service")
        assert main([*args, "--remove"]) == 1
        assert "systemctl disable --now uvs-monitor.service first" in capsys.readouterr().err
    assert below(root) == FILES
    systemctl.says()
    systemctl.called()
    assert main([*args, "--remove"]) == 0
    assert systemctl.called()[-1] == "systemctl daemon-reload"
    assert below(root) == []


def test_a_program_that_others_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The units' user is nobody in particular; it needs the Python too, wherever that is."""
    program = tmp_path / "shut/bin/uvs"
    with pytest.raises(command.UserError, match="there is no such program"):
        command._check_program(str(program))
    program.parent.mkdir(parents=True)
    program.touch(0o755)
    (tmp_path / "shut").chmod(0o700)
    with pytest.raises(command.UserError, match=r"chmod o\+x .*, or install uvs elsewhere"):
        command._check_program(str(program))
    command._check_program("/bin/sh")
    monkeypatch.setattr(command, "interpreter", lambda program: str(tmp_path / "shut/bin/uvs"))
    with pytest.raises(command.UserError, match=r"shut/bin/uvs can be started by its owner only"):
        command._check_program("/bin/sh")


def test_which_python(tmp_path: Path) -> None:
    """That of the first line, where its links lead: a venv's may lie in root's home."""
    program, python, link = tmp_path / "uvs", tmp_path / "python3.11", tmp_path / "python"
    python.touch()
    link.symlink_to(python)
    for text, expected in (
        (f"#!{link}\n", str(python)),
        (f"#! {link} -I\nimport uvs\n", str(python)),
        ("#!/no/such/python\n", ""),
        ("import uvs\n", ""),
        ("#!\n", ""),
        ("", ""),
    ):
        program.write_text(text)
        assert command.interpreter(str(program)) == expected
    assert command.interpreter(str(tmp_path / "none")) == ""


@pytest.mark.parametrize(
    "words", [["--root", "/no/such/folder"], ["--prefix", "/tmp/venv"], ["--prefix", "/opt/a b"]]
)
def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    root = [] if "--root" in words else ["--root", str(tmp_path)]
    assert main(["install-units", *root, *words]) in (1, 2)
    assert capsys.readouterr().err.startswith("uvs install-units: ")
    assert below(tmp_path) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path, run: Run) -> None:
    (tmp_path / "etc").write_text("a file")
    status, _, err = run()
    assert status == 1
    assert "cannot write" in err


def test_which_uvs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was typed; its links are kept, since a venv finds its packages by them."""
    (tmp_path / "real").touch()
    (tmp_path / "uvs").symlink_to("real")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "uvs")])
    assert command.this() == str(tmp_path / "uvs")
    monkeypatch.setattr(sys, "argv", ["-m"])
    assert command.this().endswith("/bin/uvs")
