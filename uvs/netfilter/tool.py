"""Running iptables, ipset and nft: one call takes a whole batch on standard input."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile

# An ordinary user's PATH often lacks the directories where these programs are.
SEARCH = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin"))
XTABLES_LOCK = "/run/xtables.lock"
TIMEOUT = 30.0


class NetfilterError(Exception):
    """Diverting packets is not possible; the message is one line that says what to do."""


class ToolError(Exception):
    """A program failed, or is not installed; the message is its own, in one line."""


def which(name: str) -> str | None:
    """Path of a program, looked for in PATH and in the system directories."""
    return shutil.which(name) or shutil.which(name, path=SEARCH)


@functools.cache
def _lock_directory() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="uvs-xtables-")


def environment() -> dict[str, str]:
    """The environment for the programs: C locale, and a lock file that legacy iptables can open.

    In a user namespace /run/xtables.lock belongs to the real root.
    """
    env = {**os.environ, "LC_ALL": "C"}
    lock = XTABLES_LOCK if os.path.exists(XTABLES_LOCK) else os.path.dirname(XTABLES_LOCK)
    if "XTABLES_LOCKFILE" not in env and not os.access(lock, os.W_OK):
        env["XTABLES_LOCKFILE"] = os.path.join(_lock_directory().name, "lock")
    return env


def run(*argv: str, batch: str | None = None) -> str:
    """Run a program, `batch` on its standard input; its output. Raises ToolError."""
    path = which(argv[0])
    if path is None:
        raise ToolError(f"{argv[0]} is not installed")
    try:
        done = subprocess.run(
            [path, *argv[1:]],
            input=batch if batch is not None else "",
            capture_output=True,
            text=True,
            env=environment(),
            timeout=TIMEOUT,
            check=False,
            process_group=0,  # Ctrl-C is for us: it must not cut short what puts rules in or out
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{argv[0]}: {error}") from None
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if not line.startswith("#")), f"exit status {done.returncode}")
        raise ToolError(said if argv[0] in said else f"{argv[0]}: {said}")
    return done.stdout
