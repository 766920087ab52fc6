"""A director on paper as a process of its own, which a test can freeze, kill and start again.

python -m support.paper_director DIRECTORY      (serves DIRECTORY/control.sock until it is killed)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.control import running
from support.sandbox import wait_for

TESTS = Path(__file__).parents[1]


class PaperDirector:
    """Starts it, freezes it, ends it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.socket = directory / "control.sock"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "support.paper_director", self.directory],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)])},
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        stat = Path(f"/proc/{self.process.pid}/stat")
        wait_for(lambda: stat.read_text().rsplit(")", 1)[1].split()[0] == "T", "the director stands still")

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    with running(Path(sys.argv[1])):
        print("ready", flush=True)
        signal.pause()
