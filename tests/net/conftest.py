"""Labs with a running director, for each forwarding method and family.

    running   one lab per mode (module scope): real servers, director, HTTP and UDP echo services at the VIP
    family    4 and 6
    make_lab  makes further labs, removed at the module's end

and for tests of uvs.netfilter, which needs no lab (see support.netfilter):

    net       three hosts; the test is the director
    tap       a queue there, whose packets are written down

and for tests of the command `uvs lab`:

    ordinary  what is put before a command to run it as an ordinary user
    uvs       runs `uvs ARGUMENTS` so

The labs are in namespaces of their own: no privilege is needed and nothing collides.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.netfilter import Net, Tap
from support.ordinary import PATH, UVS, Command
from support.running import Running
from support.sandbox import wait_for

from uvs.lab import processes
from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, topology


@pytest.fixture(scope="module")
def make_lab() -> Iterator[Callable[..., Running]]:
    with ExitStack() as stack:

        def make(
            mode: str = "nat", servers: int = 3, services: bool = True, program: Sequence[str] = ()
        ) -> Running:
            running = Running(stack.enter_context(Lab.create(topology(mode, servers))), program)
            if services:
                processes.add_services(running.lab)
            return running

        yield make


@pytest.fixture(scope="module", params=MODES)
def running(request: pytest.FixtureRequest, make_lab: Callable[..., Running]) -> Running:
    return make_lab(request.param)


@pytest.fixture(params=[4, 6], ids=["IPv4", "IPv6"])
def family(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def net() -> Iterator[Net]:
    with closing(Net()) as made:
        yield made


@pytest.fixture
def tap(net: Net) -> Iterator[Tap]:
    made = Tap()
    with closing(made.driver):
        yield made


@pytest.fixture(scope="module")
def ordinary() -> Iterator[list[str]]:
    """What is put before a command to run it as an ordinary user, whoever runs the tests.

    In a user namespace in which we are user 1000 a command starts without any capability.
    """
    argv = ["unshare", "--user", "--map-user=1000", "--map-group=1000", "--", "sleep", "infinity"]
    with subprocess.Popen(argv) as sleeper:
        cmdline = Path(f"/proc/{sleeper.pid}/cmdline")
        wait_for(lambda: cmdline.read_bytes().startswith(b"sleep"), "the user namespace")
        enter = ["nsenter", "--preserve-credentials", f"--user=/proc/{sleeper.pid}/ns/user", "--"]
        rights = subprocess.check_output([*enter, "grep", "-E", "Uid|CapEff", "/proc/self/status"], text=True)
        assert rights.split() == ["Uid:", *["1000"] * 4, "CapEff:", "0" * 16]
        yield enter
        sleeper.kill()


@pytest.fixture
def uvs(ordinary: list[str], tmp_path: Path) -> Iterator[Command]:
    """Runs `uvs ARGUMENTS` as an ordinary user with a runtime directory of its own; no lab survives the test."""
    environment = os.environ | {"XDG_RUNTIME_DIR": str(tmp_path), "PATH": PATH}

    def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        argv = [*ordinary, *UVS, *arguments]
        return subprocess.run(argv, env=environment, input=stdin, capture_output=True, text=True, timeout=300)

    yield run
    if any(tmp_path.glob("uvs/lab/*.json")):
        run("lab", "down", "--all")
