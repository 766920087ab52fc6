"""`uvs top` on a terminal, with a director on paper behind it: keys, sizes, a director that stops, goes, comes back.

With traffic: tests/net/test_top.py.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.paper_director import PaperDirector
from support.terminal import Terminal

UVS = (sys.executable, "-P", "-m", "uvs.cli")
UVSADM = (sys.executable, "-P", "-m", "uvs.adm.cli")
SERVICES = """\
-A -t 198.18.0.100:80 -s rr
-a -t 198.18.0.100:80 -r 198.19.0.11:80 -m -w 3
-a -t 198.18.0.100:80 -r 198.19.0.12:80 -m -w 0
-A -u 198.18.0.100:53 -s wlc
-a -u 198.18.0.100:53 -r 198.19.0.11:53 -i
-A -t 198.18.0.101:25 -s sed
"""
WEB, DNS, MAIL = "TCP 198.18.0.100:80", "UDP 198.18.0.100:53", "TCP 198.18.0.101:25"


@pytest.fixture
def director(tmp_path: Path) -> Iterator[PaperDirector]:
    paper = PaperDirector(tmp_path)
    try:
        yield paper
    finally:
        paper.kill()


def restore(director: PaperDirector, lines: str) -> None:
    subprocess.run(
        [*UVSADM, "-R"], input=lines, text=True, check=True, env=environment(director), timeout=120
    )


def environment(director: PaperDirector) -> dict[str, str]:
    return {**os.environ, "UVS_SOCKET": str(director.socket)}


@pytest.fixture
def top(director: PaperDirector) -> Iterator[Callable[..., Terminal]]:
    """Starts the view; ends it."""
    open_: list[Terminal] = []

    def start(
        columns: int = 100, lines: int = 30, interval: str = "0.1", services: str = SERVICES
    ) -> Terminal:
        restore(director, services)
        terminal = Terminal([*UVS, "top", "--interval", interval], environment(director), columns, lines)
        open_.append(terminal.__enter__())
        terminal.shows("uvs top: sorted by name")
        return terminal

    yield start
    for terminal in open_:
        terminal.__exit__(None, None, None)


def rows(terminal: Terminal) -> list[str]:
    """Names of the services and servers that are to be seen."""
    found = (re.match(r"(?:[▸▾] (\w+ \S+)|  -> (\S+))", line) for line in terminal.lines)
    return [match[1] or match[2] for match in found if match]


ALL = [WEB, "198.19.0.11:80", "198.19.0.12:80", MAIL, DNS, "198.19.0.11:53"]


def becomes(terminal: Terminal, expected: list[str]) -> None:
    terminal.wait(lambda: rows(terminal) == expected, f"rows {expected}")


def test_what_there_is(top: Callable[..., Terminal]) -> None:
    terminal = top()
    becomes(terminal, ALL)
    terminal.shows("3 services, 3 servers, 0 connections")
    terminal.shows("▾ TCP 198.18.0.100:80 rr", " 3 ")
    terminal.shows("198.19.0.12:80", "Masq", " 0 ")
    terminal.shows("198.19.0.11:53", "Tunnel")
    terminal.shows("dropped: nothing")
    terminal.shows("q Quit")


def test_keys(top: Callable[..., Terminal]) -> None:
    """Sort, filter, fold, pause; each has its effect, and is undone by its counterpart."""
    terminal = top()
    becomes(terminal, ALL)
    terminal.type("n")
    terminal.shows("sorted by name, reversed")
    becomes(terminal, [DNS, "198.19.0.11:53", MAIL, WEB, "198.19.0.12:80", "198.19.0.11:80"])
    for key, what in (
        ("c", "connections a second"),
        ("p", "packets a second"),
        ("b", "bytes a second"),
        ("n", "name"),
    ):
        terminal.type(key)
        terminal.shows(f"sorted by {what};")
    becomes(terminal, ALL)
    terminal.type("/")
    terminal.shows("words of a service or server")
    terminal.type("quit 53")  # are no commands now
    becomes(terminal, [])
    terminal.type("\x1b")
    becomes(terminal, ALL)
    terminal.type("/")
    terminal.shows("words of a service or server")
    terminal.type("TCP 0.12")
    becomes(terminal, [WEB, "198.19.0.12:80"])
    terminal.type("\r")
    terminal.shows("only tcp 0.12;")
    terminal.type("\x1b")
    becomes(terminal, ALL)
    terminal.type("x")
    becomes(terminal, [WEB, MAIL, DNS])
    terminal.type("\r")
    becomes(terminal, [*ALL[:3], MAIL, DNS])
    terminal.type("x")
    becomes(terminal, ALL)


def test_pause(top: Callable[..., Terminal], director: PaperDirector) -> None:
    """What is shown stays, then what came in between is there."""
    terminal = top()
    becomes(terminal, ALL)
    terminal.type(" ")
    terminal.shows("PAUSED")
    restore(director, "-A -t 198.18.0.102:443\n")
    terminal.read(1.0)
    assert rows(terminal) == ALL
    terminal.type(" ")
    becomes(terminal, [*ALL[:4], "TCP 198.18.0.102:443", *ALL[4:]])


def test_the_chosen_row_stays_chosen(top: Callable[..., Terminal], director: PaperDirector) -> None:
    """Whatever comes before it; it is drawn in reverse."""

    def chosen() -> str:
        for y, line in enumerate(terminal.lines):
            if terminal.screen.buffer[y][0].reverse and line[:1] in "▸▾ ":
                return line
        return ""

    terminal = top()
    becomes(terminal, ALL)
    terminal.type("\x1b[B" * 3)  # down
    terminal.wait(lambda: MAIL in chosen(), "the third service is chosen")
    restore(director, "-A -t 198.18.0.1:443\n")
    terminal.shows("TCP 198.18.0.1:443")
    terminal.wait(lambda: MAIL in chosen(), "it still is")
    terminal.type("\x1b[F")  # end
    terminal.wait(lambda: "198.19.0.11:53" in chosen(), "the last is chosen")


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (40, 12), (200, 60)])
def test_sizes(top: Callable[..., Terminal], columns: int, lines: int) -> None:
    """Another size, and back."""
    terminal = top()
    becomes(terminal, ALL)
    terminal.resize(columns, lines)
    os.killpg(terminal.process.pid, signal.SIGWINCH)
    terminal.wait(lambda: any(line.startswith("▾ TCP 198.18.") for line in terminal.lines), "rows")
    terminal.resize(100, 30)
    os.killpg(terminal.process.pid, signal.SIGWINCH)
    terminal.shows("Forward Weight Active")
    becomes(terminal, ALL)


def test_a_director_that_goes_and_comes_back(top: Callable[..., Terminal], director: PaperDirector) -> None:
    """Told with the reason; the last figures stay, and it is followed."""
    terminal = top()
    becomes(terminal, ALL)
    director.kill()
    terminal.shows("NO ANSWER for", "no director listens")
    assert rows(terminal) == ALL
    director.start()  # a new one, without services
    becomes(terminal, [])
    terminal.wait(lambda: not any("NO ANSWER" in line for line in terminal.lines), "no more of its absence")
    terminal.type("q")
    assert terminal.end() == 0


def test_a_director_that_is_stopped(top: Callable[..., Terminal], director: PaperDirector) -> None:
    """Keys have their effect all the same, quitting too."""
    terminal = top()
    becomes(terminal, ALL)
    director.freeze()
    try:
        terminal.shows("NO ANSWER for", "is the director stopped?")
        terminal.type("x")
        becomes(terminal, [WEB, MAIL, DNS])
        terminal.type("q")
        assert terminal.end() == 0
    finally:
        director.thaw()


ENDS = [
    ("q", lambda terminal: terminal.type("q")),
    ("Ctrl-C", lambda terminal: terminal.type("\x03")),
    ("Ctrl-C while a filter is typed", lambda terminal: (terminal.type("/"), terminal.shows("words of"), terminal.type("\x03"))),
    ("SIGINT", lambda terminal: terminal.kill(signal.SIGINT)),
    ("SIGTERM", lambda terminal: terminal.kill(signal.SIGTERM)),
    ("SIGHUP", lambda terminal: terminal.kill(signal.SIGHUP)),
]  # fmt: skip


@pytest.mark.parametrize("end", [e[1] for e in ENDS], ids=[e[0] for e in ENDS])
def test_it_leaves_the_terminal_as_it_was(
    top: Callable[..., Terminal], end: Callable[[Terminal], object]
) -> None:
    terminal = top()
    becomes(terminal, ALL)
    assert termios.tcgetattr(terminal.slave) != terminal.attributes
    end(terminal)
    assert terminal.end() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.attributes
    on = set(re.findall(rb"\x1b\[\?(\d+)h", terminal.written)) - {b"25", b"7", b"2026"}
    off = set(re.findall(rb"\x1b\[\?(\d+)l", terminal.written))
    assert on <= off, "modes that were set and not reset"
    assert b"1049" in on, "the alternate screen"
    assert terminal.written.rfind(b"\x1b[?25h") > terminal.written.rfind(b"\x1b[?25l"), (
        "the cursor is to be seen"
    )
    assert b"Traceback" not in terminal.written


def test_no_director(tmp_path: Path) -> None:
    """One line, and nothing of the view."""
    with Terminal([*UVS, "top"], {**os.environ, "UVS_SOCKET": str(tmp_path / "none")}, 200) as terminal:
        assert terminal.end() == 1
        assert terminal.written.startswith(b"uvs top: no director listens on ")
        assert terminal.written.count(b"\n") == 1
        assert b"\x1b" not in terminal.written


def test_thousands_of_services(top: Callable[..., Terminal]) -> None:
    """Only what is to be seen is drawn; the end is a key away, and so is any service."""
    many = "".join(
        f"-A -t 10.0.{i >> 8}.{i & 255}:80 -s rr\n-a -t 10.0.{i >> 8}.{i & 255}:80 -r 198.19.0.11:80 -m\n"
        for i in range(2000)
    )
    terminal = top(services=many, interval="2")
    terminal.shows("2000 services, 2000 servers")
    drawn = len(terminal.written)
    terminal.type("\x1b[F")
    terminal.shows("TCP 10.0.7.207:80")
    assert len(terminal.written) - drawn < 100_000
    terminal.type("/")
    terminal.shows("words of a service or server")
    terminal.type("10.0.3.77:")
    becomes(terminal, ["TCP 10.0.3.77:80", "198.19.0.11:80"])
