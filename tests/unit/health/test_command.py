"""The command line of `uvs monitor`, and a monitor of its own process over a director on paper."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paper_director import PaperDirector
from support.sandbox import wait_for

from uvs.cli import main
from uvs.control.client import Client
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.layers import Health, id_of

KEY = ServiceKey(socket.AF_INET, socket.IPPROTO_TCP, socket.inet_aton("192.0.2.100"), 80)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "which configuration?"),
        (["--json", "--config", "x"], "--json goes with status"),
        (["status", "--config", "x"], "--config does not go with status"),
        (["forget", "--config", "x"], "--config does not go with forget"),
        (["forget", "--json"], "--json goes with status"),
        (["stop"], "invalid choice: 'stop'"),
    ],
)
def test_wrong_use(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["monitor", *words])
    except SystemExit as end:
        status = int(end.code or 0)
    assert (status, message in capsys.readouterr().err) == (2, True)


def test_no_director(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["monitor", "status", "--socket", str(tmp_path / "none")]) == 1
    assert str(tmp_path / "none") in capsys.readouterr().err


def test_a_wrong_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "uvs.toml"
    file.write_text("[[service]]\naddres = 1\n")
    assert main(["monitor", "--config", str(file)]) != 0
    assert "uvs.toml:2" in capsys.readouterr().err


@pytest.fixture
def director(tmp_path: Path) -> Iterator[PaperDirector]:
    it = PaperDirector(tmp_path)
    yield it
    it.kill()


def test_forget(director: PaperDirector, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody checks any more: servers that were taken out serve again, the fallback does not."""
    path = str(director.socket)
    quiet, removed, sorry = (
        DestSpec(socket.AF_INET, socket.inet_aton(f"198.51.100.{n}"), 80, weight=n) for n in (11, 12, 13)
    )
    with Client(path) as client:
        client.add_service(ServiceSpec(KEY))
        for spec, remove in ((quiet, False), (removed, True)):
            client.add_dest(KEY, spec)
            client.set_health(KEY, id_of(spec), Health(up=False, remove=remove))
        client.set_fallback(KEY, sorry)
        assert {d.spec.addr: d.spec.weight for d in client.dests(KEY)} == {quiet.addr: 0, sorry.addr: 13}
        assert main(["monitor", "forget", "--socket", path]) == 0
        assert capsys.readouterr().out == "forgotten: 2 servers are as they are configured\n"
        assert {d.spec.addr: d.spec.weight for d in client.dests(KEY)} == {quiet.addr: 11, removed.addr: 12}
    assert main(["monitor", "status", "--socket", path]) == 0


def test_a_process_of_its_own(
    director: PaperDirector, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It checks, reads its file again, tells a director that was restarted, and leaves what it told."""
    path, file = str(director.socket), tmp_path / "uvs.toml"
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.socket() as dead:
        dead.bind(("127.0.0.1", 0))
        ports = alive.getsockname()[1], dead.getsockname()[1]

        def write(fall: int) -> None:
            servers = "".join(f'[[service.server]]\naddress = "127.0.0.1:{port}"\n' for port in ports)
            check = f'[[service.check]]\ntype = "tcp"\ninterval = 0.1\nfall = {fall}\n'
            file.write_text(f'[[service]]\naddress = "192.0.2.100:80"\n{check}{servers}')

        def weights() -> dict[int, int]:
            with Client(path) as client:
                return {
                    dest.spec.port: row["effective"]
                    for dest in client.dests(KEY)
                    for row in client.get_health()
                    if row["server"].endswith(f":{dest.spec.port}")
                }

        write(3)
        with Client(path) as client:
            client.add_service(ServiceSpec(KEY))
            for port in ports:
                client.add_dest(KEY, DestSpec(socket.AF_INET, socket.inet_aton("127.0.0.1"), port))
        argv = [sys.executable, "-m", "uvs.cli", "monitor", "--config", str(file), "--socket", path]
        log = tmp_path / "log"
        with log.open("w") as out, subprocess.Popen(argv, stderr=out) as monitor:
            try:
                wait_for(lambda: weights() == {ports[0]: 1, ports[1]: 0}, lambda: log.read_text(), 60)
                assert main(["monitor", "status", "--socket", path]) == 1
                shown = capsys.readouterr().out
                assert f"127.0.0.1:{ports[1]}" in shown
                assert "tcp check: connection refused" in shown
                assert main(["monitor", "status", "--json", "--socket", path]) == 1
                rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
                assert [row["about"]["state"] for row in rows if row["server"].endswith(f":{ports[1]}")] == [
                    "FAULTED"
                ]

                file.write_text("[[service]]\nno = 1\n")
                monitor.send_signal(signal.SIGHUP)
                wait_for(lambda: "is not taken" in log.read_text(), lambda: log.read_text(), 60)
                write(5)
                monitor.send_signal(signal.SIGHUP)
                wait_for(
                    lambda: "is read again: 1 services, 2 servers, 2 checks" in log.read_text(),
                    lambda: log.read_text(),
                    60,
                )
                assert weights() == {ports[0]: 1, ports[1]: 0}
            finally:
                monitor.send_signal(signal.SIGTERM)
                assert monitor.wait(60) == 0
        assert (
            f"127.0.0.1:{ports[1]} is gone: tcp 192.0.2.100:80, tcp check: connection refused"
            in log.read_text()
        )
        assert weights() == {ports[0]: 1, ports[1]: 0}
        assert os.path.exists(path)
