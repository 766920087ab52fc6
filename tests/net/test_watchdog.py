"""The service manager's watchdog: fed by a director whose loop and threads go round, and by no other. Its log is JSON."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.director import Director, directors
from support.sandbox import sandboxed, wait_for

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
LIMIT_S = 4  # a thread without packets goes round once a second
_libc = ctypes.CDLL(None, use_errno=True)


@contextmanager
def standing_still(thread: int) -> Iterator[None]:
    """One thread of a process is held by ptrace(2), the others go on."""

    def ptrace(request: int) -> None:
        null = ctypes.c_void_p(0)
        if _libc.ptrace(ctypes.c_long(request), ctypes.c_long(thread), null, null):
            raise OSError(ctypes.get_errno(), f"ptrace {request:#x}")

    ptrace(PTRACE_SEIZE)
    ptrace(PTRACE_INTERRUPT)
    os.waitpid(thread, WALL)
    yield
    ptrace(PTRACE_DETACH)


def threads(pid: int, name: str) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sorted(int(task.name) for task in tasks if (task / "comm").read_text() == f"{name}\n")


def heard(manager: socket.socket) -> list[bytes]:
    """What has been said and not read yet."""
    found = []
    while select.select([manager], [], [], 0)[0]:
        found.append(manager.recv(100))
    return found


@sandboxed
def test_it_is_fed_by_what_goes_round() -> None:
    """Each thread of two, the loop, and an upgrade in place."""
    with directors() as where, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(where / "notify"))
        manager.settimeout(60)
        env = {"NOTIFY_SOCKET": str(where / "notify"), "WATCHDOG_USEC": str(LIMIT_S * 1_000_000)}
        director = Director(where, "--queues", "2", "--log-format", "json", env=env).ready()
        pid = director.process.pid
        assert manager.recv(100) == b"READY=1"
        assert manager.recv(100) == b"WATCHDOG=1"
        workers = threads(pid, "uvs-worker")
        assert len(workers) == 2
        for thread in (*workers, pid):
            with standing_still(thread):
                heard(manager)
                if thread == pid:
                    time.sleep(LIMIT_S / 2)  # twice as long as from one time to the next
                else:
                    which = f"thread {workers.index(thread)} of the queues has stood still"
                    wait_for(lambda which=which: which in director.said, which, 60)
                # One may have been on its way: the threads had gone round once more when it was stopped.
                assert len(heard(manager)) <= 1
            assert manager.recv(100) == b"WATCHDOG=1"
        director.process.send_signal(signal.SIGUSR2)
        said = []
        while said[-1:] != [b"READY=1"] and b"READY=1" not in said:
            said.append(manager.recv(100))
        assert b"RELOADING=1" in said
        assert manager.recv(100) == b"WATCHDOG=1"  # by the successor, the process is the same
        director.stop()
        assert b"STOPPING=1" in heard(manager)
        assert director.process.returncode == 0
        rows = [json.loads(line) for line in director.said.splitlines()]
        assert [row["event"] for row in rows if "event" in row] == ["ready", "handing over", "ready"]
        assert {row["component"] for row in rows} == {"director"}
