"""The how-to's systemd drop-ins: they are accepted, and what they start is the distribution's program."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import tools

UNITS = Path("/usr/lib/systemd/system")
PROGRAMS = ["keepalived", "ldirectord"]


def verify(folder: Path, name: str, drop_in: str) -> str:
    """What systemd-analyze has to say of the distribution's unit with this drop-in."""
    analyze = shutil.which("systemd-analyze")
    assert analyze, "systemd-analyze is missing: scripts/test installs it (apt-get install systemd)"
    unit = folder / f"{name}.service"
    shutil.copy(UNITS / unit.name, unit)
    (folder / f"{unit.name}.d").mkdir(exist_ok=True)
    (folder / f"{unit.name}.d/uvs.conf").write_text(drop_in)
    ran = subprocess.run(
        [analyze, "verify", "--man=no", "--recursive-errors=no", str(unit)],
        env=os.environ | {"SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_LOG_LEVEL": "warning"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return "\n".join(
        line for line in ran.stderr.splitlines() if f"{unit.name}" in line or str(folder) in line
    )


def drop_in(name: str) -> str:
    """The page's, with a program that is there in place of uvs."""
    text = tools.from_page(f"{name}.md", f"/etc/systemd/system/{name}.service.d/uvs.conf")
    assert "=/opt/uvs/bin/uvs exec -- " in text
    return text.replace("/opt/uvs/bin/uvs", "/bin/sh")


@pytest.mark.parametrize("name", PROGRAMS)
def test_systemd_accepts_it(name: str, tmp_path: Path) -> None:
    """It has no more to say than of an empty one."""
    assert verify(tmp_path, name, drop_in(name)) == verify(tmp_path, name, "")


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("wrong", ["ExecStart=/no/such/program\n", "Nonsense=1\n", "ExecStart\n"])
def test_systemd_would_complain(name: str, wrong: str, tmp_path: Path) -> None:
    wrong = wrong.replace("ExecStart=", "ExecStart=\nExecStart=")
    assert verify(tmp_path, name, drop_in(name) + wrong) != verify(tmp_path, name, "")


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_starts_what_the_unit_starts(name: str) -> None:
    """The drop-in changes nothing but who runs the command."""
    theirs = dict(re.findall(r"^(Exec(?:Start|Reload))=(.+)$", (UNITS / f"{name}.service").read_text(), re.M))
    ours = dict(re.findall(r"^(Exec\w+)=/opt/uvs/bin/uvs exec -- (.+)$", tools.from_page(f"{name}.md", f"/etc/systemd/system/{name}.service.d/uvs.conf"), re.M))  # fmt: skip
    assert ours
    assert {key: theirs[key] for key in ours} == ours
