"""Programs and Python functions in a host of a lab, run from outside."""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import select
import signal
import struct
import subprocess
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from uvs.errors import UserError
from uvs.lab import holder


class LabError(UserError):
    """The lab cannot be made or used: one line that says why and what to do."""


class Enterable(Protocol):
    """What of a lab is needed here."""

    def join(self, host: str | None, pid_namespace: bool = False) -> None:
        """Move the calling process into a host's namespaces."""

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of programs in the lab."""


class Daemon(NamedTuple):
    """A process started in the lab that outlives its starter."""

    host: str
    name: str
    pid: int

    def kill(self, number: int = signal.SIGKILL, timeout: float = 60) -> bool:
        """Send the signal and wait for its end; False if it still runs then."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            signal.pidfd_send_signal(fd, number)
            return bool(select.select([fd], [], [], timeout)[0])
        except ProcessLookupError:
            return True
        finally:
            os.close(fd)

    @property
    def running(self) -> bool:
        """Is it there (and not a zombie)?"""
        return running(self.pid)


class Member(NamedTuple):
    """A process of the lab: its PID outside and inside, the host it is in, its command line."""

    pid: int
    inside: int
    host: str
    argv: list[str]


INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what `uvs lab` ends by as by an exception


def fork() -> int:
    """os.fork() whose child has the default actions for INTERRUPTS.

    One that comes waits until it is done: in the middle of it Python would lose it, for it runs hooks there
    (os.register_at_fork; logging has some) and ignores what is raised in them.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid == 0:
            _default_actions()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _default_actions() -> None:
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


class Process(subprocess.Popen[Any]):
    """A Popen whose program runs in a host of the lab; signals go to the program itself.

    Between us and the program stands one process, which entered the lab's PID namespace for it. When that is
    killed the program is killed too.
    """

    def __init__(self, lab: Enterable, host: str | None, argv: Sequence[str], **popen: Any) -> None:
        reader, writer = os.pipe()
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)  # see fork()

        def enter() -> None:
            try:
                lab.join(host, pid_namespace=True)
                child = os.fork()
            except OSError as e:
                os.write(writer, struct.pack("=i", -(e.errno or errno.EPERM)))
                raise
            if child:
                os.write(writer, struct.pack("=i", child))
                _stand_by(child)
            holder.die_with_parent()
            _default_actions()
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        self.program = 0
        try:
            environment = lab.environment(popen.pop("env", None))
            try:
                super().__init__(list(argv), env=environment, preexec_fn=enter, **popen)
                entered = True
            except subprocess.SubprocessError:
                entered = False
            finally:
                os.close(writer)
            data = os.read(reader, 4)
            number = struct.unpack("=i", data)[0] if data else 0
            if not entered:
                why = os.strerror(-number) if number < 0 else "it was cut short"
                raise LabError(f"cannot enter the lab: {why}: is it gone, or another user's?")
            self.program = number
        finally:
            os.close(reader)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program in the lab."""
        if self.poll() is None and self.program:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.program, sig)


def _stand_by(child: int) -> None:
    """Wait for the program on behalf of Popen; end as it ends."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, 65536)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        how = os.WTERMSIG(status)
        if how != signal.SIGKILL:
            signal.signal(how, signal.SIG_DFL)
        os.kill(os.getpid(), how)
    os._exit(os.WEXITSTATUS(status))


class Call:
    """A Python function that runs in a host's network namespace, forked, with the lab's environment."""

    def __init__(self, lab: Enterable, host: str | None, function: Callable[..., Any], *args: Any) -> None:
        self._reader, writer = os.pipe()
        parent = os.getpid()
        self.pid = fork()
        if self.pid:
            os.close(writer)
            return
        try:
            os.close(self._reader)
            holder.die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            lab.join(host)
            os.environ.update(lab.environment())
            answer = (True, function(*args))
        except BaseException as e:
            answer = (False, _portable(e))
        try:
            with open(writer, "wb") as file:
                pickle.dump(answer, file)
        finally:
            os._exit(0)

    def result(self, timeout: float = 60) -> Any:
        """What the function returned (pickled); raises what it raised; TimeoutError, and it is ended."""
        if self._reader < 0:
            raise RuntimeError("the result was taken already")
        data = bytearray()
        deadline = time.monotonic() + timeout
        try:
            while True:
                if not select.select([self._reader], [], [], max(0, deadline - time.monotonic()))[0]:
                    os.kill(self.pid, signal.SIGKILL)
                    raise TimeoutError(f"no result within {timeout:g} s")
                chunk = os.read(self._reader, 1 << 16)
                if not chunk:
                    break
                data += chunk
        finally:
            self.close()
        if not data:
            raise LabError("a function called in the lab died without a result")
        done, value = pickle.loads(data)
        if not done:
            raise value
        return value

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _portable(e: BaseException) -> BaseException:
    """The exception with its traceback as a note, if it can be pickled; else one that tells it."""
    told = "".join(traceback.format_exception(e)).rstrip()
    try:
        pickle.loads(pickle.dumps(e))
        e.add_note(f"in the lab: {told}")
        return e
    except Exception:
        return LabError(told)


def running(pid: int) -> bool:
    """Is there such a process, and is it no zombie?"""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
