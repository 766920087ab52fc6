"""What the checks may ask of a machine, and in which form it answers. Addresses are texts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from uvs.control.extension import ConnEntry
from uvs.control.messages import DestEntry, ServiceEntry
from uvs.ipvs.spec import QueueRow

Attempt = tuple[bool, str]  # did it work; if not, why


@dataclass(frozen=True, slots=True)
class Director:
    """What a running director says of itself.

    `conns`: the first of its connections, if they are many; `layers`: rows as GET_HEALTH has them.
    """

    queues: list[QueueRow]
    table: dict[str, int]
    reasons: dict[str, int] = field(default_factory=dict)
    services: list[tuple[ServiceEntry, list[DestEntry]]] = field(default_factory=list)
    conns: list[ConnEntry] = field(default_factory=list)
    layers: list[dict[str, Any]] = field(default_factory=list)


class Address(NamedTuple):
    """An address of this host."""

    device: str
    address: str
    prefix: int


class Route(NamedTuple):
    """The kernel's route to an address. `mtu`: bytes, of route or device; `source`: "" if there is none."""

    local: bool
    device: str
    gateway: str | None
    mtu: int
    source: str


class Asked(NamedTuple):
    """Whom to ask for by ARP: who has `address`, on the segment of `device`."""

    device: str
    address: str


class Knock(NamedTuple):
    """A SYN to a TCP service as the director would send it on to this server.

    `vip` and `server` packed, ports host order; `forward` and the tunnel as DestSpec has them. For NAT
    neither VIP nor its port matters: they are zero.
    """

    vip: bytes
    port: int
    server: bytes
    server_port: int
    forward: int
    tun_type: int = 0
    tun_port: int = 0
    tun_flags: int = 0


class Host(Protocol):
    """A machine. Each question may be asked several times, and gets the same answer."""

    def read(self, path: str) -> str | None:
        """A file's text, stripped; None if it is not there or not to be read."""

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if it is not there."""

    def environment(self, name: str) -> str:
        """A variable of the environment; "" if it is not set."""

    def output(self, *argv: str) -> str | None:
        """What a program that only tells says; None if it is not installed or refuses."""

    def bind_queue(self) -> Attempt:
        """Bind a spare queue number of NFQUEUE, and let it go."""

    def rule_back_ends(self) -> list[tuple[str, bool, str]]:
        """Each rule back end: its name, whether its rules were accepted, and more about it."""

    def packet_socket(self) -> Attempt:
        """Open an AF_PACKET socket."""

    def user_namespace(self) -> Attempt:
        """Make a user namespace with a network namespace in it."""

    def has_module(self, name: str) -> bool:
        """Whether the kernel has the module loaded, built in or at hand."""

    def synchronized(self) -> bool | None:
        """Whether the kernel's clock follows another (adjtimex(2)); None if it does not say."""

    def director(self) -> Director | str:
        """What the running director says; or why there is none to ask."""

    def directors(self) -> list[tuple[int, str]]:
        """Directors of this network namespace as processes: PID and command line."""

    def addresses(self) -> list[Address]:
        """All addresses of this host."""

    def route(self, address: str) -> Route | None:
        """The route there; None if there is none, or one that refuses."""

    def offloads(self, device: str) -> frozenset[str]:
        """Which of `lro` and `gro` are on."""

    def who_has(self, asked: Iterable[Asked]) -> dict[Asked, list[str]] | None:
        """MAC addresses of those who answer, IPv4 only; None if it cannot be asked (no privilege)."""

    def knock(self, knocks: Iterable[Knock]) -> dict[Knock, str]:
        """What went wrong with each SYN, "" if it was answered. One that could not be sent is left out."""
