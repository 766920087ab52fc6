"""A kernel on paper for egress: links, routes and neighbours that a test sets, and what it was asked."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

from uvs.egress import Egress
from uvs.egress.netlink import (
    Event,
    LinkAnswer,
    NeighbourAnswer,
    RouteAnswer,
)
from uvs.engine.core import NextHop, Why
from uvs.ipvs.route import Route

INET, INET6 = socket.AF_INET, socket.AF_INET6
ETH0, ETH1 = 2, 3
OWN = bytes.fromhex("020000000001")
MAC = bytes.fromhex("020000000002")
OTHER = bytes.fromhex("020000000099")
SECOND = 10**9


def a(text: str) -> bytes:
    return ip_address(text).packed


SERVER = a("10.0.0.2")


def link(ifindex: int, **different: Any) -> LinkAnswer:
    values = {
        "name": f"eth{ifindex - 2}",
        "type": 1,
        "kind": "",
        "flags": 0x1043,
        "mtu": 1500,
        "mtu6": 1500,
        "lladdr": OWN,
    }
    return LinkAnswer(ifindex=ifindex, **(values | different))


def neighbour(state: int, lladdr: bytes = MAC, addr: bytes = SERVER, ifindex: int = ETH0) -> NeighbourAnswer:
    return NeighbourAnswer(ifindex, INET if len(addr) == 4 else INET6, addr, state, lladdr)


def direct(ifindex: int = ETH0, **more: Any) -> RouteAnswer:
    return RouteAnswer(
        **({"type": 1, "ifindex": ifindex, "gateway": None, "mtu": 0, "saddr": a("10.0.0.1")} | more)
    )


class Loopback:
    """Its raw sockets."""

    def __init__(self, world: World) -> None:
        self.world = world

    def send(self, af: int, addr: bytes, data: bytes) -> int:
        self.world.told.append((af, addr, data))
        return self.world.error

    def close(self) -> None:
        pass


class World:
    """Kernel, notifications and packet socket of an `Egress`."""

    def __init__(self) -> None:
        self.routes: dict[bytes, RouteAnswer] = {SERVER: direct()}
        self.rules = False
        self.links = {ETH0: link(ETH0), ETH1: link(ETH1)}
        self.neighbours: dict[tuple[int, bytes], NeighbourAnswer] = {}
        self.pending: list[Event | None] = []
        self.error = 0
        self.sent: list[tuple[int, bytes, bytes]] = []
        self.asked: list[tuple[str, Any]] = []
        self.why: list[Why] = []
        self.unreachable: list[bytes] = []
        self.on_unreachable: Callable[[bytes], None] = self.unreachable.append
        self.told: list[tuple[int, bytes, bytes]] = []
        here: Any = self
        loopback: Any = Loopback(self)
        self.egress = Egress(
            0,
            lambda d: self.on_unreachable(d),
            self.why.append,
            kernel=here,
            watch=here,
            injector=here,
            loopback=loopback,
        )

    # netlink.Netlink
    def route(self, af: int, addr: bytes) -> RouteAnswer | None:
        self.asked.append(("route", addr))
        return self.routes.get(addr)

    def route_from(self, af: int, addr: bytes, saddr: bytes, mark: int) -> RouteAnswer | None:
        self.asked.append(("route from", (addr, saddr, mark)))
        return self.routes.get(addr + saddr)

    def has_policy(self) -> bool:
        self.asked.append(("rules", None))
        return self.rules

    def link(self, ifindex: int) -> LinkAnswer | None:
        return self.links.get(ifindex)

    def neighbour(self, ifindex: int, af: int, addr: bytes) -> NeighbourAnswer | None:
        return self.neighbours.get((ifindex, addr))

    def use(self, ifindex: int, af: int, addr: bytes) -> int:
        self.asked.append(("use", addr))
        return 0

    # netlink.Watch
    def events(self) -> list[Event | None]:
        pending, self.pending = self.pending, []
        return pending

    # Injector
    def send(self, hop: NextHop, data: bytes) -> int:
        if not self.error:
            self.sent.append((hop.ifindex, hop.eth[:6], data))
        return self.error

    def close(self) -> None:
        pass

    # what tests say
    def known(self, *answers: NeighbourAnswer) -> None:
        for answer in answers:
            self.neighbours[answer.ifindex, answer.addr] = answer

    def happens(self, *events: Event | None) -> None:
        self.pending += events
        self.egress.events()

    def find(self, addr: bytes = SERVER) -> Route:
        route = self.egress.find(INET if len(addr) == 4 else INET6, addr)
        assert route is not None
        return route

    def uses(self) -> int:
        return sum(what == "use" for what, _ in self.asked)
