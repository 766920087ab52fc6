"""What one packet costs egress: `python tests/bench/egress.py` (makes its own network namespaces).

Prints microseconds, medians of five: finding a route, reading a row, sending a small packet over a veth pair, and
the same by a bare AF_PACKET socket of Python; then what a route costs that must be asked for.
"""

from __future__ import annotations

import socket
import statistics
import sys
import time
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.sandbox import Host, enter, ip

from uvs.egress import Egress

PACKET = bytes.fromhex("4500002800010000401166c20a0000010a000002") + bytes(20)


def cost(work: Callable[[], object], times: int = 20_000) -> float:
    runs = []
    for _ in range(5):
        begin = time.perf_counter()
        for _ in range(times):
            work()
        runs.append((time.perf_counter() - begin) / times * 1e6)
    return statistics.median(runs)


def main() -> None:
    enter()
    peer = Host()
    ip(
        f"link add v0 type veth peer name v1 netns {peer.netns}",
        "address add 10.0.0.1/16 dev v0",
        "link set v0 up",
    )
    ip("neigh add 10.0.0.2 lladdr 02:00:00:00:00:02 dev v0 nud permanent")
    with peer:
        ip("link set v1 up")
    time.sleep(1)
    lost: list[object] = []
    egress = Egress(1, lost.append, lost.append)
    server = ip_address("10.0.0.2").packed
    route = egress.find(socket.AF_INET, server)
    assert route is not None
    index = route.index
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as bare:
        bare.bind(("v0", 0))
        frame = bytes.fromhex("0200000000020200000000010800") + PACKET
        fresh = iter(range(1, 60_000))
        print(f"find              {cost(lambda: egress.find(socket.AF_INET, server)):8.2f}")
        print(f"at                {cost(lambda: egress.at(index)):8.2f}")
        print(f"send              {cost(lambda: egress.send(index, PACKET)):8.2f}")
        print(f"bare socket       {cost(lambda: bare.send(frame)):8.2f}")
        new = cost(lambda: egress.find(socket.AF_INET, (0x0A000100 + next(fresh)).to_bytes(4, "big")), 200)
        print(f"find, not known   {new:8.2f}")
    assert not lost, f"{len(lost)} packets did not leave"


if __name__ == "__main__":
    main()
