"""This machine, asked for real: what an ordinary user may ask, and its own director."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from support.control import running
from support.machine import QUEUE

from uvs.doctor.host import Address, Director, Knock
from uvs.doctor.system import System, is_director
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec


def test_the_machine_s_own_director_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "control.sock"))
    assert "no director listens" in str(System().director())
    with running(tmp_path) as director:
        director.ipvs.queues = lambda: [QUEUE]
        key = ServiceKey(socket.AF_INET, 6, socket.inet_aton("192.0.2.100"), 80)
        with director.client() as client:
            client.add_service(ServiceSpec(key, "rr"))
            client.add_dest(key, DestSpec(socket.AF_INET, socket.inet_aton("198.51.100.11"), 80))
        told = System().director()
        assert isinstance(told, Director)
        assert told.queues == [QUEUE]
        assert told.table.items() >= director.ipvs.table.info().items()
        ((entry, dests),) = told.services
        assert (entry.spec.key, len(dests), told.conns) == (key, 1, [])


def test_what_is_known_of_addresses_and_routes() -> None:
    system = System()
    assert Address("lo", "127.0.0.1", 8) in system.addresses()
    assert (route := system.route("127.0.0.1"))
    assert (route.local, route.device, route.gateway) == (True, "lo", None)
    assert system.offloads("lo") <= {"lro", "gro"}
    assert system.offloads("none-such") == frozenset()
    assert system.synchronized() in (True, False, None)


def test_programs_and_files() -> None:
    system = System()
    assert system.output("echo", "hello") == "hello\n"
    assert system.output("false") is None
    assert system.output("no-such-program-of-uvs") is None
    assert system.read("/no/such/file") is None
    assert "lo" in system.names("/proc/sys/net/ipv4/conf")
    assert system.knock([]) == {}


def test_what_cannot_be_sent_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """No packet socket, for instance."""

    def refuse(*_: object) -> socket.socket:
        raise PermissionError(1, "Operation not permitted")

    knock = Knock(socket.inet_aton("192.0.2.100"), 80, socket.inet_aton("127.0.0.1"), 9, 3)
    with monkeypatch.context() as patched:
        patched.setattr("uvs.health.checks.forward.check", refuse)
        assert System().knock([knock]) == {}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        ("uvs run", True),
        ("/usr/bin/python3 /usr/local/bin/uvs run --queues 2", True),
        ("python3 -P -m uvs.cli run", True),
        ("uvs doctor", False),
        ("uvs", False),
        ("uvsadm run", False),
        ("grep uvs run", True),  # as good as can be told
        ("", False),
    ],
)
def test_who_is_a_director(argv: str, expected: bool) -> None:
    assert is_director(argv.split()) is expected
