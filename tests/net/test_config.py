"""A director that a configuration rules, with clients running all the time: reloads, drains, kill -9.

One lab for all: two transfers go on from the first reload to the last kill, and must arrive whole.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest
from support import clients
from support.running import TRANSFER_S, Running
from support.sandbox import wait_for

from uvs.control.client import Unreachable
from uvs.ipvs.spec import DestSpec
from uvs.lab import processes
from uvs.lab.topology import VIP

SIZE = 20_000_000
RELOADS_S, A_SECOND = float(os.environ.get("UVS_RELOADS_S", "10")), 10
PATIENCE_S = TRANSFER_S


class Ruled:
    """A lab whose director runs by a file; rs3's server is dead from the beginning."""

    def __init__(self, running: Running, file: Path) -> None:
        self.running, self.file = running, file

    @property
    def rips(self) -> list[str]:
        return [host.address(4) for host in self.running.lab.topology.servers]

    def write(self, scheduler: str = "rr", weights: tuple[int, ...] = (1, 1, 1), more: bool = False) -> None:
        """The file, renamed into place."""
        lines = [
            f"[sysctl]\ndrop_entry = {3 * more}\n[[service]]",
            f'address = "{VIP[4]}:80"',
            f'scheduler = "{scheduler}"',
        ]
        lines += ["[[service.check]]", 'type = "tcp"', "interval = 0.5", "rise = 1", "fall = 2"]
        for rip, weight in zip(self.rips, weights, strict=False):
            lines += ["[[service.server]]", f'address = "{rip}:80"', f"weight = {weight}"]
        if more:
            lines += ["[[service]]", "fwmark = 9", "[[service.server]]", f'address = "{self.rips[0]}"']
        new = self.file.with_suffix(".new")
        new.write_text("\n".join(lines))
        new.rename(self.file)

    def key(self):
        with closing(self.running.client()) as client:
            return next(e.spec.key for e in client.services() if e.spec.key.port == 80)

    def weights(self) -> dict[str, int]:
        key = self.key()
        with closing(self.running.client()) as client:
            found = {entry.spec.addr: entry.spec.weight for entry in client.dests(key)}
        return {rip: found[addr] for rip in self.rips if (addr := _packed(rip)) in found}

    def server(self, i: int) -> tuple[int, bytes, int]:
        return 2, _packed(self.rips[i]), 80


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


@pytest.fixture(scope="module")
def ruled(make_lab: Callable[..., Running], tmp_path_factory: pytest.TempPathFactory) -> Ruled:
    file = tmp_path_factory.mktemp("conf") / "uvs.toml"
    file.write_text("")
    running = make_lab(services=False, program=(*processes.UVS, "run", "--config", str(file)))
    it = Ruled(running, file)
    it.write()
    assert running.servers[2].kill()
    with closing(running.client()) as client:
        assert not any("fault" in row for row in client.reload())
    wait_for(lambda: it.weights()[it.rips[2]] == 0, "the checks' finding", PATIENCE_S)
    return it


def test_ten_reloads_a_second_lose_no_connection_and_revive_no_dead_server(ruled: Ruled) -> None:
    """While somebody else changes weights, deletes and adds by hand, and clients ask and transfer all the time."""
    running, end = ruled.running, threading.Event()
    meddled, wrong = [0], []

    def meddle() -> None:
        key = ruled.key()
        with closing(running.client()) as client:
            while not end.is_set():
                for spec in (
                    DestSpec(*ruled.server(meddled[0] % 3), weight=7),
                    DestSpec(*ruled.server(0), weight=0),
                ):
                    with suppress(OSError):
                        client.edit_dest(key, spec)
                with suppress(OSError):
                    client.add_dest(key, DestSpec(2, _packed("198.51.100.250"), 80, weight=0))
                    client.set_sysctl("drop_packet", "0")
                meddled[0] += 1
                time.sleep(0.03)

    def look() -> None:
        while not end.is_set():
            if ruled.weights().get(ruled.rips[2]) not in (0, None):
                wrong.append(ruled.weights())

    threads = [threading.Thread(target=work) for work in (meddle, look)]
    reloads = late = 0
    with running.transfers(SIZE, 4) as release:
        for thread in threads:
            thread.start()
        try:
            began = time.monotonic()
            with (
                closing(running.client()) as client,
                closing(
                    running.lab.begin("client", clients.parallel, VIP[4], int(20 * RELOADS_S), PATIENCE_S)
                ) as asking,
            ):
                while (now := time.monotonic() - began) < RELOADS_S:
                    ruled.write(*((("wlc", (3, 1, 2), True), ("rr", (1, 2, 3), False))[reloads % 2]))
                    assert not any("fault" in row for row in client.reload())
                    reloads += 1
                    if (ahead := reloads / A_SECOND - now) > 0:
                        time.sleep(ahead)
                    else:
                        late += 1
                answers = asking.result(PATIENCE_S)
        finally:
            end.set()
            for thread in threads:
                thread.join(PATIENCE_S)
        with closing(running.client()) as client:
            client.reload()
            assert client.diff() == []
            assert [entry.spec.key.port for entry in client.services()] == ([80, 0] if reloads % 2 else [80])
        release()
    assert wrong == []
    assert set(answers) <= {"rs1", "rs2"}
    assert len(answers) == int(20 * RELOADS_S)
    print(f"{reloads} reloads, {late} of them late, {meddled[0]} changes by hand")
    assert reloads > RELOADS_S


