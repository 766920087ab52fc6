"""A program on a terminal of its own: keys in, the screen out (pyte stands for the terminal)."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

import pyte

from support.sandbox import wait_for

PATIENCE_S = 60.0


class Terminal:
    """Runs a program on a pseudo-terminal as its controlling one, and reads what it draws."""

    def __init__(
        self, argv: Sequence[str], env: Mapping[str, str], columns: int = 100, lines: int = 30
    ) -> None:
        self.screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self.screen)
        self.written = b""  # all of it, as it came
        self.master, slave = pty.openpty()
        self.slave = slave  # held open, so that what the program leaves of it can be looked at
        self.resize(columns, lines)
        self.attributes = termios.tcgetattr(slave)
        # COLUMNS and LINES, which pytest-xdist sets, would be believed rather than the terminal.
        own = {name: value for name, value in env.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            argv, stdin=slave, stdout=slave, stderr=slave, env={**own, "TERM": "xterm-256color"},
            start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )  # fmt: skip

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)

    def resize(self, columns: int, lines: int) -> None:
        """Another size, as of a window; the program is told by SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self.screen.resize(lines, columns)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self.master, keys.encode())

    def read(self, seconds: float = 0.05) -> None:
        """Take what has been drawn."""
        end = time.monotonic() + seconds
        while select.select([self.master], [], [], max(0.0, end - time.monotonic()))[0]:
            try:
                data = os.read(self.master, 65536)
            except OSError:  # EIO: nobody has it open any more
                return
            self.written += data
            self._stream.feed(data)

    @property
    def lines(self) -> list[str]:
        """The screen's lines, without the blanks at their ends."""
        return [line.rstrip() for line in self.screen.display]

    def shows(self, *words: str) -> list[str]:
        """Wait until one line of the screen has all words; returns the screen's lines."""
        return self.wait(lambda: any(all(word in line for word in words) for line in self.lines), repr(words))

    def wait(self, condition: Callable[[], bool], what: str) -> list[str]:
        """Wait for a condition of the screen; the test shows the screen if it does not come."""

        def met() -> bool:
            self.read()
            return condition()

        wait_for(met, lambda: "\n".join([what, "screen:", *self.lines]), PATIENCE_S)
        return self.lines

    def end(self) -> int:
        """Wait until the program is gone; its exit status."""

        def gone() -> bool:
            self.read()
            return self.process.poll() is not None

        wait_for(gone, lambda: "\n".join(["it does not end; screen:", *self.lines]), PATIENCE_S)
        self.read()
        return self.process.returncode

    def kill(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)
