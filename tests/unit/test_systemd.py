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


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [
        (None, None, None),
        ("30000000", None, 30.0),
        ("30000000", "own", 30.0),
        ("30000000", "1", None),  # meant for another process
        ("0", None, None),
        ("much", None, None),
        ("30000000", "me", None),
    ],
)
def test_is_this_process_watched(monkeypatch, usec, pid, seconds):
    for name, value in (("USEC", usec), ("PID", str(os.getpid()) if pid == "own" else pid)):
        monkeypatch.delenv(f"WATCHDOG_{name}", raising=False)
        if value is not None:
            monkeypatch.setenv(f"WATCHDOG_{name}", value)
    assert systemd.watchdog_s() == seconds


# What each thread has counted at each feeding, and is the watchdog told?
FEEDINGS = [
    ("no threads", [[], [], []], [True, True, True]),
    ("all go round", [[1, 1], [2, 9], [3, 10]], [True, True, True]),
    ("one stands still, then goes on", [[1, 1], [2, 1], [3, 1], [4, 2]], [True, False, False, True]),
    ("each in turn, but none for long", [[1, 1], [2, 1], [2, 2], [3, 3]], [True, False, True, True]),
]


@pytest.mark.parametrize(("turns", "told"), [row[1:] for row in FEEDINGS], ids=[row[0] for row in FEEDINGS])
def test_the_watchdog_is_fed_while_every_thread_goes_round(monkeypatch, turns, told):
    heard = []
    monkeypatch.setattr(systemd, "notify", lambda message, patience: heard.append(message))
    left = iter(turns)
    watchdog = systemd.Watchdog(30, lambda: next(left))
    for expected in told:
        watchdog.feed()
        assert heard == ["WATCHDOG=1"] * expected
        heard.clear()


def test_a_thread_that_stands_still_is_told_of_once(monkeypatch, caplog):
    monkeypatch.setattr(systemd, "notify", lambda message, patience: None)
    now, turns = [0.0], [[5, 5]]
    watchdog = systemd.Watchdog(20, lambda: turns[0], lambda: now[0])
    assert watchdog.period == 5
    for now[0] in range(0, 20, 5):
        turns[0] = [int(now[0]), 5]
        watchdog.feed()
    assert [r.getMessage() for r in caplog.records] == [
        "thread 1 of the queues has stood still for 10 s: the watchdog is told nothing more"
    ]
