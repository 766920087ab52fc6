"""`uvs web` over a director that has traffic: its packets' walks and its tables come as events; a foreign host sees nothing."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.running import Running
from support.sandbox import wait_for

from uvs.control.client import Client
from uvs.lab.processes import UVS

ADDRESS = "127.0.0.1:8780"


@pytest.fixture(scope="module")
def lab(make_lab: Callable[..., Running]) -> Running:
    return make_lab("nat")


@pytest.fixture
def page(lab: Running) -> Iterator[str]:
    pipe = subprocess.PIPE
    argv = [*UVS, "web", "--listen", ADDRESS]
    with lab.lab.popen("director", argv, stdout=pipe, stderr=pipe, text=True) as process:
        yield process.stdout.readline().strip()
        process.terminate()
        process.wait(60)
        assert process.stderr.read() == ""


def test_events_of_a_running_director(lab: Running, page: str) -> None:
    def until(name: str, meant: Callable[[Any], bool] = lambda _: True) -> Any:
        """The data of the next such event."""
        for line in reader.stdout:
            if line == f"event: {name}\n":
                data = json.loads(reader.stdout.readline().removeprefix("data: "))
                if meant(data):
                    return data
        raise AssertionError(f"no event {name}")

    curl = ["curl", "-sN", "-m", "60", f"{page}events"]
    with lab.lab.popen("director", curl, stdout=subprocess.PIPE, text=True) as reader:
        state = until("state")
        assert {service["port"] for service in state["services"]} >= {80}
        assert all(service["servers"] for service in state["services"])
        assert lab.lab.check("client", ["curl", "-s", "-m", "20", "http://192.0.2.100/"]).startswith("rs")
        walk = until("walk", lambda data: data["packet"].endswith(":80 S"))
        assert (walk["hook"], walk["why"]) == ("LOCAL_IN", "forwarded")
        assert {"layer": "IPv4", "field": "dst"}.items() <= walk["sent"][0]["changes"][1].items()
        state = until("state", lambda data: data["connections"])
        (conn,) = [c for c in state["connections"] if c["virtual"]["port"] == 80]
        assert conn["protocol"] == "TCP"
        assert conn["ms"] > 0
        reader.terminate()
    with lab.client() as client:  # the reader has gone: nothing is recorded any more
        wait_for(lambda: not recorded_now(lab, client), "the director records still")


def recorded_now(lab: Running, client: Client) -> list[str]:
    """What a request leaves with the recorder."""
    client.walks()
    lab.lab.check("client", ["curl", "-s", "-m", "20", "http://192.0.2.100/"])
    return client.walks()


def test_only_this_machine_reaches_it(lab: Running, page: str) -> None:
    key = page.removeprefix(f"http://{ADDRESS}/")
    reached = ["curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}"]
    assert lab.lab.run("director", [*reached, page]).stdout == "200"
    assert lab.lab.run("director", [*reached, f"http://{ADDRESS}/"]).stdout == "404", "not without the key"
    assert lab.lab.run("client", [*reached, f"http://192.0.2.100:8780/{key}"]).returncode == 7, "refused"
