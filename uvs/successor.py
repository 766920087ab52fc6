"""Upgrade in place (SIGUSR2): the process becomes the version that is installed now, and keeps its queues.

what goes over    how
----------------  ---------------------------------------------------------------------------
packets           the queues' sockets stay open, so that the kernel keeps what waits
rules             stay as they are, and are put in place anew by the successor
connections       the arena's file, as after a crash
services          the saved table, as after a crash
control clients   the listening socket stays; those connected now are let go, and come again
signals           wait until the successor knows them: until then they would kill it, and its rules would stay
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import NoReturn

VARIABLE = "UVS_SUCCESSOR"
SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2
PATIENCE_S = 20.0  # for the installed version to say its name


@dataclass(slots=True)
class Estate:
    """Descriptors that a director leaves to the next in this process: of queues by number, and of control."""

    queues: dict[int, int] = field(default_factory=dict)
    control: int = -1

    def fds(self) -> list[int]:
        """All of them."""
        return [fd for fd in (*self.queues.values(), self.control) if fd >= 0]

    def take_queue(self, number: int) -> int:
        """The socket of a queue, which is its taker's from now on; -1: there is none."""
        return self.queues.pop(number, -1)

    def take_control(self) -> int:
        """The listening socket of control clients, likewise."""
        fd, self.control = self.control, -1
        return fd

    def close(self) -> None:
        """What nobody took: of queues that there are no more."""
        for fd in self.fds():
            os.close(fd)
        self.queues.clear()
        self.control = -1


def inherited() -> Estate:
    """What this process's former self left; empty for a first start."""
    text = os.environ.pop(VARIABLE, "")
    if not text:
        return Estate()
    left = json.loads(text)
    if left.pop("pid") != os.getpid():  # a child's environment
        return Estate()
    estate = Estate({int(number): fd for number, fd in left["queues"].items()}, left["control"])
    for fd in estate.fds():
        os.set_inheritable(fd, False)
    return estate


async def refusal() -> str:
    """Why the installed version cannot take over; "" if it starts."""
    try:
        child = await asyncio.create_subprocess_exec(
            *_command(["--version"]), stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
    except OSError as error:
        return str(error)
    try:
        _, said = await asyncio.wait_for(child.communicate(), PATIENCE_S)
    except TimeoutError:
        child.kill()
        return f"it did not say its name in {PATIENCE_S:.0f} s"
    lines = said.decode(errors="replace").splitlines()
    return "" if child.returncode == 0 else lines[-1] if lines else f"status {child.returncode}"


def hold_signals() -> list[int]:
    """The list of those that come from now on, for `become`. What the loop does at them it goes on doing."""
    held: list[int] = []
    for number in SIGNALS:
        signal.signal(number, lambda number, _: held.append(number))
    return held


def release_signals() -> None:
    """They are handled from now on; those that came meanwhile too."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def become(estate: Estate, held: Iterable[int] = ()) -> NoReturn:
    """Execute the installed version by this one's command line; `held`: signals for it. Raises OSError."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    for number in set(held):
        signal.pthread_kill(
            threading.main_thread().ident or 0, number
        )  # execve() keeps what waits, and the mask
    for fd in estate.fds():
        os.set_inheritable(fd, True)
    environment = os.environ | {VARIABLE: json.dumps({"pid": os.getpid(), **asdict(estate)})}
    command = _command(_arguments())
    os.execve(command[0], command, environment)


def _at_run() -> int:
    return len(sys.orig_argv) - len(sys.argv) + 1


def _arguments() -> Iterable[str]:
    return sys.orig_argv[_at_run() :]


def _command(arguments: Iterable[str]) -> list[str]:
    """This interpreter and program, with other arguments."""
    return [sys.executable, *sys.orig_argv[1 : _at_run()], *arguments]
