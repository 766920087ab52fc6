"""`uvs exec`: which program is run, whether the shim reaches it, with which environment."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from uvs import cli, exec
from uvs.control import extension, genetlink, sockopt
from uvs.errors import UserError

ROOT = Path(__file__).parents[2]


def program(path: Path, content: bytes, mode: int = 0o755) -> str:
    path.write_bytes(content)
    path.chmod(mode)
    return str(path)


def elf(interpreter: bytes | None, wide: bool = True) -> bytes:
    """A little-endian ELF with one program header."""
    name = (interpreter or b"") + b"\0"
    kind = 1 if interpreter is None else 3
    if wide:
        head = b"\x7fELF\x02\x01" + bytes(26) + struct.pack("<Q14xHH", 64, 56, 1)
        head = head.ljust(64, b"\0")
        return head + struct.pack("<IIQQQQQQ", kind, 0, 120, 0, 0, len(name), 0, 0) + name
    head = b"\x7fELF\x01\x01" + bytes(22) + struct.pack("<I10xHH", 52, 32, 1)
    head = head.ljust(52, b"\0")
    return head + struct.pack("<IIIIIIII", kind, 84, 0, 0, len(name), 0, 0, 0) + name


@pytest.mark.parametrize("wide", [True, False])
def test_the_interpreter_of_an_elf_file(wide: bool) -> None:
    assert exec.interpreter(elf(b"/lib/ld.so", wide)) == "/lib/ld.so"
    assert exec.interpreter(elf(None, wide)) is None


def test_the_interpreter_of_what_is_no_elf_file() -> None:
    whole = elf(b"/lib/ld.so")
    for cut in range(len(whole)):
        exec.interpreter(whole[:cut])
    assert exec.interpreter(b"#!/bin/sh\n") is None


def test_the_program_is_found_as_execvp_does(tmp_path: Path) -> None:
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
    program(tmp_path / "a/x", b"", 0o644)
    (tmp_path / "b/x").mkdir()
    found = program(tmp_path / "c/x", b"")
    path = ":".join(str(tmp_path / folder) for folder in ("nowhere", "a", "b", "c"))
    assert exec.find("x", path) == found
    assert exec.find(found, "") == found


# name, exit status, part of the message
UNFIT = [
    ("nosuch", 127, "not found"),
    ("{}/nosuch", 127, "not found"),
    ("{}/plain", 126, "not executable"),
    ("{}", 126, "is a directory"),
    ("{}/static", 2, "linked statically"),
    ("{}/foreign", 2, "another C library"),
    ("{}/setuid", 2, "gains privileges"),
    ("{}/script-of-static", 2, "linked statically"),
    ("{}/script-of-nothing", 127, "was not found"),
]


@pytest.mark.parametrize(("name", "status", "message"), UNFIT)
def test_unfit_programs_are_told(
    name: str,
    status: int,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program(tmp_path / "plain", b"", 0o644)
    program(tmp_path / "static", elf(None))
    program(tmp_path / "foreign", elf(b"/lib/ld-other.so.1"))
    program(tmp_path / "script-of-static", b"#!%s/static -x\n" % bytes(tmp_path))
    program(tmp_path / "script-of-nothing", b"#!/nosuch/sh\n")
    setuid = program(tmp_path / "setuid", Path("/bin/true").read_bytes(), 0o4755)
    owner = Path(setuid).stat().st_uid
    monkeypatch.setattr(exec.os, "getuid", lambda: owner + 1)
    assert cli.main(["exec", "--", name.format(tmp_path)]) == status
    told = capsys.readouterr().err
    assert message in told
    assert told.startswith("uvs exec: ")
    assert told.count("\n") == 1


def test_fit_programs() -> None:
    for fit in ("/bin/sh", sys.executable, "/usr/bin/ldd"):
        exec.check(fit)


def test_without_a_director(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none"))
    assert cli.main(["exec", "--restart=0.1", "true"]) == 1
    assert "no director listens" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["exec"],
        ["exec", "--timeout=0", "true"],
        ["exec", "--timeout=x", "true"],
        ["exec", "--restart=-1", "true"],
    ],
)
def test_wrong_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = cli.main(words)
    except SystemExit as end:
        status = int(end.code or 0)
    assert status == 2
    assert capsys.readouterr().err


# LD_PRELOAD before, path of the shim, LD_PRELOAD and LD_LIBRARY_PATH after
ENVIRONMENTS = [
    ("", "/a/preload.so", "/a/preload.so", None),
    ("/b.so", "/a/preload.so", "/a/preload.so:/b.so", None),
    ("/b.so:/a/preload.so", "/a/preload.so", "/b.so:/a/preload.so", None),
    ("", "/a b/preload.so", "preload.so", "/a b"),
]


@pytest.mark.parametrize(("before", "shim", "after", "search"), ENVIRONMENTS)
def test_the_environment(before: str, shim: str, after: str, search: str | None) -> None:
    got = exec.with_shim({"LD_PRELOAD": before, "X": "y"}, Path(shim), "/run/s", 2.5)
    wanted = {"LD_PRELOAD": after, "X": "y", "UVS_SOCKET": "/run/s", "UVS_TIMEOUT": "2.5", "UVS_RESTART": "2"}
    assert got == wanted | ({"LD_LIBRARY_PATH": search} if search else {})


def test_the_socket_is_named_from_the_root() -> None:
    assert exec.with_shim({}, Path("/a/preload.so"), "x/s", 1)["UVS_SOCKET"] == str(Path.cwd() / "x/s")
    with pytest.raises(UserError, match="107"):
        exec.with_shim({}, Path("/a/preload.so"), "/" + "x" * 107, 1)
    with pytest.raises(UserError, match="move uvs"):
        exec.with_shim({}, Path("/a:b/preload.so"), "/s", 1)


def test_the_shim_has_the_numbers_of_the_protocol() -> None:
    source = (ROOT / "csrc/preload.h").read_text() + (ROOT / "csrc/preload.c").read_text()
    numbers = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", source)}
    assert numbers["UVS_FAMILY"] == genetlink.UVS_ID
    assert numbers["IP_VS_FIRST"] == sockopt.BASE
    assert numbers["SOCKOPT_HEAD"] == sockopt.HEAD
    commands = {n.removeprefix("CMD_"): v for n, v in numbers.items() if n.startswith("CMD_")}
    attributes = {n.removeprefix("ATTR_"): v for n, v in numbers.items() if n.startswith("ATTR_")}
    assert len(commands) == len(attributes) == 5
    assert {n: int(extension.Cmd[n]) for n in commands} == commands
    assert {n: int(extension.Attr[n]) for n in attributes} == attributes


def test_the_shim_needs_libc_alone() -> None:
    """No Python in it, no more than what every program has."""
    listed = subprocess.run(
        ["readelf", "-d", exec.library()], capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"NEEDED.*\[(\w+)", listed)) <= {"libc", "libdl", "libpthread", "ld"}
