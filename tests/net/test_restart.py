"""The director is killed and started again: transfers complete, and the table is what it was."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from support import clients, vm
from support.director import ADM, UVS, Director, directors
from support.running import TRANSFER_S
from support.sandbox import sandboxed, wait_for
from support.world import packed

from uvs.control.client import Client, Unreachable
from uvs.director import DRIVERS
from uvs.ipvs.spec import ServiceKey, ServiceSpec
from uvs.lab import processes

SIZE = 20_000_000
SOME = 2_000_000
PATIENCE_S = TRANSFER_S


@pytest.mark.parametrize("direction", [clients.upload, clients.download], ids=["up", "down"])
def test_kill_in_mid_transfer(running, family, direction) -> None:
    """Held at 2 MB, the rest cannot have passed: it is more than the sockets' buffers take."""
    progress = clients.Progress(limit=SOME)
    transfer = running.lab.begin("client", direction, running.vip(family), SIZE, progress, PATIENCE_S)
    try:
        progress.wait(SOME)
        assert running.director.kill()
        said = len(running.log())
        try:
            progress.release()
            assert progress.stands_still() < SIZE - SOME, "packets of a service pass without the director"
        finally:  # the tests after this one have the same lab
            running.restart()
        assert re.search(r"ready: .*\b[1-9]\d* connections", running.log()[said:]), (
            "the table was not found again"
        )
        _, there, here = transfer.result(PATIENCE_S)
    finally:
        transfer.close()
    assert there == here


@pytest.mark.parametrize("drivers", [DRIVERS, DRIVERS[::-1]], ids="-".join)
def test_another_driver_comes_back(make_lab, drivers) -> None:
    """From then on TCP's packets come by another queue, one by one or many segments in one."""
    first, second = drivers
    running = make_lab(servers=1, program=(*processes.UVS, "run", "--driver", first))
    with running.transfers(SIZE, 4) as release:
        assert running.director.kill()
        processes.start_director(running.lab, ("--driver", second))
        release()


@pytest.mark.parametrize("driver", DRIVERS)
def test_upgrade_in_place(make_lab, driver) -> None:
    """SIGUSR2: the same process, another program; transfers go on, new connections are answered all the time.

    With the native driver not a packet is lost: the kernel keeps what comes meanwhile.
    """
    running = make_lab(servers=1, program=(*processes.UVS, "run", "--driver", driver))
    pid = running.director.pid
    with (
        running.transfers(SIZE, 4) as release,
        closing(running.lab.begin("client", clients.parallel, running.vip(4), 200, PATIENCE_S)) as asking,
    ):
        for number in (1, 2):
            os.kill(pid, signal.SIGUSR2)
            said = f"SIGUSR2.* ready: .*{' ready: .*' * (number - 1)}"
            wait_for(lambda said=said: re.search(said, running.log(), re.DOTALL), "the successor", PATIENCE_S)
        release()
        assert len(asking.result(PATIENCE_S)) == 200
    assert running.director.running
    with running.client() as client:
        rows = client.queues()
    assert [row["lost"] for row in rows] == [0] * len(rows)


@sandboxed
def test_a_version_that_does_not_start() -> None:
    """It is tried before anything is given up, and the director goes on."""
    with directors() as where:
        package = vm.environment(where)
        director = Director(where, env=package).ready()
        add(director, 80)
        (where / "uvs/cli.py").write_text("raise ImportError('half a version')")
        director.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: "does not start" in director.said, "the refusal", PATIENCE_S)
        assert "half a version" in director.said
        assert services(director) == {80}
        director.stop()
        assert director.said.count(" ready: ") == 1


