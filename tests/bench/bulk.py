"""Bulk TCP through a lab's director: `python tests/bench/bulk.py [ROUNDS]` (makes its own labs).

Interleaved in one run, iperf3 up and down for three seconds each, IPv4 and IPv6: plain routing through the director,
and `uvs run` with each driver by NAT, direct routing and tunnelling (replies of the latter two do not pass it).
Prints Gbit/s, medians of the rounds, and the shares of plain routing.
"""

from __future__ import annotations

import json
import statistics
import sys

from uvs.director import DRIVERS
from uvs.lab import processes
from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, VIP, topology

SECONDS, PORT = 3, 5201
WAYS = [(family, way) for family in (4, 6) for way in ((), ("-R",))]


def rates(lab: Lab, address: dict[int, str]) -> list[float]:
    """Gbit/s of each of WAYS."""
    lab.check("rs1", ["iperf3", "-s", "-D", "-p", str(PORT)])
    found = []
    for family, way in WAYS:
        words = ["iperf3", "-c", address[family], "-p", str(PORT), "-t", str(SECONDS), "-J", *way]
        found.append(json.loads(lab.check("client", words))["end"]["sum_received"]["bits_per_second"] / 1e9)
    return found


def routed() -> list[float]:
    """Without a director's program: the server's own address."""
    with Lab.create(topology("nat", 1)) as lab:
        (server,) = lab.topology.servers
        return rates(lab, {family: server.address(family) for family in VIP})


def balanced(mode: str, driver: str) -> list[float]:
    """By a virtual service with one server."""
    with Lab.create(topology(mode, 1)) as lab:
        processes.start_servers(lab)
        processes.start_director(lab, ("--driver", driver))
        commands = [line for family in VIP for line in processes.service_commands(lab, family, PORT)]
        processes.restore(lab, commands)
        return rates(lab, VIP)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found: dict[str, list[list[float]]] = {}
    for _ in range(rounds):
        found.setdefault("plain routing", []).append(routed())
        for mode in MODES:
            for driver in DRIVERS:
                found.setdefault(f"{mode}, {driver}", []).append(balanced(mode, driver))
    heads = [f"IPv{family} {'down' if way else 'up'}" for family, way in WAYS]
    print(f"{'Gbit/s':22}", *(f"{head:>14}" for head in heads))
    base: list[float] = []
    for name, runs in found.items():
        medians = [statistics.median(column) for column in zip(*runs, strict=True)]
        base = base or medians
        print(f"{name:22}", *(f"{m:6.2f} ({m / b:5.3f})" for m, b in zip(medians, base, strict=True)))


if __name__ == "__main__":
    main()
