"""The application: its files, its events, whom it answers."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from starlette.testclient import TestClient
from support.elsewhere import ROOT
from support.schema import wrong
from support.web import recording

from uvs.web import app
from uvs.web.recorded import Recorded, parse

SCHEMA = json.loads((ROOT / "docs/reference/walk.schema.json").read_text())
FILES = sorted(path for path in app.STATIC.iterdir() if path.suffix in app.TYPES)


@pytest.fixture(scope="module")
def source() -> Recorded:
    return Recorded(parse(recording().splitlines(), "x"))


@pytest.fixture
def client(source: Recorded) -> TestClient:
    return TestClient(app.application(source), "http://127.0.0.1:8780")


def events(text: str) -> list[tuple[str, dict]]:
    found = re.findall(r"event: (\w+)\ndata: (.*)\n\n", text)
    assert "".join(f"event: {name}\ndata: {data}\n\n" for name, data in found) == text
    return [(name, json.loads(data)) for name, data in found]


def test_events(client: TestClient, source: Recorded) -> None:
    answer = client.get("/events")
    assert answer.headers["content-type"].startswith("text/event-stream")
    (first, hello), *walks, last = events(answer.text)
    assert first == "hello"
    assert set(hello) == {"live", "version", "meaning", "good"}
    assert set(hello["good"]) < set(hello["meaning"])
    assert not hello["live"]
    assert walks == [("walk", walk) for walk in source.walks]
    assert last == ("end", {"walks": 4})
    assert [fault for _, walk in walks for fault in wrong(SCHEMA, walk)] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files(client: TestClient, path) -> None:
    answer = client.get("/" if path.name == "index.html" else f"/{path.name}")
    assert (answer.status_code, answer.content) == (200, path.read_bytes())
    assert answer.headers["content-type"] == app.TYPES[path.suffix]
    for name, value in app.HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_is_from_elsewhere_and_no_script_inline(path) -> None:
    text = path.read_text()
    assert [u for u in re.findall(r"https?://[^\s\"']*", text) if u != "http://www.w3.org/2000/svg"] == []
    assert (
        re.findall(
            r"<script(?![^>]*\bsrc=)|\bon\w+=\"|\bstyle=\"|<style|innerHTML|insertAdjacentHTML|\beval\(", text
        )
        == []
    )
    for link in re.findall(r"(?:src|href)=\"([^\"#]+)\"|from \"\./([^\"]+)\"", text):
        assert (app.STATIC / "".join(link)).is_file(), link


# What is not there, whatever it is called.
@pytest.mark.parametrize(
    "path", ["/app.py", "/../app.py", "/%2e%2e/app.py", "/..%2fapp.py", "//etc/passwd", "/static/main.js", "/%00", "/index.html/"]
)  # fmt: skip
def test_no_other_file(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-security-policy"] == app.HEADERS["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_read_only(client: TestClient, method: str) -> None:
    assert {client.request(method, path).status_code for path in ("/", "/events", "/main.js")} == {405}


def test_the_key(source: Recorded) -> None:
    client = TestClient(app.application(source, "secret"), "http://127.0.0.1")
    assert client.get("/secret/").text.startswith("<!doctype html>")
    assert client.get("/secret/main.js").status_code == 200
    for path in (
        "/",
        "/main.js",
        "/events",
        "/secret",
        "/secre/",
        "/secrets/",
        "/%C3%A4/",
        "/secret/../events",
    ):
        assert client.get(path).status_code == 404, path


@pytest.mark.parametrize("key", ["", "secret"])
def test_a_path_without_a_slash(source: Recorded, key: str) -> None:
    """`OPTIONS * HTTP/1.1` (RFC 9112, 3.2.4), which TestClient cannot send."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "OPTIONS", "path": "*", "headers": [(b"host", b"127.0.0.1")]}
    asyncio.run(app.application(source, key)(scope, receive, send))
    assert sent[0]["status"] == 404


def test_a_page_that_is_closed_between_two_events_is_noticed(source: Recorded) -> None:
    """A write to it fails, and its server hears of that in the loop's next turn."""
    turns: list[int] = []

    async def look() -> None:
        turn = 0

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal turn
            turns.append(turn)

        async def count() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        counting = asyncio.create_task(count())
        scope = {
            "type": "http", "method": "GET", "path": "/events", "query_string": b"",
            "headers": [(b"host", b"127.0.0.1")], "asgi": {"spec_version": "2.3"},
        }  # fmt: skip
        await app.application(source)(scope, receive, send)
        counting.cancel()

    asyncio.run(look())
    walks = turns[2:7]  # behind the start and `hello`
    assert len(set(walks)) == len(walks) == 5


# Host; whether it is answered where only this machine should look
HOSTS = [
    ("127.0.0.1:8780", True), ("127.0.0.1", True), ("[::1]:8780", True), ("localhost:8780", True), ("LOCALHOST", True), ("192.0.2.1", True),
    ("evil.example:8780", False), ("localhost.evil.example", False), ("127.0.0.1.evil.example", False), ("", False),
]  # fmt: skip


@pytest.mark.parametrize(("host", "answered"), HOSTS)
def test_foreign_names(source: Recorded, host: str, answered: bool) -> None:
    for names in (False, True):
        client = TestClient(app.application(source, names=names), "http://127.0.0.1")
        expected = 200 if answered or names else 403
        assert client.get("/", headers={"Host": host}).status_code == expected
