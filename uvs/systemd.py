"""Telling the service manager."""

from __future__ import annotations

import contextlib
import os
import socket

PATIENCE_S = 1.0  # a manager that does not read must not keep packets waiting


def notify(message: str) -> None:
    """sd_notify(3), such as `READY=1`; nothing happens where nobody listens, or not any more."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s,
        ):
            s.settimeout(PATIENCE_S)
            s.connect("\0" + address[1:] if address.startswith("@") else address)
            s.send(message.encode())
