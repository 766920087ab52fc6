"""Does a large table stay as fast as a small one? `python tests/bench/scale.py`; half a minute, 400 MB.

A director on paper with 10,000 services of 5 servers and a million connections beside one with 10 services and
1000 connections: what a packet's lookups cost in each, as the hook path makes them, the whole packet, and a change of
the services. Processor time, best of five, the two measured in turn. Exit status 1 if something that has a limit costs
more than twice as much in the large one.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from support import traffic
from support.world import World

from uvs.engine.core import AF_INET, Header, Packet
from uvs.ipvs.hooks import nf_hook
from uvs.ipvs.services import DestSpec, Service, ServiceKey, ServiceSpec
from uvs.ipvs.skb import Hook, Verdict

SMALL, LARGE = (10, 1_000), (10_000, 1_000_000)  # services, connections
SERVERS, TCP, LIMIT, ROUNDS, SAMPLE = 5, 6, 2.0, 5, 10_000
PASSES = 5  # over a sample of services: it is as large as their number, so that none is left out


def address(first: int, n: int) -> bytes:
    return (first << 24 | n + 1).to_bytes(4, "big")


class Director:
    """A table of some size and a sample of packets for it."""

    def __init__(self, services: int, conns: int) -> None:
        self.world = World(conns + 2 * services * (SERVERS + 1) + 8 * ROUNDS * SAMPLE)
        self.services = [self.add(n) for n in range(services)]
        self.new_client = 0
        for n in range(conns):
            svc, (client, port) = self.services[n % services], self.client(n)
            dest = svc.dests[n % SERVERS]
            conn = self.world.table.conn_new(
                AF_INET, TCP, client, port, svc.key.addr, 80, AF_INET, dest.spec.addr, 80, 0, 0, dest.rec.index,
                self.world.now,
            )  # fmt: skip
            assert conn is not None
            conn.timeout = 900_000
            self.world.table.conn_put(conn, self.world.now)
        rnd = random.Random(1)
        chosen = [rnd.randrange(conns) for _ in range(SAMPLE)]
        self.known = [self.packet(*self.client(n), n % services, traffic.ACK) for n in chosen]
        self.headers = [self.header(data) for data in self.known]
        self.addrs = [address(192, rnd.randrange(services)) for _ in range(SAMPLE)]
        for n in range(services, 2 * services):  # as many are deleted, and their servers lie in the trash
            self.world.ipvs.services.del_service(self.add(n).key)
        self.changes = 2 * services

    def add(self, n: int) -> Service:
        key = ServiceKey(AF_INET, TCP, address(192, n), 80)
        svc = self.world.ipvs.services.add_service(ServiceSpec(key, "wlc"))
        for i in range(SERVERS):
            self.world.ipvs.services.add_dest(key, DestSpec(AF_INET, address(172, i), 80))  # the same for all
        return svc

    @staticmethod
    def client(n: int) -> tuple[bytes, int]:
        return address(10, n // 50_000 * 7919 + n % 7919), 1024 + n % 60_000

    def packet(self, client: bytes, port: int, service: int, flags: int) -> bytes:
        body = traffic.tcp(port, 80, flags)
        return traffic.filled(traffic.ip(client, address(192, service), TCP, body))

    @staticmethod
    def header(data: bytes) -> Header:
        packet = Packet()
        packet.load(data)
        header = Header()
        header._c[0] = packet.iph._c[0]
        return header

    # ---- what is measured: all of a sample at once

    def find_service(self) -> None:
        find = self.world.ipvs.services.find
        for _ in range(PASSES):
            for addr in self.addrs:
                assert find(AF_INET, 0, TCP, addr, 80, 1024) is not None

    def find_conn(self) -> None:
        get = self.world.table.conn_in_get
        for header in self.headers:
            assert get(header)

    def known_packet(self) -> None:
        ipvs, skb = self.world.ipvs, self.world.skb
        for data in self.known:
            assert nf_hook(ipvs, skb, Hook.LOCAL_IN, data, 0, 2) == Verdict.STOLEN

    def new_packets(self) -> Callable[[], None]:
        """The packets are made beforehand, each of another client."""
        first = self.new_client
        self.new_client += SAMPLE
        sample = [
            self.packet(address(11, n), 1024, n * 7919 % len(self.services), traffic.SYN)
            for n in range(first, first + SAMPLE)
        ]
        ipvs, skb = self.world.ipvs, self.world.skb

        def send() -> None:
            for data in sample:
                assert nf_hook(ipvs, skb, Hook.LOCAL_IN, data, 0, 2) == Verdict.STOLEN

        return send

    def change(self) -> None:
        """100 services with their servers more, and gone again."""
        made = [self.add(self.changes + i) for i in range(100)]
        for svc in made:
            self.world.ipvs.services.del_service(svc.key)
        self.changes += 100


def cost(work: Callable[[], None], n: int) -> float:
    """Microseconds for one of `n`."""
    begin = time.process_time()
    work()
    return (time.process_time() - begin) / n * 1e6


def main() -> int:
    """Print the table; 1 if a limit is missed."""
    small, large = Director(*SMALL), Director(*LARGE)
    measured: dict[str, Callable[[Director], float]] = {
        "find a service": lambda d: cost(d.find_service, SAMPLE * PASSES),
        "find a connection": lambda d: cost(d.find_conn, SAMPLE),
        "a known packet, all of it": lambda d: cost(d.known_packet, SAMPLE),
        "a new packet, all of it": lambda d: cost(d.new_packets(), SAMPLE),
        "a service with 5 servers, made and deleted": lambda d: cost(d.change, 100),
    }
    missed = False
    print("{:,} services, {:,} connections against {:,} and {:,}".format(*LARGE, *SMALL))
    for what, measure in measured.items():
        pairs = [(measure(small), measure(large)) for _ in range(ROUNDS)]
        few, many = min(a for a, _ in pairs), min(b for _, b in pairs)
        missed |= many > LIMIT * few
        print(
            f"  {what:<44} {few:7.2f} us {many:7.2f} us {many / few:5.2f} x {'MISSED' if many > LIMIT * few else ''}".rstrip()
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