@sandboxed
@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("sig", [signal.SIGUSR2, signal.SIGHUP], ids=lambda sig: sig.name)
def test_signals_while_it_goes_over(driver: str, sig: signal.Signals) -> None:
    """No moment in which a signal that a director knows means the death of the process."""
    with directors() as where:
        director = Director(where, "--driver", driver).ready()
        add(director, 80)
        director.process.send_signal(signal.SIGUSR2)
        end = time.monotonic() + PATIENCE_S
        while director.said.count(" ready: ") == 1 and time.monotonic() < end:
            director.process.send_signal(sig)
            time.sleep(0.001)
        assert director.process.poll() is None, director.said
        director.stop()
        assert director.process.returncode == 0


@sandboxed
def test_a_control_socket_that_somebody_cleared_away() -> None:
    """The successor listens anew."""
    with directors() as where:
        director = Director(where).ready()
        add(director, 80)
        director.socket.unlink()
        director.process.send_signal(signal.SIGUSR2)
        wait_for(lambda: director.said.count(" ready: ") == 2 or director.process.poll(), "it", PATIENCE_S)
        assert director.process.poll() is None, director.said
        assert services(director) == {80}
        director.stop()


@sandboxed
@pytest.mark.parametrize("after", ["SIGUSR2", "going over"])
def test_told_to_end_while_it_goes_over(after: str) -> None:
    """It ends, this one or its successor, and leaves no rule."""
    with directors() as where:
        director = Director(where).ready()
        add(director, 80)  # from now on there are rules
        director.stop()
        for delay in (0.0, 0.01, 0.05, 0.1, 0.2):
            director = Director(where).ready()
            director.process.send_signal(signal.SIGUSR2)
            if after == "going over":
                wait_for(lambda director=director: after in director.said, after, PATIENCE_S)
            time.sleep(delay)
            director.process.send_signal(signal.SIGTERM)
            code, said = director.ended()
            assert code == 0, said
            rules = subprocess.run(["iptables-save"], capture_output=True, text=True, timeout=PATIENCE_S)
            assert "uvs" not in rules.stdout.lower(), said


# ---------------------------------------------------------------- the saved table

VIP = packed("192.0.2.1")


def services(director: Director) -> set[int]:
    """The ports of the services that there are."""
    with Client(str(director.socket)) as client:
        return {entry.spec.key.port for entry in client.services()}


def add(director: Director, *ports: int) -> None:
    with Client(str(director.socket)) as client:
        for port in ports:
            client.add_service(ServiceSpec(ServiceKey(2, 6, VIP, port), "rr"))


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, timeout=PATIENCE_S)


def reboot() -> None:
    """What a new boot looks like from a mount namespace: another boot id, an empty /run."""
    mount("-t", "tmpfs", "none", "/run")
    fake = Path("/run/boot_id")
    fake.write_text(f"{uuid.uuid4()}\n")
    mount("--bind", str(fake), "/proc/sys/kernel/random/boot_id")


@contextmanager
def usual_places(size: str = "8m") -> Iterator[Path]:
    """A directory for logs; /run and /var/lib are the test's own."""
    mount("--make-rprivate", "/")
    mount("-t", "tmpfs", "-o", f"size={size}", "none", "/var/lib")
    reboot()
    with directors() as where:
        yield where


@sandboxed
def test_kill_while_services_are_added() -> None:
    """What was acknowledged is there, whenever the director is killed; and it goes on from that."""
    with directors() as where:
        director = Director(where).ready()
        acknowledged = 0
        for _ in range(4):
            enough = threading.Event()

            def flood(
                start: int = acknowledged, director: Director = director, enough: threading.Event = enough
            ) -> None:
                nonlocal acknowledged
                with suppress(Unreachable), Client(str(director.socket)) as client:
                    for port in range(start + 1, start + 10_000):
                        client.add_service(ServiceSpec(ServiceKey(2, 6, VIP, port), "rr"))
                        acknowledged = port
                        if port > start + 20:
                            enough.set()

            client = threading.Thread(target=flood)
            client.start()
            assert enough.wait(PATIENCE_S)
            director.stop(signal.SIGKILL)
            client.join()
            director = Director(where).ready()
            there = services(director)
            assert set(range(1, acknowledged + 1)) <= there <= set(range(1, acknowledged + 2))
            assert "damaged" not in director.said
            acknowledged = max(there)
        director.stop()


