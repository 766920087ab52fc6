"""Labs with a running director, for each forwarding method and family.

    running   one lab per mode (module scope): real servers, director, HTTP and UDP echo services at the VIP
    family    4 and 6
    make_lab  makes further labs, removed at the module's end

The labs are in namespaces of their own: no privilege is needed and nothing collides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import pytest

from uvs.control.client import Client
from uvs.lab import processes
from uvs.lab.namespaces import SOCKET, Lab
from uvs.lab.topology import MODES, VIP, topology


class Running:
    """A lab whose director runs."""

    def __init__(self, lab: Lab, program: Sequence[str] = ()) -> None:
        """`program`: what to run as the director, instead of the usual one."""
        self.lab = lab
        processes.start_servers(lab)
        if program:
            self.director = lab.start("director", "uvs", program, notify=True)
        else:
            self.director = processes.start_director(lab)

    @property
    def mode(self) -> str:
        return self.lab.topology.mode

    def vip(self, family: int) -> str:
        return VIP[family]

    def uvsadm(self, *arguments: str) -> str:
        return processes.uvsadm(self.lab, *arguments)

    def client(self) -> Client:
        """A connection to the director's control socket, from outside the lab."""
        return Client(str(self.lab.path(SOCKET)))

    def restart(self) -> None:
        """Start a director that was killed."""
        self.director = processes.start_director(self.lab)

    def mac(self, host: str, device: str = "eth0") -> str:
        line = self.lab.check(host, ["ip", "-o", "link", "show", "dev", device])
        return line.partition("link/ether ")[2].split()[0]

    def log(self) -> str:
        """What the director has said."""
        return self.lab.log("director", "uvs")


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
