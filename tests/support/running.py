"""A lab whose director runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from support import clients
from uvs.control.client import Client
from uvs.lab import processes
from uvs.lab.namespaces import SOCKET, Lab
from uvs.lab.topology import VIP

# TCP doubles its time-out for as long as the director is away, and a busy machine starts it slowly.
TRANSFER_S = 120


class Running:
    """A lab whose director runs."""

    def __init__(self, lab: Lab, program: Sequence[str] = ()) -> None:
        """`program`: what to run as the director, instead of the usual one."""
        self.lab = lab
        self.servers = processes.start_servers(lab)
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

    @contextmanager
    def transfers(self, size: int, *families: int) -> Iterator[Callable[[], None]]:
        """An upload and a download of each family, which stand still when a tenth of `size` bytes has passed.

        What is handed out lets them go on; at the end each must have arrived whole.
        """
        with ExitStack() as stack:
            begun = []
            for family in families:
                for direction in (clients.upload, clients.download):
                    progress = clients.Progress(limit=size // 10)
                    call = self.lab.begin("client", direction, self.vip(family), size, progress, TRANSFER_S)
                    begun.append((progress, stack.enter_context(closing(call))))
            for progress, _ in begun:
                progress.wait(size // 10)

            def release() -> None:
                for progress, _ in begun:
                    progress.release()

            yield release
            for _, call in begun:
                _, there, here = call.result(TRANSFER_S)
                assert there == here
