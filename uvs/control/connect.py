"""Connecting to a director's control socket: why it cannot be done, and what to do."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time

from uvs.control.paths import check_socket


class Unreachable(OSError):
    """No director answers; the text says why and what to do."""


def connect(path: str, timeout: float) -> socket.socket:
    """A connected socket. Unreachable."""
    try:
        check_socket(path)
    except OSError as e:
        raise Unreachable(e.errno, e.strerror) from None
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout)
    end = time.monotonic() + timeout
    try:
        while True:
            try:
                sock.connect(path)
                _trusted(sock, path)
                return sock
            except BlockingIOError:  # Linux: the listener's backlog is full
                if time.monotonic() >= end:
                    raise TimeoutError from None
                time.sleep(0.02)
    except Unreachable:
        sock.close()
        raise
    except (FileNotFoundError, ConnectionRefusedError):
        sock.close()
        raise Unreachable(
            errno.ENOENT,
            f"no director listens on {path}: start one with `uvs run`, or set UVS_SOCKET to its socket",
        ) from None
    except TimeoutError:
        sock.close()
        raise Unreachable(
            errno.ETIMEDOUT, f"the director at {path} does not answer: is it stopped?"
        ) from None
    except PermissionError:
        sock.close()
        raise Unreachable(
            errno.EACCES,
            f"no permission for {path}: only root, the director's own user, and the user and group that"
            " `uvs run --control-user`, `--control-group` named may control it",
        ) from None
    except OSError as e:
        sock.close()
        raise Unreachable(e.errno, f"cannot connect to {path}: {e.strerror or e}") from None


def _trusted(sock: socket.socket, path: str) -> None:
    """In /tmp anybody could have made the socket: only root's and our own are obeyed."""
    _, uid, _ = struct.unpack("=iII", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    if path.startswith("/tmp/uvs-") and uid not in (0, os.geteuid()):
        raise Unreachable(errno.EPERM, f"{path} belongs to user {uid}: not obeyed; set UVS_SOCKET")
