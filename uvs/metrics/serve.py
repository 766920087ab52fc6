"""Scrapes answered over HTTP: few at once, each bounded in time, the director asked by one at a time."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from uvs.control.client import Unreachable
from uvs.ipvs.spec import IpvsError
from uvs.metrics.ask import Answers, ask
from uvs.metrics.collect import samples
from uvs.metrics.exposition import OPEN_METRICS, TEXT, exposition, wants_open_metrics
from uvs.top.command import explain

log = logging.getLogger("uvs.metrics")

READERS_MAX = 8  # scrapes at once
PATIENCE_S = 10.0  # for a request, and for a reader that does not read

_PAGE = b"<!doctype html><title>uvs metrics</title><a href=metrics>metrics</a>\n"


class Exporter:
    """Asks for those who scrape.

    Whoever comes while the director is being asked waits, and takes what was asked after it came.
    """

    def __init__(self, ask: Callable[[], Answers] = ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask, self._clock = ask, clock
        self._lock = threading.Lock()
        self._answers: Answers | None = None
        self._asked = -1.0
        self._absent = ""

    def answers(self) -> Answers | None:
        """The director's; None: it does not answer."""
        came = self._clock()
        with self._lock:
            if self._asked < came:
                self._asked = self._clock()
                self._answers = self._take()
            return self._answers

    def _take(self) -> Answers | None:
        try:
            answers = self._ask()
        except (Unreachable, IpvsError) as error:
            if not self._absent:
                self._absent = explain(error)
                log.warning("no metrics: %s", self._absent, extra={"event": "director absent"})
            return None
        if self._absent:
            self._absent = ""
            log.info("the director answers again", extra={"event": "director back"})
        return answers


def encoded(answers: Answers | None, accept: str = "") -> tuple[bytes, str]:
    """The metrics, and their media type: OpenMetrics if that is accepted, else Prometheus' own."""
    open_metrics = wants_open_metrics(accept)
    return exposition(samples(answers), open_metrics), OPEN_METRICS if open_metrics else TEXT


class Server(ThreadingHTTPServer):
    """Listens on a socket that is open already."""

    daemon_threads = True

    def __init__(self, sock: socket.socket, exporter: Exporter) -> None:
        super().__init__(sock.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = sock
        self.exporter = exporter
        self._room = threading.BoundedSemaphore(READERS_MAX)

    def process_request(self, request: Any, client_address: Any) -> None:
        """A thread for each, unless there are too many."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """And its end."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A reader that went away is nothing to tell of; everything else is."""
        log.debug("a scrape was not finished", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    timeout = PATIENCE_S
    server: Server

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/metrics":
            try:
                text, kind = encoded(self.server.exporter.answers(), self.headers.get("Accept", ""))
            except Exception:
                log.exception("a scrape failed")
                self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"it failed: see the log\n", "text/plain")
                raise
            self._answer(HTTPStatus.OK, text, kind)
        elif path == "/":
            self._answer(HTTPStatus.OK, _PAGE, "text/html; charset=utf-8")
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is only /metrics\n", "text/plain")

    do_HEAD = do_GET

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "uvs"

    def log_message(self, format: str, *args: object) -> None:
        """Never a line a scrape."""
