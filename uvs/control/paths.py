"""Where the control socket is, and which directories can be trusted with it."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

SOCKET_MAX = 107  # bytes: sun_path without its NUL (unix(7))


def check_socket(path: str) -> None:
    """OSError ENAMETOOLONG if no socket can have this path."""
    if len(os.fsencode(path)) > SOCKET_MAX:
        text = (
            f"{path}: a socket's path has at most {SOCKET_MAX} bytes: choose another (--socket, UVS_SOCKET)"
        )
        raise OSError(errno.ENAMETOOLONG, text)


def default_socket() -> str:
    """UVS_SOCKET, else /run/uvs/control.sock for root, else $XDG_RUNTIME_DIR/uvs/control.sock.

    Without a runtime directory (no login session, as in su or cron) it is /tmp/uvs-UID/control.sock: /tmp
    is sticky, the server takes no directory that others may write to, and the client looks
    at who answers, so that nobody else can stand in that place unnoticed.
    """
    return os.environ.get("UVS_SOCKET") or usual_socket()


def usual_socket() -> str:
    """Where the socket is unless UVS_SOCKET says."""
    if os.geteuid() == 0:
        return "/run/uvs/control.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = os.path.join(runtime, "uvs") if runtime else f"/tmp/uvs-{os.geteuid()}"
    return os.path.join(directory, "control.sock")


def default_saved_directory() -> Path:
    """Where the saved table outlives a reboot: /var/lib/uvs for root, else $XDG_STATE_HOME/uvs."""
    if os.geteuid() == 0:
        return Path("/var/lib/uvs")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state", "uvs")


def state_directories(option: str | None) -> tuple[Path, Path]:
    """Where run state and the saved table are. `option`: --state-dir; it and UVS_STATE_DIR mean both.

    Else run state is in the socket's directory, and so is the saved table if UVS_SOCKET says another than the
    usual: what two directors on a machine have must not mix.
    """
    if given := option or os.environ.get("UVS_STATE_DIR"):
        return Path(given), Path(given)
    run = Path(default_socket()).parent
    usual = run in (Path(usual_socket()).parent, Path("/run/uvs"))
    return run, default_saved_directory() if usual else run


def private_directory(path: str, option: str, *, sticky: bool = False) -> bool:
    """Make a directory, mode 0700, unless it exists; was it made?

    OSError if others could put something in it; the text names `option`, which chooses another. `sticky`: one
    like /tmp will do, where others cannot replace a socket; a file that they put there would be believed.
    """
    try:
        os.makedirs(path, mode=0o700)
        return True
    except FileExistsError:
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{path} is not a directory: move it away") from None
        if found.st_uid not in (0, os.geteuid()):
            raise PermissionError(f"{path} belongs to somebody else: name another with {option}") from None
        if found.st_mode & 0o022 and not (sticky and found.st_mode & stat.S_ISVTX):
            raise PermissionError(
                f"{path} is writable by others: name another with {option}, or chmod go-w it"
            ) from None
        return False
