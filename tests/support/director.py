"""A director as a process of its own, by `uvs run`."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.sandbox import wait_for
from uvs.lab.holder import die_with_parent

UVS = [sys.executable, "-m", "uvs.cli"]
ADM = [sys.executable, "-m", "uvs.adm.cli"]
PATIENCE_S = 60.0


class Director:
    """A director of the test's own, in the present namespaces; `usual`: where a director is if nothing is said.

    `limits`: RLIMIT_* and how much.
    """

    def __init__(
        self,
        where: Path,
        *arguments: str,
        usual: bool = False,
        env: Mapping[str, str] | None = None,
        limits: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.socket, self.state = where / "control.sock", where / "state"
        self._log = (where / f"log.{time.monotonic_ns()}").open("w+")
        places = ["--socket", str(self.socket), "--state-dir", str(self.state)]
        env = {**os.environ, **(env or {})}
        if usual:
            places, self.socket, self.state = [], Path("/run/uvs/control.sock"), Path("/run/uvs")
            env = {name: value for name, value in env.items() if not name.startswith("UVS_")}

        def prepare() -> None:
            die_with_parent()
            for which, most in limits:
                resource.setrlimit(which, (most, most))

        self.process = subprocess.Popen(
            [*UVS, "run", *places, *arguments],
            env=env,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            preexec_fn=prepare,
        )

    @property
    def said(self) -> str:
        return Path(self._log.name).read_text()

    def ready(self) -> Director:
        wait_for(lambda: " ready: " in self.said or self.process.poll() is not None, "ready", PATIENCE_S)
        assert self.process.poll() is None, self.said
        return self

    def ended(self) -> tuple[int, str]:
        return self.process.wait(PATIENCE_S), self.said

    def adm(self, *arguments: str) -> str:
        env = dict(os.environ, UVS_SOCKET=str(self.socket))
        done = subprocess.run([*ADM, *arguments], env=env, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def stop(self, sig: int = signal.SIGTERM) -> None:
        self.process.send_signal(sig)
        self.process.wait(PATIENCE_S)


@contextmanager
def directors() -> Iterator[Path]:
    """A directory for directors; those that still run at the test's end are killed."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)
