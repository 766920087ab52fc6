"""Running a command line of the configuration: bounded in time and output, with all its children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass

KEPT = 2048  # bytes of output that are kept; the rest is read and forgotten
EXIT_NOT_FOUND = 127  # as sh has it


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended. `status`: exit status, or None: a signal ended it, or we did at its time-out."""

    status: int | None
    output: str
    signal: int = 0

    @property
    def why(self) -> str:
        """For a log line: `exit status 3: no such host`."""
        how = f"exit status {self.status}"
        if self.status is None:
            how = f"ended by signal {self.signal}" if self.signal else "killed at its time-out"
        last = self.output.strip().splitlines()
        return f"{how}: {last[-1]}" if last else how


async def run(command: str | list[str], environment: Mapping[str, str], timeout: float) -> Finished:
    """Run it in a process group of its own, standard input empty.

    The group is killed at the time-out, or when this is cancelled. A text goes to `sh -c`, a list is run as
    it is.
    """
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    output = _Output(reader)
    try:
        try:
            os.set_blocking(writer, True)
            process = await asyncio.create_subprocess_exec(
                *argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                env=os.environ | environment,
                start_new_session=True,
            )
        except OSError as error:
            return Finished(EXIT_NOT_FOUND, f"{argv[0]}: {error.strerror}")
        finally:
            os.close(writer)
        try:
            async with asyncio.timeout(timeout):
                status = await process.wait()
        except TimeoutError:
            return Finished(None, output.text())
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await asyncio.shield(process.wait())
        return Finished(status, output.text()) if status >= 0 else Finished(None, output.text(), -status)
    finally:
        output.close()


class _Output:
    """What comes out of a pipe, read all the time: a child that keeps it open must not be waited for."""

    def __init__(self, fd: int) -> None:
        self._fd, self._kept = fd, b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        try:
            data = os.read(self._fd, 65536)
        except BlockingIOError:
            return False
        self._kept = (self._kept + data)[-KEPT:]
        if not data:
            self._loop.remove_reader(self._fd)
        return bool(data)

    def text(self) -> str:
        """The end of what was written."""
        for _ in range(16):  # a pipe's worth
            if not self._read():
                break
        return self._kept.decode(errors="replace")

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
