"""systemd takes our units, and the how-to's drop-ins, whose program is the distribution's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support import tools

from uvs.units.unit import UNITS as OURS
from uvs.units.unit import files

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


# ---- our own

# Of 10, less is better; what later versions of systemd look at besides may count too.
EXPOSED = {"uvs.service": 2.5, "uvs-monitor.service": 2.7, "uvs-metrics.service": 1.7}


def analyze(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """systemd-analyze WORDS, with the units that lie in a folder."""
    program = shutil.which("systemd-analyze")
    assert program, "systemd-analyze is missing: scripts/test installs it (apt-get install systemd)"
    env = os.environ | {"SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_LOG_LEVEL": "warning"}
    return subprocess.run(
        [program, *words], env=env, capture_output=True, text=True, check=False, timeout=120
    )


def written(folder: Path, name: str, more: str = "") -> Path:
    """A unit as `uvs install-units` writes it, with a program that is there in place of uvs."""
    text = next(file.text for file in files("/opt/uvs/bin/uvs") if file.path.name == name)
    unit = folder / name
    unit.write_text(text.replace("/opt/uvs/bin/uvs", "/bin/sh") + more)
    return unit


@pytest.mark.parametrize("name", OURS)
def test_systemd_takes_our_units(name: str, tmp_path: Path) -> None:
    ran = analyze(tmp_path, "verify", "--man=no", "--recursive-errors=no", str(written(tmp_path, name)))
    assert (ran.returncode, [line for line in ran.stderr.splitlines() if name in line]) == (0, [])


@pytest.mark.parametrize("name", OURS)
def test_systemd_would_complain_of_ours(name: str, tmp_path: Path) -> None:
    unit = written(tmp_path, name, "[Service]\nNonsense=1\n")
    assert name in analyze(tmp_path, "verify", "--man=no", "--recursive-errors=no", str(unit)).stderr


@pytest.mark.parametrize("name", OURS)
def test_they_are_as_closed_as_they_were(name: str, tmp_path: Path) -> None:
    """`systemd-analyze security`, without a systemd that runs."""
    unit = written(tmp_path, name)
    ran = analyze(tmp_path, "security", "--offline=true", "--no-pager", str(unit))
    found = re.search(r"Overall exposure level for \S+: ([\d.]+)", ran.stdout)
    assert found, ran.stderr
    assert float(found[1]) <= EXPOSED[name]
