"""Every command and listing of ipvsadm: the real one under `uvs exec` and uvsadm say, byte for byte, what a kernel said."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
RECORDED = HERE / "recorded/ipvsadm.txt"
PROGRAMS = ["ipvsadm", "ipvsadm-save", "ipvsadm-restore"]
EVERY = """
-A -E -D -C -Z -Sn -R -a -e -d -L --set --stop-daemon --version ipvsadm-save ipvsadm-restore
-t -u --sctp-service -f -6 -s -p -M -b -o --pe -r -g -i -m -w -x -y --tun-type --tun-port --tun-csum --tun-remcsum
-Ln --stats --rate --exact --thresholds --persistent-conn --tun-info --sort --nosort -Lnc --daemon --timeout
"""
SBIN = os.environ["PATH"] + ":/usr/sbin:/sbin"


class Said(NamedTuple):
    """What a command said."""

    command: str
    out: list[str]
    err: list[str]
    status: int = 0


def read(text: str) -> list[Said]:
    """What stands in a recording (see `record`)."""
    found: list[Said] = []
    for line in text.splitlines():
        kind, rest = line[:2], line[2:]
        if kind == "$ ":
            found.append(Said(rest, [], []))
        elif kind == "? ":
            found.append(found.pop()._replace(status=int(rest)))
        elif kind in (": ", "! "):
            assert rest.endswith("|"), line
            (found[-1].out if kind == ": " else found[-1].err).append(rest[:-1])
        else:
            assert not kind or kind[0] == "#", line
    return found


def play(before: list[str], environment: dict[str, str], file: Path = RECORDED) -> list[Said]:
    """Run the commands of a recording; `before`: the program that runs the shell that runs them."""
    words = [*before, str(HERE / "record"), str(file)]
    ran = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return read(ran.stdout)


def same(found: list[Said], wanted: list[Said]) -> None:
    """One after the other, so that a failure names the first command that differs."""
    assert [said.command for said in found] == [said.command for said in wanted]
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours == theirs


def of_this_build(said: Said) -> Said:
    """Debian 13's build of ipvsadm 1.31 has another wording here than Debian 12's."""
    return said._replace(err=[line.replace("-6 must follow -f", "-6 used before -f") for line in said.err])


@pytest.fixture
def environment(director):
    """What a shell has that asks this director."""
    return os.environ | {"UVS_SOCKET": str(director.socket), "PATH": SBIN, "LC_ALL": "C"}


def test_the_real_one_says_what_it_says_of_a_kernel(environment):
    found = play([sys.executable, "-m", "uvs.cli", "exec", "--timeout=60", "--"], environment)
    same([of_this_build(said) for said in found], read(RECORDED.read_text()))


def test_uvsadm_in_its_place_says_the_same(environment, tmp_path):
    """By ipvsadm's names. But it tells its own version; and what reads /proc finds the kernel's there."""
    for name in PROGRAMS:
        uvsadm = shutil.which(name.replace("ipvsadm", "uvsadm"), path=f"{Path(sys.executable).parent}:{SBIN}")
        assert uvsadm, f"{name}: the package is not installed"
        (tmp_path / name).symlink_to(uvsadm)
    told = read(RECORDED.read_text())
    wanted = [said for said in told if "/proc/" not in said.command and "--version" not in said.command]
    (tmp_path / "commands").write_text("".join(f"$ {said.command}\n" for said in wanted))
    environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    assert shutil.which("ipvsadm", path=environment["PATH"]) == str(tmp_path / "ipvsadm")
    same(play([], environment, tmp_path / "commands"), wanted)


def test_the_recording_is_whole():
    """Every command, every kind of service and server, every listing; but the start of a sync daemon, which uvs refuses."""
    told = {word for said in read(RECORDED.read_text()) for word in said.command.split()}
    assert set(EVERY.split()) - told == set()


def test_what_is_recorded(tmp_path):
    """Blanks, empty lines, both outputs, the status."""
    (tmp_path / "x").write_text("# remark\n\n$ echo 'a ' && echo && echo e >&2 && exit 3\n: old|\n$ true\n")
    assert play([], dict(os.environ), tmp_path / "x") == [
        Said("echo 'a ' && echo && echo e >&2 && exit 3", ["a ", ""], ["e"], 3),
        Said("true", [], []),
    ]
