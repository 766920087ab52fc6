"""Where HTTP is served: what is typed, what is opened, what is shown."""

from __future__ import annotations

import socket

import pytest

from uvs.errors import UserError
from uvs.listen import bound, endpoint, url

EXAMPLE = "127.0.0.1:8780"

# --listen; address and port
ENDPOINTS = [
    ("127.0.0.1:80", ("127.0.0.1", 80)),
    ("[::1]:0", ("::1", 0)),
    ("0.0.0.0:65535", ("0.0.0.0", 65535)),
]


@pytest.mark.parametrize(("given", "expected"), ENDPOINTS)
def test_endpoints(given: str, expected: tuple[str, int]) -> None:
    assert endpoint(given, EXAMPLE) == expected


@pytest.mark.parametrize(
    "given",
    ["", "80", ":80", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "host:80", "1.2.3.4:-1", "1.2.3.4:²"],
)
def test_no_endpoint(given: str) -> None:
    with pytest.raises(UserError, match=r"as 127\.0\.0\.1:8780 or \[::1\]:8780") as error:
        endpoint(given, EXAMPLE)
    assert error.value.status == 2


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_is_shown_and_taken_once(address: str, host: str) -> None:
    with bound(address, 0) as sock:
        port = sock.getsockname()[1]
        assert url(sock, "key/") == f"http://{host}:{port}/key/"
        with pytest.raises(UserError, match="another program has it"):
            bound(address, port)
        assert sock.family == (socket.AF_INET6 if ":" in address else socket.AF_INET)
