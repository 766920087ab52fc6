"""Whom a client of the control socket does not obey."""

import os
import socket

import pytest

from uvs.control import connect as module
from uvs.control.connect import Unreachable


def test_somebody_else_s_socket_in_tmp_is_not_obeyed(tmp_path, monkeypatch):
    """/tmp/uvs-UID could have been made by anybody."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    monkeypatch.setattr(module.struct, "unpack", lambda code, data: (1, 4712, 1))
    with pytest.raises(Unreachable, match="belongs to user 4712"):
        module._trusted(ours, "/tmp/uvs-4711/control.sock")
    module._trusted(ours, str(tmp_path / "control.sock"))
    ours.close()
    theirs.close()
