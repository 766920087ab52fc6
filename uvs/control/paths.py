"""Where the control socket is, and which directories can be trusted with it."""

from __future__ import annotations

import os
import stat


def default_socket() -> str:
    """UVS_SOCKET, else /run/uvs/control.sock for root, else $XDG_RUNTIME_DIR/uvs/control.sock.

    Without a runtime directory (no login session, as in su or cron) it is /tmp/uvs-UID/control.sock: /tmp
    is sticky, the server takes only a directory that is its own and mode 0700, and the client looks
    at who answers, so that nobody else can stand in that place unnoticed.
    """
    if path := os.environ.get("UVS_SOCKET"):
        return path
    if os.geteuid() == 0:
        return "/run/uvs/control.sock"
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    directory = os.path.join(runtime, "uvs") if runtime else f"/tmp/uvs-{os.geteuid()}"
    return os.path.join(directory, "control.sock")


def private_directory(path: str) -> bool:
    """Make a directory, mode 0700, unless it exists; was it made? OSError if others could write to it."""
    try:
        os.makedirs(path, mode=0o700)
        return True
    except FileExistsError:
        found = os.stat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise NotADirectoryError(f"{path} is not a directory: move it away") from None
        others_write = found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX
        if found.st_uid not in (0, os.geteuid()) or others_write:
            raise PermissionError(
                f"{path} belongs to somebody else or is writable by others: chmod go-w it, or name another"
            ) from None
        return False
