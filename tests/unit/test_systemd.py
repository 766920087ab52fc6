"""sd_notify: the service manager hears of it if it is there; if not, the director goes on."""

import contextlib
import os
import socket

import pytest

from uvs import systemd


@pytest.mark.parametrize("abstract", [False, True], ids=["path", "abstract"])
def test_it_is_heard(tmp_path, monkeypatch, abstract):
    name = f"@{tmp_path}" if abstract else str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", name)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        systemd.notify("READY=1")
        assert manager.recv(100) == b"READY=1"


def test_nobody_listens_any_more(tmp_path, monkeypatch):
    """A director that is told to stop by whoever started it, when that is gone: it exits with status 0."""
    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
    systemd.notify("STOPPING=1")
    os.unlink(path)
    systemd.notify("STOPPING=1")


def test_a_manager_that_does_not_read(tmp_path, monkeypatch):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setattr(systemd, "PATIENCE_S", 0.01)
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other,
    ):
        manager.bind(str(tmp_path / "notify"))
        other.connect(str(tmp_path / "notify"))
        other.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:
                other.send(b"x")
        systemd.notify("STOPPING=1")
