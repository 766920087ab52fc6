"""Telling the service manager."""

from __future__ import annotations

import os
import socket


def notify(message: str) -> None:
    """sd_notify(3), such as `READY=1`; nothing happens where nobody listens."""
    if address := os.environ.get("NOTIFY_SOCKET"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
            s.connect("\0" + address[1:] if address.startswith("@") else address)
            s.send(message.encode())
