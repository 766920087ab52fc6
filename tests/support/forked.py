"""`uvs` in a child of this process, which saves Python's start and that of scapy."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from uvs.cli import main
from uvs.lab import enter, registry


class Forked:
    """`uvs WORDS` in `folder`; the labs that it knows are recorded in `labs`. As much of Popen as is needed here.

    `together`: standard error goes where standard output goes.
    """

    def __init__(self, words: list[str], folder: Path, labs: Path, together: bool = True) -> None:
        self._out = os.memfd_create("out")
        self._err = self._out if together else os.memfd_create("err")
        self.pid = enter.fork()
        if self.pid:
            self._fd = os.pidfd_open(self.pid)
            return
        status = 1
        try:
            os.chdir(folder)
            null = os.open(os.devnull, os.O_RDONLY)
            for number, fd in enumerate((null, self._out, self._err)):
                os.dup2(fd, number)
            sys.stdin, sys.stdout, sys.stderr = (os.fdopen(fd, mode) for fd, mode in enumerate("rww"))
            registry.directory = lambda: labs
            status = main(words)
        except SystemExit as e:
            status = e.code if isinstance(e.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)

    def said(self, words: str, timeout: float) -> bool:
        """Wait until its standard error has these words; False: it ended without, or the time is up."""
        end = time.monotonic() + timeout
        while words not in _text(self._err):
            if select.select([self._fd], [], [], 0.01)[0] or time.monotonic() > end:
                return words in _text(self._err)
        return True

    def communicate(self, timeout: float) -> tuple[str, None]:
        """What it printed until its end. subprocess.TimeoutExpired: it has not ended."""
        if not select.select([self._fd], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("uvs", timeout)
        os.waitpid(self.pid, 0)
        out = _text(self._out)
        for fd in {self._fd, self._out, self._err}:
            os.close(fd)
        return out, None

    def send_signal(self, number: int) -> None:
        """To the process, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def kill(self) -> None:
        """End it, if it has not ended."""
        self.send_signal(signal.SIGKILL)


def _text(fd: int) -> str:
    return os.pread(fd, 1 << 24, 0).decode(errors="replace")
