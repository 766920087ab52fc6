"""Scrapes over HTTP: the director absent, slow, many readers at once."""

from __future__ import annotations

import errno
import http.client
import logging
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.control import running
from support.sandbox import wait_for

from uvs.control.client import Unreachable
from uvs.listen import bound
from uvs.metrics import serve
from uvs.metrics.ask import Answers, ask
from uvs.metrics.serve import Exporter, Server


def nobody() -> Answers:
    raise Unreachable(errno.ENOENT, "no director listens")


@contextmanager
def served(ask: Callable[[], Answers]) -> Iterator[int]:
    """The port of a server of it."""
    with Server(bound("127.0.0.1", 0), Exporter(ask)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join()


def get(port: int, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, str, str]:
    """Status, type and text."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.headers["Content-Type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers["Content-Type"], error.read().decode()


def test_a_scrape_and_what_is_none() -> None:
    with served(nobody) as port:
        status, kind, text = get(port)
        assert (status, text.splitlines()[-1]) == (200, "uvs_up 0.0")
        assert kind.startswith("text/plain; version=")
        assert get(port, "/metrics?x=1")[0] == 200
        assert get(port, Accept="application/openmetrics-text; version=1.0.0")[2].endswith("# EOF\n")
        assert get(port, method="HEAD") == (200, kind, "")
        assert "/metrics" in get(port, "/nosuch")[2]
        assert (get(port, "/nosuch")[0], get(port, "/")[0]) == (404, 200)
        assert get(port, method="POST")[0] == 501


def test_a_director_that_goes_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`uvs_up` says so; the log once for each change, whatever the number of scrapes."""
    caplog.set_level(logging.INFO, "uvs.metrics")
    path = str(tmp_path / "control.sock")
    with served(lambda: ask(path)) as port:

        def up() -> str:
            (line,) = [line for line in get(port)[2].splitlines() if line.startswith("uvs_up ")]
            return line

        for _ in range(2):
            assert [up(), up()] == ["uvs_up 0.0"] * 2
            with running(tmp_path):
                assert [up(), up()] == ["uvs_up 1.0"] * 2
    assert [r.event for r in caplog.records] == ["director absent", "director back"] * 2  # type: ignore[attr-defined]


def test_a_director_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scrape ends, with 0."""
    monkeypatch.setattr("uvs.metrics.ask.PATIENCE_S", 0.05)
    path = str(tmp_path / "control.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as hung:
        hung.bind(path)
        hung.listen(8)
        with served(lambda: ask(path)) as port:
            assert get(port)[2].splitlines()[-1] == "uvs_up 0.0"


def test_a_director_that_is_slow_to_say_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("uvs.metrics.ask.LIMIT_S", 0.0)
    with running(tmp_path) as director:
        director.do(lambda: director.world.server(director.world.service(), "198.19.0.1"))
        with served(lambda: ask(director.path)) as port:
            assert get(port)[2].splitlines()[-1] == "uvs_up 0.0"


def test_those_who_come_meanwhile_share_an_answer() -> None:
    """Six readers while the director is being asked for the first: it is asked once more for all of them."""
    asked: list[int] = []
    go = threading.Event()

    def slow() -> Answers:
        asked.append(1)
        assert go.wait(60)
        return nobody()

    looked = []

    def clock() -> float:
        looked.append(1)
        return float(len(looked))

    exporter = Exporter(slow, clock)
    threads = [threading.Thread(target=exporter.answers) for _ in range(7)]
    threads[0].start()
    wait_for(lambda: asked, "the first asks")
    for each in threads[1:]:
        each.start()
    wait_for(lambda: len(looked) == 8, "all have come: each has looked at the clock, the first twice")
    go.set()
    for each in threads:
        each.join(60)
    assert len(asked) == 2


def test_too_many_readers_are_turned_away_and_the_others_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers that ask for nothing hold no more than their share, and not for ever."""
    monkeypatch.setattr(serve._Handler, "timeout", 60)
    with served(nobody) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(serve.READERS_MAX)]

        def refused() -> bool:
            try:
                get(port)
            except (urllib.error.URLError, http.client.HTTPException, ConnectionError):
                return True
            return False

        wait_for(refused, "all places are taken")
        for each in idle:
            each.close()
        wait_for(lambda: not refused(), "there is room again")


def test_a_fault_of_ours_is_told(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Answers:
        raise ZeroDivisionError

    with served(broken) as port:
        assert get(port)[0] == 500
        assert get(port)[0] == 500
    assert caplog.records[0].getMessage() == "a scrape failed"
