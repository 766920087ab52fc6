"""`uvs top` and the counters behind it, with a director that has traffic: rates, losses, reasons; a killed director."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable

import pytest
from support.running import Running
from support.sandbox import wait_for

from uvs.lab.namespaces import SOCKET
from uvs.lab.processes import RUN, UVS

PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Running]) -> Running:
    """One server is quiesced, one service has none."""
    it = make_lab("nat")
    it.uvsadm("-e", "-t", "192.0.2.100:80", "-r", "198.51.100.12", "-m", "-w", "0")
    it.uvsadm("-A", "-t", "192.0.2.100:99", "-s", "wlc")
    return it


def requests(lab: Running, count: int, port: int = 80) -> None:
    url = f"http://192.0.2.100:{port}/"
    lab.lab.run("client", ["curl", "-s", "-m", "1", *[url] * count])


def look(lab: Running) -> dict:
    return json.loads(lab.lab.check("director", [*UVS, "top", "--once", "--json"]))


def test_counters_of_queues(lab: Running) -> None:
    """What came is counted once, by the fast path or the other; the fast path's share is the driver's."""

    def counted() -> dict[str, int]:
        names = ("packets", "fast", "slow", "lost", "cut", "refused", "unsaid", "errors")
        return {name: sum(queue[name] for queue in look(lab)["queues"]) for name in names}

    before = counted()
    requests(lab, 10)
    came = {name: count - before[name] for name, count in counted().items()}
    assert came["packets"] >= 20, "a request and an answer each"
    assert came["fast"] + came["slow"] == came["packets"]
    assert came["fast"] > came["slow"] if "native" in RUN else came["fast"] == 0
    assert [came[name] for name in ("lost", "cut", "refused", "unsaid", "errors")] == [0] * 5


def test_reasons(lab: Running) -> None:
    before = look(lab)["reasons"]
    requests(lab, 3, port=99)
    assert look(lab)["reasons"]["no_dest"] >= before["no_dest"] + 3


def test_doctor_judges_the_running_director(lab: Running) -> None:
    told = lab.lab.run("director", [*UVS, "doctor"]).stdout
    assert "queue dropping: the running director's queues have lost no packet" in told
    assert re.search(r"table full: it never was: \d+ of \d+ records", told)


def test_on_a_terminal(lab: Running) -> None:
    """Rates of what passes, why packets are dropped; a director that is killed and started again is followed."""
    from support.terminal import Terminal

    env = {**os.environ, "UVS_SOCKET": str(lab.lab.path(SOCKET))}
    with Terminal([*UVS, "top", "--interval", "0.5"], env, 100, 40) as terminal:
        terminal.shows("▾ TCP 192.0.2.100:80 rr")

        def rate(name: str, column: int) -> int:
            (line,) = [line for line in terminal.lines if f"{name} " in line]
            return int(line.split()[column])

        def traffic() -> bool:
            requests(lab, 20)
            requests(lab, 1, port=99)
            terminal.read()
            return rate("TCP 192.0.2.100:80", -5) > 0 and any(
                "no_dest" in x and "/s)" in x for x in terminal.lines
            )

        wait_for(traffic, lambda: "\n".join(terminal.lines), PATIENCE_S)
        assert rate("TCP 192.0.2.100:80", -2) > rate("TCP 192.0.2.100:80", -4) > 0, "more bytes than packets"
        assert rate("-> 198.51.100.12:80", -5) == 0, "the quiesced server has none"
        terminal.shows("queue ", "packets/s", "nothing lost")
        terminal.type("p")
        terminal.shows("sorted by packets a second")

        assert lab.director.kill()
        terminal.shows("NO ANSWER for")
        assert "TCP 192.0.2.100:80" in "\n".join(terminal.lines)
        lab.restart()
        terminal.wait(lambda: "NO ANSWER" not in terminal.lines[0], "it is followed")
        terminal.shows("TCP 192.0.2.100:80")
        terminal.type("q")
        assert terminal.end() == 0