def test_a_file_that_is_wrong_changes_nothing_at_sighup_and_refuses_a_start(ruled: Ruled) -> None:
    running = ruled.running
    ruled.write()
    with closing(running.client()) as client:
        client.reload()
        before = ruled.weights()
        whole = ruled.file.read_text()
        ruled.file.write_text(whole.replace("weight = 1", "weight = -1", 1) + "\nx = 1\n")
        said = len(running.log())
        os.kill(running.director.pid, signal.SIGHUP)
        wait_for(lambda: "is not taken" in running.log()[said:], "the refusal", PATIENCE_S)
        assert "weight: -1: must be greater" in running.log()[said:]
        assert "x: no such key" in running.log()[said:]
        assert ruled.weights() == before
        ruled.file.write_text(whole.replace("weight = 1", "weight = 5", 1))
        os.kill(running.director.pid, signal.SIGHUP)
        wait_for(lambda: ruled.weights()[ruled.rips[0]] == 5, "the reload", PATIENCE_S)
        ruled.write()
        client.reload()


def test_a_drain_survives_kill_9_and_a_dead_server_stays_dead(ruled: Ruled) -> None:
    """A transfer goes on through it; the server is removed when that has ended, and stays out of reloads."""
    running = ruled.running
    key = ruled.key()
    with running.transfers(SIZE, 4) as release:
        with closing(running.client()) as client:
            busy = [i for i in (0, 1) if client.get_health()[i]["connections"]["active"]] or [0]
            drained = ruled.server(busy[0])
            rip = ruled.rips[busy[0]]
            client.drain(key, drained, deadline=3600)
            before = next(row for row in client.get_health() if row["drain"])
        assert running.director.kill()
        running.director = processes.start_director(running.lab, ("--config", str(ruled.file)))
        with closing(running.client()) as client:
            assert ruled.weights()[rip] == 0
            assert ruled.weights()[ruled.rips[2]] == 0
            (after,) = (row for row in client.get_health() if row["drain"])
            assert after["drain"] == before["drain"]
            assert (after["configured"], after["effective"]) == (1, 0)
            client.drain(key, drained, cancel=True)
            assert ruled.weights()[rip] == 1
            client.drain(key, drained)
        release()
    with closing(running.client()) as client:
        client.flush_conns()  # or one would wait for TIME_WAIT
        wait_for(lambda: rip not in ruled.weights(), "the end of the drain", PATIENCE_S)
        assert client.reload() == []
        assert rip not in ruled.weights()
        assert running.director.kill()
    running.director = processes.start_director(running.lab, ("--config", str(ruled.file)))
    assert rip not in ruled.weights()
    with closing(running.client()) as client:
        client.drain(key, drained, cancel=True)
    assert ruled.weights()[rip] == 1


def test_an_upgrade_in_place_goes_on_by_the_file(ruled: Ruled) -> None:
    """Unless the file is wrong: then there would be no director. Its checks begin anew, knowing who was down."""
    running = ruled.running
    whole = ruled.file.read_text()
    ruled.file.write_text(whole + "\nx = 1\n")
    said = len(running.log())
    os.kill(running.director.pid, signal.SIGUSR2)
    wait_for(lambda: "this director goes on" in running.log()[said:], "the refusal", PATIENCE_S)
    ruled.file.write_text(whole.replace("weight = 1", "weight = 6", 1))
    os.kill(running.director.pid, signal.SIGUSR2)
    wait_for(lambda: " ready: " in running.log()[said:], "the successor", PATIENCE_S)
    assert list(ruled.weights().values()) == [6, 1, 0]
    ruled.write()
    with closing(running.client()) as client:
        assert [row["sign"] for row in client.reload()] == ["~"]


def test_what_was_removed_while_the_director_was_down_is_gone(ruled: Ruled) -> None:
    """The saved state is loaded and converges to the file as it is by then."""
    assert ruled.running.director.kill()
    with pytest.raises(Unreachable):
        ruled.running.client()
    ruled.write(weights=(4, 5))
    ruled.running.director = processes.start_director(ruled.running.lab, ("--config", str(ruled.file)))
    assert list(ruled.weights().values()) == [4, 5]
