"""A control server in a thread over a director on paper, and the real ipvsadm made to speak to it."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.world import World
from uvs.control.client import Client
from uvs.control.credentials import Access
from uvs.control.layer_ops import LayerOps
from uvs.control.server import Server
from uvs.exec import library, with_shim
from uvs.layers import Layers


class Running:
    """A server and its director. `do` runs something in the server's thread."""

    def __init__(self, directory: Path, access: Access | None = None) -> None:
        self.world = World(conn_max=100_000)
        self.ipvs = self.world.ipvs
        self.path = str(directory / "control.sock")
        self.commits = 0
        self.on_commit: Callable[[], Awaitable[None] | None] = lambda: None
        self.layers = Layers(self.ipvs.services)
        more = LayerOps(self.layers).ops()
        self.server = Server(self.ipvs, self.path, self._commit, access, self.layers.settle, more)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    async def _commit(self) -> None:
        self.commits += 1
        if (rest := self.on_commit()) is not None:
            await rest

    def do(self, work: Callable[[], object]) -> object:
        async def run() -> object:
            return work()

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result(60)

    def start(self) -> None:
        self._thread.start()
        self.do(lambda: self.server.start(self._loop))

    def stop(self) -> None:
        self.do(self.server.close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
        self.world.close()

    def client(self) -> Client:
        return Client(self.path)


@contextmanager
def running(directory: Path, access: Access | None = None) -> Iterator[Running]:
    it = Running(directory, access)
    it.start()
    try:
        yield it
    finally:
        it.stop()


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    status: int
    out: str
    err: str


class RealIpvsadm:
    """ipvsadm 1.31 of the distribution under the shim of `uvs exec`, without the start of a Python each time."""

    def __init__(self) -> None:
        found = shutil.which("ipvsadm", path=os.environ["PATH"] + ":/usr/sbin:/sbin")
        if found is None:
            pytest.fail("ipvsadm is missing: scripts/test installs it (apt-get install ipvsadm)")
        self.program = found

    def __call__(self, socket: str, *words: str, stdin: str = "") -> Ran:
        env = with_shim(dict(os.environ), library(), socket, 60) | {"LC_ALL": "C"}
        ran = subprocess.run(
            ["ipvsadm", *words],  # the name it calls itself by in messages
            executable=self.program,
            env=env,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # Debian 13's build has another wording here than Debian 12's.
        return Ran(ran.returncode, ran.stdout, ran.stderr.replace("-6 must follow -f", "-6 used before -f"))
