"""What a director leaves to its successor; that it works is shown by tests/net/test_restart.py."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from uvs import successor
from uvs.successor import VARIABLE, Estate, inherited


def leave(monkeypatch: pytest.MonkeyPatch, pid: int, queues: dict[str, int], control: int) -> None:
    monkeypatch.setenv(VARIABLE, json.dumps({"pid": pid, "queues": queues, "control": control}))


def test_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is taken once; what nobody takes is closed, and no child has any of it."""
    fds = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    for fd in fds:
        os.set_inheritable(fd, True)
    leave(monkeypatch, os.getpid(), {"4": fds[0], "5": fds[1]}, fds[2])
    estate = inherited()
    assert VARIABLE not in os.environ
    assert not any(os.get_inheritable(fd) for fd in fds)
    assert [estate.take_queue(4), estate.take_queue(4), estate.take_queue(6)] == [fds[0], -1, -1]
    assert [estate.take_control(), estate.take_control()] == [fds[2], -1]
    estate.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fds[1])
    for fd in (fds[0], fds[2]):
        os.close(fd)


@pytest.mark.parametrize("pid", [None, 1], ids=["first start", "a child's"])
def test_nothing_is_left(monkeypatch: pytest.MonkeyPatch, pid: int | None) -> None:
    if pid:
        leave(monkeypatch, pid, {"4": 0}, 0)
    assert inherited() == Estate()


@pytest.mark.parametrize(
    ("orig_argv", "program"),
    [
        (["python3", "/usr/bin/uvs", "run", "--queues", "2"], ["/usr/bin/uvs"]),
        (["python3", "-P", "-m", "uvs.cli", "run", "--queues", "2"], ["-P", "-m", "uvs.cli"]),
    ],
)
def test_the_command_line(monkeypatch: pytest.MonkeyPatch, orig_argv: list[str], program: list[str]) -> None:
    monkeypatch.setattr(sys, "orig_argv", orig_argv)
    monkeypatch.setattr(sys, "argv", ["x", "run", "--queues", "2"])
    done = []
    monkeypatch.setattr(os, "execve", lambda path, command, environment: done.append((path, command)))
    try:
        successor.become(Estate())
    finally:
        successor.release_signals()
    assert done == [(sys.executable, [sys.executable, *program, "run", "--queues", "2"])]


@pytest.mark.parametrize(
    ("program", "why"), [("print()", ""), ("raise ValueError('half')", "ValueError: half")]
)
def test_a_version_is_tried(monkeypatch: pytest.MonkeyPatch, program: str, why: str) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-c", program, "run"])
    monkeypatch.setattr(sys, "argv", ["-c", "run"])
    assert asyncio.run(successor.refusal()) == why
