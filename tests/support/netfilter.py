"""Three hosts, and a queue whose packets are written down: for tests of the diversion and of the queue driver.

        client ---- director ---- server
     10.71.1.2   .1        .1   10.71.2.2      VIP 10.71.9.9, on the director's lo
     fd71:1::2   ::1       ::1  fd71:2::2      VIP fd71:9::9

The test itself is the director. Needs CAP_NET_ADMIN and CAP_SYS_ADMIN.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable

import pytest

from support.sandbox import Host, ip, sysctl, wait_for
from uvs.engine.core import Fast, FastPath, NextHops, Table, checksum
from uvs.netfilter import Element
from uvs.netfilter.driver import Handler
from uvs.netfilter.native import NativeDriver, QueueSpec
from uvs.netfilter.netfilterqueue import NetfilterQueueDriver
from uvs.netfilter.nfnetlink import has_net_admin

AF_INET, AF_INET6 = int(socket.AF_INET), int(socket.AF_INET6)
LOCAL_IN, FORWARD, LOCAL_OUT = 1, 2, 3
UDP = 17
QUEUE, MARK = 71, 0x4000
VIP = {AF_INET: "10.71.9.9", AF_INET6: "fd71:9::9"}
CLIENT = {AF_INET: "10.71.1.2", AF_INET6: "fd71:1::2"}
GATEWAY = {AF_INET: "10.71.1.1", AF_INET6: "fd71:1::1"}
DIRECTOR = {AF_INET: "10.71.2.1", AF_INET6: "fd71:2::1"}
SERVER = {AF_INET: "10.71.2.2", AF_INET6: "fd71:2::2"}
SO_MARK = 36
TOKEN = b"an ICMP message of this test"
PATIENCE_S = 15  # for what must arrive; what must not is waited for much shorter

needs_net_admin = pytest.mark.skipif(
    not has_net_admin(), reason="no CAP_NET_ADMIN here: test_netfilter_user.py runs it in a user namespace"
)


FAMILIES = pytest.mark.parametrize("af", [AF_INET, AF_INET6], ids=["ipv4", "ipv6"])


def service(af: int, port: int = 80, addr: str | None = None, protocol: int = UDP) -> Element:
    """What is diverted for a virtual service; by default one at the VIP."""
    return Element("service", af, protocol, socket.inet_pton(af, addr or VIP[af]), port)


def server(af: int, port: int = 8080, addr: str | None = None) -> Element:
    """What is diverted for a real server; by default the host of that name."""
    return Element("server", af, UDP, socket.inet_pton(af, addr or SERVER[af]), port)


class Net:
    """The hosts. Whoever makes it is the director until it is closed."""

    def __init__(self) -> None:
        director = Host()
        director.__enter__()
        self._hosts = {"director": director, "client": Host(), "server": Host()}
        ip(
            f"link add c type veth peer name eth0 netns {self._hosts['client'].netns}",
            f"link add s type veth peer name eth0 netns {self._hosts['server'].netns}",
            *("link set c up", "link set s up"),
            *("addr add 10.71.1.1/24 dev c", "addr add fd71:1::1/64 dev c nodad"),
            *("addr add 10.71.2.1/24 dev s", "addr add fd71:2::1/64 dev s nodad"),
            *("addr add 10.71.9.9/32 dev lo", "addr add fd71:9::9/128 dev lo nodad"),
        )
        sysctl("ipv4/ip_forward", 1)
        sysctl("ipv6/conf/all/forwarding", 1)
        for host, n in (("client", 1), ("server", 2)):
            with self.on(host):
                ip(
                    "link set eth0 up",
                    *(f"addr add 10.71.{n}.2/24 dev eth0", f"addr add fd71:{n}::2/64 dev eth0 nodad"),
                    *(f"route add default via 10.71.{n}.1", f"route add default via fd71:{n}::1"),
                )
        self._wait_for_links()

    def _wait_for_links(self) -> None:
        """A new link drops what is sent before the kernel has noticed that its other end is up."""
        for host, af in ((host, af) for host in ("client", "server") for af in (AF_INET, AF_INET6)):
            near, there = (DIRECTOR[af], SERVER[af]) if host == "server" else (GATEWAY[af], CLIENT[af])
            with self.socket("director", af) as here, self.socket(host, af) as peer:
                here.bind((near, 9))
                peer.bind((there, 9))
                for a, b, to in ((peer, here, near), (here, peer, there)):

                    def passes(a: socket.socket = a, b: socket.socket = b, to: str = to) -> bool:
                        a.sendto(b"up?", (to, 9))
                        return bool(select.select([b], [], [], 0.05)[0])

                    wait_for(passes, f"the link of the {host} is up")

    def on(self, host: str) -> contextlib.AbstractContextManager[object]:
        """`with net.on("client"):` what is done is done there."""
        return contextlib.nullcontext() if host == "director" else self._hosts[host]

    def socket(self, host: str, af: int, kind: int = socket.SOCK_DGRAM, protocol: int = 0) -> socket.socket:
        """One of a host."""
        with self.on(host):
            return socket.socket(af, kind, protocol)

    def udp(
        self, host: str, af: int, to: tuple[str, int], sport: int = 0, mark: int = 0, size: int = 4
    ) -> None:
        """Send a datagram of `size` times x; with a source port the director sends from the VIP."""
        with self.socket(host, af) as sock:
            sock.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
            if sport:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                source = {"client": CLIENT, "server": SERVER, "director": VIP}[host][af]
                sock.bind((source, sport))
            sock.sendto(b"x" * size, to)

    def icmp(self, host: str, af: int, to: str, kind: int) -> None:
        """Send an ICMP message that carries TOKEN."""
        protocol = socket.IPPROTO_ICMP if af == AF_INET else socket.IPPROTO_ICMPV6
        body = bytes([kind, 0, 0, 0]) + TOKEN
        check = checksum(body) if af == AF_INET else 0  # the kernel's to fill in for IPv6
        with self.socket(host, af, socket.SOCK_RAW, protocol) as sock:
            sock.sendto(body[:2] + check.to_bytes(2) + body[4:], (to, 0))

    def close(self) -> None:
        """The namespaces end with their descriptors."""
        self._hosts["director"].__exit__()
        for host in self._hosts.values():
            host.close()


def open_driver(
    name: str, queue: int, handle: Handler, bound: Callable[[int], int] = lambda number: -1
) -> NetfilterQueueDriver | NativeDriver:
    """A queue driver by its name; the native one with an empty table."""
    if name == "netfilterqueue":
        return NetfilterQueueDriver(queue, handle)
    fastpath = FastPath(Table(None, 1), NextHops())
    fastpath.flags = Fast.OFF
    made = NativeDriver([[QueueSpec(queue)]], handle, fastpath, 0, bound=bound)
    made.start()
    return made


class Tap:
    """A queue whose packets are written down and accepted."""

    def __init__(
        self,
        queue: int = QUEUE,
        driver: str = "netfilterqueue",
        bound: Callable[[int], int] = lambda number: -1,
    ) -> None:
        self.seen: list[tuple[int, int, int, bytes]] = []  # hook, mark, indev, packet
        self.answer: bool | bytes | Exception = True  # bytes: that payload instead of a datagram's own
        self.driver = open_driver(driver, queue, self._handle, bound)

    def _handle(self, hook: int, data: bytes, mark: int, indev: int, gso: bool, _: int) -> bool | bytes:
        self.seen.append((hook, mark, indev, data))
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.answer and isinstance(self.answer, bytes):
            return data[:26] + b"\0\0" + self.answer  # of IPv4 and UDP, without a checksum
        return self.answer

    def count(self, name: str) -> int:
        """One of the driver's counters, of all its queues."""
        return sum(int(row[name] or 0) for row in self.driver.counters())

    @property
    def socket(self) -> socket.socket:
        """The first queue's."""
        return self.driver._queues[0].socket if isinstance(self.driver, NativeDriver) else self.driver._socket

    @staticmethod
    def is_udp(data: bytes) -> bool:
        """Is it a datagram?"""
        return data[9 if data[0] >> 4 == 4 else 6] == UDP

    def hooks(self, expected: int = 0) -> list[int]:
        """Hooks of the packets that were sent by the test, in their order; forgets them.

        Waits until as many came as are expected, and a moment more for those that should not. What the stack
        answers where nobody listens (an ICMP error with a quote) is diverted and not counted.
        """
        deadline = time.monotonic() + PATIENCE_S
        while True:
            late = expected <= sum(map(self._sent_by_test, self.seen)) or time.monotonic() > deadline
            if select.select([self.driver.fileno()], [], [], 0.03 if late else 0.2)[0]:
                self.driver.run()
            elif late:
                break
        hooks = [seen[0] for seen in self.seen if self._sent_by_test(seen)]
        self.seen.clear()
        return hooks

    def _sent_by_test(self, seen: tuple[int, int, int, bytes]) -> bool:
        return self.is_udp(seen[3]) or TOKEN in seen[3]
