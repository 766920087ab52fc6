"""Small packets through NFQUEUE: `python tests/bench/nfq_rate.py [ROUNDS]` (makes its own network namespaces).

        client ---- director ---- server        UDP of 46 bytes payload, one flow, as fast as one sender sends

Interleaved in one run: a bare NetfilterQueue loop that accepts what is forwarded, and `uvs run` translating the
same packets (NAT) with each driver: `netfilterqueue` (every one through the hook path) and `native`. Prints
packets a second that reached the server, medians of the rounds, and the shares of the bare loop's rate.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.sandbox import Host, enter, ip, sysctl, wait_for

SECONDS = 3.0
BARE_QUEUE, QUEUE = 98, 99
BARE_PORT, PORT = 7001, 7000
SERVER, VIP = "10.72.2.2", "10.72.9.9"
DRIVERS = ("netfilterqueue", "native")
SETTLE_S = 1.0  # until what waits in a queue has gone

BARE_LOOP = f"""
from netfilterqueue import NetfilterQueue
queue = NetfilterQueue()
queue.bind({BARE_QUEUE}, lambda packet: packet.accept(), max_len=8192)
queue.run()
"""
SENDER = """
import socket, sys, time
address, port, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.connect((address, port))
data, send, end = bytes(46), sock.send, time.monotonic() + seconds
while time.monotonic() < end:
    for _ in range(200):
        send(data)
"""


def received(server: Host) -> int:
    """Packets that the server's device has got."""
    with server:
        line = next(x for x in Path("/proc/net/dev").read_text().splitlines() if "eth0" in x)
    return int(line.split(":")[1].split()[1])


def rate(client: Host, server: Host, address: str, port: int) -> float:
    """Packets a second that arrive while the client sends all it can."""
    with client:
        sender = subprocess.Popen([sys.executable, "-c", SENDER, address, str(port), str(SECONDS + 1)])
    time.sleep(0.5)  # the sender's start
    before, begin = received(server), time.perf_counter()
    time.sleep(SECONDS)
    result = (received(server) - before) / (time.perf_counter() - begin)
    sender.wait()
    time.sleep(SETTLE_S)
    return result


def set_up() -> tuple[Host, Host]:
    """Client and server; this process stays in the director's namespace."""
    enter()
    client, server = Host(), Host()
    ip(
        f"link add c type veth peer name eth0 netns {client.netns}",
        f"link add s type veth peer name eth0 netns {server.netns}",
        *("addr add 10.72.1.1/24 dev c", "addr add 10.72.2.1/24 dev s", f"addr add {VIP}/32 dev lo"),
        *("link set c up", "link set s up"),
    )
    sysctl("ipv4/ip_forward", 1)
    for host, number in ((client, 1), (server, 2)):
        with host:
            ip(
                f"addr add 10.72.{number}.2/24 dev eth0",
                "link set eth0 up",
                f"route add default via 10.72.{number}.1",
            )
    return client, server


@contextmanager
def process(*command: str) -> Iterator[None]:
    """A process that is ended by SIGTERM."""
    child = subprocess.Popen(command)
    try:
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        child.wait()


@contextmanager
def director(driver: str) -> Iterator[None]:
    """A director with one server, by NAT."""
    with tempfile.TemporaryDirectory() as directory:
        control = f"{directory}/control.sock"
        run = ("run", "--driver", driver, "--queue-num", str(QUEUE), "--socket", control)
        with process(sys.executable, "-P", "-m", "uvs.cli", *run, "--state-dir", f"{directory}/state"):
            wait_for(lambda: os.path.exists(control), "the director's control socket", 30)
            for words in (f"-A -u {VIP}:{PORT} -s rr", f"-a -u {VIP}:{PORT} -r {SERVER}:{PORT} -m"):
                command = [sys.executable, "-P", "-m", "uvs.adm.cli", *words.split()]
                subprocess.run(command, env={**os.environ, "UVS_SOCKET": control}, check=True)
            yield


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    client, server = set_up()
    with process(sys.executable, "-c", BARE_LOOP), ExitStack() as stack:
        rule = f"-A FORWARD -p udp --dport {BARE_PORT} -j NFQUEUE --queue-num {BARE_QUEUE}"
        subprocess.run(["iptables", *rule.split()], check=True)
        with server:  # somebody listens, or the server would answer with ICMP errors
            for port in (BARE_PORT, PORT):
                sink = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sink.bind((SERVER, port))
        time.sleep(1)
        found: dict[str, list[float]] = {name: [] for name in ("bare accept loop", *DRIVERS)}
        for _ in range(rounds):
            found["bare accept loop"].append(rate(client, server, SERVER, BARE_PORT))
            for driver in DRIVERS:
                with director(driver):
                    found[driver].append(rate(client, server, VIP, PORT))
        bare = statistics.median(found["bare accept loop"])
        for name, rates in found.items():
            median, each = statistics.median(rates), ", ".join(f"{x:,.0f}" for x in rates)
            print(f"{name:18} {median:10,.0f} packets/s   share {median / bare:5.3f}   ({each})")


if __name__ == "__main__":
    main()
