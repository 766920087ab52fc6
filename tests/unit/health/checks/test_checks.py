"""Each kind of check against servers that answer well, and that misbehave on purpose."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support import misbehaving
from support.misbehaving import SHORT_S, check, full, nobody, saying, silent, slowly

from uvs.health.checks.base import Result


def told(result: Result) -> tuple[bool, str]:
    return result.ok, result.detail


def ask(handler: misbehaving.Handler, kind: str, **settings: Any) -> tuple[bool, str]:
    """A check against a TCP server of ours."""

    async def go() -> tuple[bool, str]:
        async with misbehaving.tcp(handler) as port:
            return told(await check(kind, port, **settings))

    return asyncio.run(go())


# ---------------------------------------------------------------------------- what all have in common


@pytest.mark.parametrize("kind", ["tcp", "http", "https", "smtp"])
def test_refused(kind: str) -> None:
    with nobody() as port:
        assert told(asyncio.run(check(kind, port))) == (False, "connection refused")


@pytest.mark.parametrize("kind", ["tcp", "http", "smtp"])
def test_not_accepted(kind: str) -> None:
    with full() as port:
        result = asyncio.run(check(kind, port, timeout=SHORT_S))
    assert told(result) == (False, "timed out after 0.3 s")
    assert SHORT_S <= result.duration < 30


@pytest.mark.parametrize("kind", ["http", "https", "smtp"])
def test_hung(kind: str) -> None:
    assert ask(silent, kind, timeout=SHORT_S) == (False, "timed out after 0.3 s")


def test_a_run_in_which_this_machine_stood_still_does_not_count() -> None:
    """As when the monitor's process was stopped: the server may have answered in time."""

    async def go() -> Result:
        async with misbehaving.tcp(silent) as port:
            running = asyncio.ensure_future(check("http", port, timeout=SHORT_S))
            await asyncio.sleep(0.05)
            time.sleep(SHORT_S * 2.5)
            return await running

    result = asyncio.run(go())
    assert (result.ok, result.counts) == (False, False)
    assert result.detail == "this machine was too busy for 0.3 s"


def test_a_run_for_which_this_machine_has_no_descriptor_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(asyncio, "open_connection", refuse)
    result = asyncio.run(check("tcp", 1))
    assert (result.ok, result.counts, result.detail) == (False, False, "too many open files")


# ---------------------------------------------------------------------------- tcp


def test_tcp() -> None:
    assert ask(silent, "tcp") == (True, "connected")


# ---------------------------------------------------------------------------- http

OK = b"HTTP/1.1 200 OK\r\nServer: rs1\r\nContent-Length: 4\r\n\r\nrs1\n"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nrs\r\n2\r\n1\n\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "settings", "expected"),
    [
        (OK, {}, (True, "status 200")),
        (OK, {"body": "rs1"}, (True, "status 200")),
        (OK, {"body": "^rs\\d\n$"}, (True, "status 200")),
        (CHUNKED, {"body": "^rs1$"}, (True, "status 200")),
        (OK, {"body": "rs2"}, (False, "status 200, but no 'rs2' in the body")),
        (OK, {"body": "rs1", "body_max": 2}, (False, "status 200, but no 'rs1' in the body")),
        (OK, {"header": {"server": "^rs"}}, (True, "status 200")),
        (OK, {"header": {"Server": "^nginx"}}, (False, "status 200, but Server: 'rs1' has no '^nginx'")),
        (OK, {"header": {"ETag": "."}}, (False, "status 200, but no header ETag")),
        (OK, {"status": [204, "300-399"]}, (False, "status 200")),
        (b"HTTP/1.0 200 OK\r\n\r\nrs1", {"body": "rs1"}, (True, "status 200")),
        (b"HTTP/1.1 302 Found\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", {}, (True, "status 302")),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, {}, (True, "status 200")),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", {}, (False, "status 503")),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", {"status": ["500-599"]}, (True, "status 503")),
        (b"", {}, (False, "closed without an answer")),
    ],
)  # fmt: skip
def test_http(answer: bytes, settings: dict[str, Any], expected: tuple[bool, str]) -> None:
    assert ask(saying(answer), "http", **settings) == expected


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ncut",
        b"HTTP/1.1 200 O",
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        bytes(range(256)),
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20000,
    ],
    ids=["cut body", "cut chunk", "cut head", "ssh", "garbage", "endless head"],
)
def test_http_that_is_not_whole(answer: bytes) -> None:
    ok, detail = ask(saying(answer), "http")
    assert not ok
    assert detail.startswith("no whole HTTP answer: ")