@sandboxed
def test_a_reboot() -> None:
    """At the usual places: nothing comes back, as with ip_vs, and the log says how it would; then it does."""
    with usual_places() as where:
        saved = Path("/var/lib/uvs")

        director = Director(where, usual=True).ready()
        add(director, 80, 81)
        director.stop()
        director = Director(where, usual=True).ready()
        assert services(director) == {80, 81}, "a restart"
        director.stop(signal.SIGKILL)

        reboot()
        director = Director(where, usual=True).ready()
        assert services(director) == set()
        (line,) = (text for text in director.said.splitlines() if "boot" in text)
        assert "--restore-at-boot" in line
        assert str(saved / "table.before-boot") in line
        add(director, 82)
        director.stop(signal.SIGKILL)

        for _ in range(2):
            reboot()
            director = Director(where, "--restore-at-boot", usual=True).ready()
            assert services(director) == {82}
            assert "boot" not in director.said
            director.stop()


@sandboxed
def test_a_full_disk_then_room() -> None:
    """Changes are acknowledged and in force; once there is room they are saved."""
    with usual_places("1m") as where:
        director = Director(where, usual=True).ready()
        add(director, 80)
        filler = Path("/var/lib/filler")
        with suppress(OSError), filler.open("wb", buffering=0) as f:
            while True:
                f.write(bytes(4096))
        add(director, *range(1000, 1100))  # more than what is left of a page
        assert len(services(director)) == 101
        assert director.said.count("No space left on device") == 1
        filler.unlink()
        wait_for(lambda: "the table is saved again" in director.said, "the log line", PATIENCE_S)
        director.stop(signal.SIGKILL)
        director = Director(where, usual=True).ready()
        assert services(director) == {80, *range(1000, 1100)}
        director.stop()


@sandboxed
def test_a_place_that_cannot_be_written() -> None:
    """A director goes on without: what was saved is in force, and the log says that changes are not kept."""
    with usual_places() as where:
        director = Director(where, usual=True).ready()
        add(director, 80)
        director.stop()
        mount("-o", "remount,ro", "/var/lib")
        director = Director(where, usual=True).ready()
        assert services(director) == {80}
        add(director, 81)
        assert services(director) == {80, 81}
        assert director.said.count("cannot be saved to /var/lib/uvs/table: Read-only file system") == 1
        director.stop()


# ---------------------------------------------------------------- who may


@pytest.mark.skipif(os.geteuid() != 0, reason="to become somebody else takes root")
@sandboxed
def test_a_member_of_the_group_controls_the_director() -> None:
    """By uvsadm and by an unmodified ipvsadm; somebody else does not get as far as the socket."""

    def act(groups: str, *command: str) -> subprocess.CompletedProcess[str]:
        # Python may lie in root's home: it may be read, which does not help to connect.
        read = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
        who = ["setpriv", "--reuid", "1001", "--regid", "1001", "--groups", groups, *read]
        env = {**os.environ, **package, "UVS_SOCKET": str(director.socket)}
        return subprocess.run(
            [*who, *command], env=env, capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )

    with usual_places() as where:
        package = vm.environment(where)  # an editable one would be built again, by whom may not write there
        director = Director(where, "--control-group", "4242", usual=True).ready()
        done = act("7,4242", *ADM, "-A", "-t", "192.0.2.1:80", "-s", "rr")
        assert done.returncode == 0, done.stderr
        ipvsadm = shutil.which("ipvsadm", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        assert ipvsadm, "scripts/test installs it"
        done = act("7,4242", *UVS, "exec", "--", ipvsadm, "-Ln")
        assert "192.0.2.1:80" in done.stdout, done.stderr
        done = act("7", *ADM, "-Ln")
        assert done.returncode != 0
        assert "--control-group" in done.stderr
        director.stop()
