"""`uvs` in a child of this process, which saves Python's start and that of scapy."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
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
        self._out = tempfile.TemporaryFile()
        self._err = self._out if together else tempfile.TemporaryFile()
        self.pid = enter.fork()
        if self.pid:
            self._fd = os.pidfd_open(self.pid)
            return
        status = 1
        try:
            os.chdir(folder)
            null = os.open(os.devnull, os.O_RDONLY)
            for number, fd in enumerate((null, self._out.fileno(), self._err.fileno())):
                os.dup2(fd, number)
            sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w")
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
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        return _text(self._out), None

    def kill(self) -> None:
        """End it, if it has not ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, signal.SIGKILL)


def _text(file: tempfile._TemporaryFileWrapper[bytes]) -> str:
    return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")
