"""Labs with a running director, for each forwarding method and family.

    running   one lab per mode (module scope): real servers, director, HTTP and UDP echo services at the VIP
    family    4 and 6
    make_lab  makes further labs, removed at the module's end

and for tests of uvs.netfilter, which needs no lab (see support.netfilter):

    net       three hosts; the test is the director
    tap       a queue there, whose packets are written down

The labs are in namespaces of their own: no privilege is needed and nothing collides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing

import pytest
from support.netfilter import Net, Tap
from support.running import Running

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
