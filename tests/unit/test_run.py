"""What `uvs run` says of what it cannot do; its options are in test_cli.py."""

from __future__ import annotations

import pytest

from uvs.run import _explain

PRIVILEGE = "run it as root, or in a namespace of your own (uvs lab)"
FILES = "allow it more (ulimit -n, LimitNOFILE=), or fewer --queues"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            PermissionError(1, "cannot open a packet socket: no"),
            f"cannot open a packet socket: no: {PRIVILEGE}",
        ),
        (PermissionError(13, "Permission denied", "/run/uvs"), f"Permission denied (/run/uvs): {PRIVILEGE}"),
        (
            PermissionError("/x is writable by others: chmod go-w it"),
            "/x is writable by others: chmod go-w it",
        ),
        (OSError(20, "Not a directory", "/etc/passwd/x"), "Not a directory: /etc/passwd/x"),
        (OSError(28, "no space for arena /x", "/x"), "no space for arena /x"),
        (OSError(24, "Too many open files"), f"Too many open files: {FILES}"),
        (OSError(11, "cannot start a thread: no"), "cannot start a thread: no"),
    ],
)
def test_what_is_said_of_an_error(error, said):
    assert _explain(error) == said
