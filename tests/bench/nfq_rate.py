"""Small packets through NFQUEUE: `python tests/bench/nfq_rate.py [ROUNDS]` (makes its own network namespaces).

        client ---- director ---- server        UDP of 46 bytes payload, one flow, as fast as one sender sends

Interleaved in one run: a bare NetfilterQueue loop that accepts what is forwarded, and `uvs run --driver
netfilterqueue` translating the same packets (NAT, every one through the hook path). Prints packets a second that
reached the server, medians of the rounds, and the share of the bare loop's rate that uvs has.
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
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.sandbox import Host, enter, ip, sysctl, wait_for

SECONDS = 3.0
BARE_QUEUE, QUEUE = 98, 99
BARE_PORT, PORT = 7001, 7000
SERVER, VIP = "10.72.2.2", "10.72.9.9"
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


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    client, server = set_up()
    with ExitStack() as stack:

        def start(*command: str, **environment: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command, env={**os.environ, **environment})
            stack.callback(process.wait)
            stack.callback(process.send_signal, signal.SIGTERM)
            return process

        directory = stack.enter_context(tempfile.TemporaryDirectory())
        control = f"{directory}/control.sock"
        run = ("run", "--driver", "netfilterqueue", "--queue-num", str(QUEUE), "--socket", control)
        start(sys.executable, "-P", "-m", "uvs.cli", *run, "--state-dir", f"{directory}/state")
        wait_for(lambda: os.path.exists(control), "the director's control socket", 30)
        for words in (f"-A -u {VIP}:{PORT} -s rr", f"-a -u {VIP}:{PORT} -r {SERVER}:{PORT} -m"):
            command = [sys.executable, "-P", "-m", "uvs.adm.cli", *words.split()]
            subprocess.run(command, env={**os.environ, "UVS_SOCKET": control}, check=True)
        start(sys.executable, "-c", BARE_LOOP)
        rule = f"-A FORWARD -p udp --dport {BARE_PORT} -j NFQUEUE --queue-num {BARE_QUEUE}"
        subprocess.run(["iptables", *rule.split()], check=True)
        with server:  # somebody listens, or the server would answer with ICMP errors
            for port in (BARE_PORT, PORT):
                sink = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
                sink.bind((SERVER, port))
        time.sleep(1)
        found: dict[str, list[float]] = {"bare accept loop": [], "uvs, NAT": []}
        for _ in range(rounds):
            found["bare accept loop"].append(rate(client, server, SERVER, BARE_PORT))
            found["uvs, NAT"].append(rate(client, server, VIP, PORT))
        for name, rates in found.items():
            print(
                f"{name:18} {statistics.median(rates):10,.0f} packets/s   ({', '.join(f'{x:,.0f}' for x in rates)})"
            )
        bare, uvs = (statistics.median(rates) for rates in found.values())
        print(f"{'share':18} {uvs / bare:10.3f}   (an eighth is 0.125, a quarter 0.250)")


if __name__ == "__main__":
    main()
