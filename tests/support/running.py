"""A lab whose director runs."""

from __future__ import annotations

from collections.abc import Sequence

from uvs.control.client import Client
from uvs.lab import processes
from uvs.lab.namespaces import SOCKET, Lab
from uvs.lab.topology import VIP


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
