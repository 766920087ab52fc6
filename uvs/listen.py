"""Where a program of ours listens for HTTP: parsed, opened, spelled."""

from __future__ import annotations

import errno
import ipaddress
import socket

from uvs.errors import UserError


def endpoint(given: str, example: str) -> tuple[str, int]:
    """ADDR:PORT, [ADDR]:PORT. UserError, which shows the `example`."""
    address, _, port = given.rpartition(":")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    try:
        if not (port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ValueError
        return str(ipaddress.ip_address(address)), int(port)
    except ValueError:
        port = example.rpartition(":")[2]
        raise UserError(f"--listen {given}: an address and a port, as {example} or [::1]:{port}", 2) from None


def bound(address: str, port: int) -> socket.socket:
    """A listening socket. UserError: taken, not ours, not allowed."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(64)
    except OSError as e:
        sock.close()
        more = (
            ": another program has it; --listen ADDR:PORT names another port"
            if e.errno == errno.EADDRINUSE
            else ""
        )
        raise UserError(f"cannot listen on {address} port {port}: {e.strerror}{more}") from None
    return sock


def url(sock: socket.socket, path: str = "") -> str:
    """Where a browser finds it: `http://127.0.0.1:8780/`, and `path` after that."""
    address, port = sock.getsockname()[:2]
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/{path}"