def test_http_that_is_slow() -> None:
    assert ask(slowly(OK), "http", timeout=SHORT_S) == (False, "timed out after 0.3 s")


def test_http_body_without_an_end_is_read_so_far_only() -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(65536))
            await writer.drain()

    assert ask(endless, "http") == (True, "status 200")


def test_the_request_that_is_sent() -> None:
    seen = bytearray()

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.extend(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)

    settings = {"method": "HEAD", "path": "/up?x", "host": "www.example", "headers": {"X-Check": "uvs"}}
    assert ask(note, "http", **settings)[0]
    lines = seen.decode().split("\r\n")
    assert lines[0] == "HEAD /up?x HTTP/1.1"
    assert {"host: www.example", "x-check: uvs", "connection: close"} <= {line.lower() for line in lines}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of www.example, with its key."""
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=www.example", "-addext", "subjectAltName=DNS:www.example",
         "-keyout", file, "-out", file.with_suffix(".crt")],
        check=True, capture_output=True,
    )  # fmt: skip
    file.write_bytes(file.read_bytes() + file.with_suffix(".crt").read_bytes())
    return file


def test_https(certificate: Path) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    names: list[str | None] = []
    context.sni_callback = lambda _sock, name, _context: names.append(name)
    trusted = {"ca_file": str(certificate.with_suffix(".crt"))}

    async def go() -> list[tuple[bool, str]]:
        async with misbehaving.tcp(saying(OK), context) as port:
            return [
                told(await check("https", port, **settings))
                for settings in (
                    {"verify": False},
                    {},
                    {"host": "www.example:443", **trusted},
                    {"sni": "www.example", **trusted},
                    {"host": "other.example", **trusted},
                    trusted,
                )
            ]

    insecure, unknown, by_host, by_sni, other, by_address = asyncio.run(go())
    assert insecure == by_host == by_sni == (True, "status 200")
    assert unknown == (False, "certificate: self-signed certificate")
    assert other[1].startswith("certificate: Hostname mismatch")
    assert by_address[1].startswith("certificate: IP address mismatch")
    assert names == [None, None, "www.example", "www.example", "other.example", None]


def test_https_where_there_is_no_tls() -> None:
    ok, detail = ask(saying(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "https")
    assert not ok
    assert detail.startswith("TLS: ")


def test_https_that_is_cut() -> None:
    ok, _ = ask(saying(b""), "https")
    assert not ok


# ---------------------------------------------------------------------------- smtp


def smtp(
    greeting: bytes = b"220 mail.example\r\n",
    ehlo: bytes = b"250-mail\r\n250 SIZE\r\n",
    quit_: bytes = b"221 bye\r\n",
) -> misbehaving.Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        for expected, answer in ((b"EHLO uvs.example\r\n", ehlo), (b"QUIT\r\n", quit_)):
            assert await reader.readline() == expected
            writer.write(answer)

    return handler


@pytest.mark.parametrize(
    ("server", "expected"),
    [
        (smtp(), (True, "220 mail.example")),
        (smtp(b"220-mail\r\n220-of\r\n220 example\r\n"), (True, "220 example")),
        (smtp(b"554 no service\r\n"), (False, "greeting: '554 no service'")),
        (smtp(b""), (False, "timed out after 0.3 s")),
        (smtp(ehlo=b"502 no\r\n"), (False, "EHLO: '502 no'")),
        (smtp(quit_=b"250 no\r\n"), (False, "QUIT: '250 no'")),
        (smtp(quit_=b""), (False, "QUIT: closed without an answer")),
        (smtp(b"220-x\r\n" * 101), (False, "greeting: an answer without an end")),
        (smtp(b"x" * 200000), (False, "greeting: a line without an end")),
        (smtp(b"HTTP/1.1 400 Bad\r\n"), (False, "greeting: 'HTTP/1.1 400 Bad'")),
        (smtp(b"2200\r\n"), (False, "greeting: '2200'")),
    ],
)  # fmt: skip
def test_smtp(server: misbehaving.Handler, expected: tuple[bool, str]) -> None:
    timeout = SHORT_S if "timed out" in expected[1] else misbehaving.LONG_S
    assert ask(server, "smtp", helo="uvs.example", timeout=timeout) == expected


# ---------------------------------------------------------------------------- udp


def ask_udp(server: Callable[[bytes], list[bytes]], kind: str, **settings: Any) -> tuple[bool, str]:
    async def go() -> tuple[bool, str]:
        async with misbehaving.udp(server) as port:
            return told(await check(kind, port, **settings))

    return asyncio.run(go())


@pytest.mark.parametrize(
    ("answer", "settings", "expected"),
    [
        (lambda data: [data], {"payload": "uvs", "expect": "^uvs$"}, (True, "answered 3 bytes")),
        (lambda data: [data], {"payload_hex": "00ff", "expect": "\\x00\\xff"}, (True, "answered 2 bytes")),
        (lambda data: [data + b"hi"], {}, (True, "answered 2 bytes")),
        (lambda data: [b"no"], {"expect": "yes"}, (False, "the answer has no 'yes': b'no'")),
        (lambda data: [], {"timeout": SHORT_S}, (True, "no error")),
        (lambda data: [], {"timeout": SHORT_S, "require_answer": True}, (False, "timed out after 0.3 s")),
        (lambda data: [], {"timeout": SHORT_S, "expect": "."}, (False, "timed out after 0.3 s")),
    ],
)  # fmt: skip
def test_udp(
    answer: Callable[[bytes], list[bytes]], settings: dict[str, Any], expected: tuple[bool, str]
) -> None:
    assert ask_udp(answer, "udp", **settings) == expected


def test_udp_to_a_port_where_nobody_is() -> None:
    with nobody(socket.SOCK_DGRAM) as port:
        assert told(asyncio.run(check("udp", port))) == (False, "connection refused")


# ---------------------------------------------------------------------------- dns


def record(kind: int, data: bytes, owner: bytes = b"\xc0\x0c") -> bytes:
    return owner + kind.to_bytes(2) + b"\0\1" + bytes(4) + len(data).to_bytes(2) + data


def dns(
    *records: bytes, rcode: int = 0, flags: int = 0x8000, change: Callable[[bytes], bytes] = lambda m: m
) -> Callable[[bytes], list[bytes]]:
    """Answers any query with these records."""

    def answer(query: bytes) -> list[bytes]:
        head = query[:2] + (flags | rcode).to_bytes(2) + query[4:6] + len(records).to_bytes(2) + bytes(4)
        return [change(head + query[12:] + b"".join(records))]

    return answer


A = record(1, socket.inet_aton("192.0.2.1"))
TWO = (record(5, b"\3web\xc0\x0c"), record(1, socket.inet_aton("192.0.2.2"), b"\3web\xc0\x0c"))


@pytest.mark.parametrize(
    ("answer", "settings", "expected"),
    [
        (dns(A), {}, (True, "rcode NOERROR, 1 A")),
        (dns(A), {"answer": "192.0.2.1"}, (True, "rcode NOERROR, 1 A")),
        (dns(A), {"answer": "192.0.2.9"}, (False, "no A 192.0.2.9 in the answer: 192.0.2.1")),
        (dns(), {"answer": "192.0.2.9"}, (False, "no A 192.0.2.9 in the answer: none")),
        (dns(*TWO), {"answer": "192.0.2.2"}, (True, "rcode NOERROR, 1 A")),
        (dns(record(28, bytes(15) + b"\1")), {"record": "AAAA", "answer": "0::1"}, (True, "rcode NOERROR, 1 AAAA")),
        (dns(record(15, b"\0\x0a\4mail\xc0\x0c")), {"record": "MX", "answer": "10 Mail.Example.Org."}, (True, "rcode NOERROR, 1 MX")),
        (dns(record(33, b"\0\1\0\2\0\x50\xc0\x0c")), {"record": "SRV", "answer": "1 2 80 example.org"}, (True, "rcode NOERROR, 1 SRV")),
        (dns(record(16, b"\3one\3two")), {"record": "TXT", "answer": "onetwo"}, (True, "rcode NOERROR, 1 TXT")),
        (dns(record(5, b"\6a\n\x1b[2J\0")), {"record": "CNAME", "answer": "b"}, (False, "no CNAME b in the answer: a??[2J")),
        (dns(rcode=2), {}, (False, "rcode SERVFAIL")),
        (dns(rcode=5), {"rcode": "REFUSED"}, (True, "rcode REFUSED, 0 A")),
        (dns(rcode=3), {"rcode": "NXDOMAIN"}, (True, "rcode NXDOMAIN, 0 A")),
        (dns(rcode=9), {}, (False, "rcode 9")),
        (dns(record(1, b"\1")), {}, (False, "no DNS answer: an address is broken")),
        (dns(record(5, b"\xc0\x0c\xc0")), {"record": "CNAME"}, (True, "rcode NOERROR, 1 CNAME")),
        (dns(A, change=lambda m: m[:-3]), {}, (False, "no DNS answer: it is cut")),
        (dns(A, change=lambda m: m[:12] + b"\5other" + m[18:]), {}, (False, "no DNS answer: it is about another question")),
        (dns(record(5, b"\xc0\x2a"), change=lambda m: m[:-2] + b"\xc0" + bytes([len(m) - 2])), {"record": "CNAME"}, (False, "no DNS answer: a name has no end")),
        (dns(flags=0), {}, (False, "no DNS answer: it is no answer to this query")),
        (dns(A, change=lambda m: m[:5]), {}, (False, "no DNS answer: it is short")),
        (dns(A, change=lambda m: bytes([m[0] ^ 1]) + m[1:]), {"timeout": SHORT_S}, (False, "timed out after 0.3 s")),
        (lambda query: [b"", b"\0", *dns(A)(query)], {}, (True, "rcode NOERROR, 1 A")),
        (lambda query: [], {"timeout": SHORT_S}, (False, "timed out after 0.3 s")),
    ],
)  # fmt: skip
def test_dns(
    answer: Callable[[bytes], list[bytes]], settings: dict[str, Any], expected: tuple[bool, str]
) -> None:
    assert ask_udp(answer, "dns", query="example.org", **settings) == expected


@pytest.mark.parametrize(
    ("cut", "expected"),
    [(None, (True, "rcode NOERROR, 1 A")), (1, (False, "closed without an answer")), (20, (False, "closed without an answer"))],
)  # fmt: skip
def test_dns_by_tcp(cut: int | None, expected: tuple[bool, str]) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        query = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        (answer,) = dns(A)(query)
        writer.write((len(answer).to_bytes(2) + answer)[:cut])

    assert ask(handler, "dns", query="example.org", transport="tcp") == expected


def test_dns_to_a_port_where_nobody_is() -> None:
    with nobody(socket.SOCK_DGRAM) as port:
        assert told(asyncio.run(check("dns", port, query="."))) == (False, "connection refused")


# ---------------------------------------------------------------------------- command


@pytest.mark.parametrize(
    ("command", "weight", "expected"),
    [
        ("exit 0", False, (True, "exit status 0", None)),
        ("exit 0", True, (True, "exit status 0", None)),
        ("exit 1", True, (False, "exit status 1", None)),
        ("exit 2", True, (True, "weight 0", 0)),
        ("exit 12", True, (True, "weight 10", 10)),
        ("exit 255", True, (True, "weight 253", 253)),
        ("exit 12", False, (False, "exit status 12", None)),
        ("kill -9 $$", True, (False, "ended by signal 9", None)),
        ("echo one; echo no disk >&2; exit 1", False, (False, "exit status 1: no disk", None)),
        ('test "$UVS_SERVICE" = "tcp 192.0.2.100:80" -a $UVS_SERVER = 127.0.0.1:7 -a $UVS_SERVER_PORT = 7', False, (True, "exit status 0", None)),
        (["true"], False, (True, "exit status 0", None)),
        (["./is/not/there"], False, (False, "exit status 127: ./is/not/there: No such file or directory", None)),
        ("yes | head -c 3000000; exit 0", False, (True, "exit status 0", None)),
    ],
)  # fmt: skip
def test_command(command: str | list[str], weight: bool, expected: tuple[bool, str, int | None]) -> None:
    result = asyncio.run(check("command", 7, command=command, weight=weight))
    assert (result.ok, result.detail, result.weight) == expected


def test_a_command_is_killed_at_its_time_out_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = f"sleep 1000 & echo $! > {file}; wait"
    result = asyncio.run(check("command", 7, command=command, timeout=1.0))
    assert not result.ok
    assert result.detail in ("timed out after 1 s", "killed at its time-out")
    pid = int(file.read_text())
    end = time.monotonic() + 30
    while time.monotonic() < end:  # it is somebody else's child by now, who may take a moment to bury it
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
                continue
        break
    else:
        pytest.fail("the child lives")


def test_a_child_that_goes_on_is_not_waited_for() -> None:
    begin = time.monotonic()
    result = asyncio.run(check("command", 7, command="sleep 20 & exit 0"))
    assert result.ok
    assert time.monotonic() - begin < 15


# ---------------------------------------------------------------------------- ping


def test_ping() -> None:
    result = asyncio.run(check("ping", 0))
    assert told(result) == (True, "answered") or not os.access("/proc/sys/net/ipv4/ping_group_range", os.R_OK)


def test_ping_of_an_address_of_which_there_is_no_way() -> None:
    result = asyncio.run(check("ping", 0, address="240.0.0.1", timeout=SHORT_S))
    assert not result.ok
