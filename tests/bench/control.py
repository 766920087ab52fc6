"""What control work costs, and what clients feel of it: `python tests/bench/control.py [SERVICES [SERVERS]]`.

In namespaces of its own: a director, a client and a NAT server on veth pairs. While a UDP echo client sends 200
datagrams a second through the director, 10,000 services of 5 servers are restored, listed, saved and cleared by
uvsadm; printed are the seconds that each took, the processor time of the director and of uvsadm, and the client's
round trips meanwhile (50th, 99th, largest, lost: while a clearing has taken its service away). Exit status 1 if
something that has a limit takes longer; UVS_BENCH_SLACK times as long, where others use the machine too.
"""

from __future__ import annotations

import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.sandbox import Host, enter, ip, sysctl

VIP, RIP, CIP = "192.0.2.100", "198.51.100.11", "203.0.113.9"
PERIOD_S = 0.005
SLACK = float(os.environ.get("UVS_BENCH_SLACK") or 1)
LIMITS_S = {"restore": 10.0 * SLACK, "list": 3.0 * SLACK}
P99_MS = 50.0 * SLACK
ECHO = f"""
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("{RIP}", 7))
while True:
    data, peer = s.recvfrom(2048)
    s.sendto(data, peer)
"""
CLIENT = f"""
import select, socket, struct, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.connect(("{VIP}", 7))
s.setblocking(False)
due = time.perf_counter()
n = 0
while True:
    wait = due - time.perf_counter()
    if wait <= 0:
        s.send(struct.pack("=Qd", n, time.perf_counter()))
        n += 1
        due += {PERIOD_S}
        continue
    if select.select([s], [], [], wait)[0]:
        number, sent = struct.unpack("=Qd", s.recv(64))
        print(number, sent, time.perf_counter(), flush=True)
"""


class Echo:
    """The client on its host; its round trips by when they were sent."""

    def __init__(self, host: Host) -> None:
        self.rows: list[tuple[int, float, float]] = []
        command = ["nsenter", f"--net={host.netns}", sys.executable, "-c", CLIENT]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            number, sent, came = line.split()
            self.rows.append((int(number), float(sent), float(came)))

    def between(self, begin: float, end: float) -> tuple[str, float]:
        """What was sent then, as a text, and its 99th percentile (ms)."""
        time.sleep(0.5)
        rows = [row for row in self.rows if begin <= row[1] <= end]
        if len(rows) < 2:
            return "no echo", float("inf")
        trips = sorted((came - sent) * 1e3 for _, sent, came in rows)
        lost = rows[-1][0] - rows[0][0] + 1 - len(rows)
        p99 = trips[min(len(trips) - 1, len(trips) * 99 // 100)]
        return (
            f"p50 {statistics.median(trips):6.2f}  p99 {p99:6.2f}  max {trips[-1]:6.2f} ms  lost {lost}",
            p99,
        )


def table(services: int, servers: int) -> Iterator[str]:
    for i in range(services):
        vip = f"10.{i >> 16 & 255}.{i >> 8 & 255}.{i & 255}:80"
        yield f"-A -t {vip} -s wlc\n"
        for j in range(servers):
            yield f"-a -t {vip} -r 198.51.100.{20 + j}:{8000 + i % 50000} -m -w 1\n"


def main() -> int:
    services, servers = (int(word) for word in [*sys.argv[1:], "10000", "5"][:2])
    if len(sys.argv) == 2:
        services, servers = int(sys.argv[1]), 5
    enter()
    client, server = Host(), Host()
    for name, host, own, far, route in (
        ("vc", client, "203.0.113.1", CIP, VIP + "/32"),
        ("vs", server, "198.51.100.1", RIP, "0.0.0.0/0"),
    ):
        ip(f"link add {name} type veth peer name eth0 netns {host.netns}", f"link set {name} up")
        ip(f"address add {own}/24 dev {name}")
        inside = f"nsenter --net={host.netns} ip".split()
        for words in (f"address add {far}/24 dev eth0", "link set eth0 up", "link set lo up",
                      f"route add {route} via {own}"):  # fmt: skip
            subprocess.run([*inside, *words.split()], check=True)
    ip("link set lo up", f"address add {VIP}/32 dev lo")
    sysctl("ipv4/ip_forward", "1")
    with tempfile.TemporaryDirectory() as where:
        return measure(Path(where), client, server, services, servers)


def measure(where: Path, client: Host, server: Host, services: int, servers: int) -> int:
    os.environ["UVS_SOCKET"] = str(where / "control.sock")
    adm = [sys.executable, "-P", "-m", "uvs.adm.cli"]
    run = ["run", "--state-dir", str(where), "--socket", os.environ["UVS_SOCKET"]]
    director = subprocess.Popen([sys.executable, "-P", "-m", "uvs.cli", *run])
    echo_server = subprocess.Popen(["nsenter", f"--net={server.netns}", sys.executable, "-c", ECHO])
    echo = None
    try:
        while not _listens(os.environ["UVS_SOCKET"]):
            if director.poll() is not None:
                sys.exit("the director did not start")
            time.sleep(0.1)
        commands = f"-A -u {VIP}:7 -s rr\n-a -u {VIP}:7 -r {RIP}:7 -m\n"
        subprocess.run([*adm, "-R"], input=commands, text=True, check=True)
        echo = Echo(client)
        time.sleep(2)
        again = "".join(table(services, servers))
        changed = again.replace("-w 1", "-w 2").replace("-A", "-E").replace("-a ", "-e ")
        print(f"{'':22} {'':9} {'director':>8} {'uvsadm':>7}")
        missed = []
        for what, words, text in (
            ("nothing for 3 s", [], ""),
            ("restore", ["-R"], again),
            ("list", ["-Ln"], ""),
            ("save", ["-Sn"], ""),
            ("one change", ["-E", "-t", "10.0.0.1:80", "-s", "rr"], ""),
            ("nothing for 3 s", [], ""),
            ("change all", ["-R"], changed),
            ("clear and restore", ["-R"], "-C\n" + commands + again),
            ("clear", ["-R"], "-C\n" + commands),
            ("nothing for 3 s", [], ""),
        ):
            begin, ours, theirs = time.perf_counter(), cpu(director.pid), children_cpu()
            if words:
                subprocess.run([*adm, *words], input=text, text=True, check=True, stdout=subprocess.DEVNULL)
            else:
                time.sleep(3)
            end = time.perf_counter()
            ours, theirs = cpu(director.pid) - ours, children_cpu() - theirs
            told, p99 = echo.between(begin, end)
            late = p99 > P99_MS or end - begin > LIMITS_S.get(what, float("inf"))
            missed += [what] if late else []
            print(
                f"{what:22} {end - begin:7.2f} s {ours:7.2f}s {theirs:6.2f}s   {told}{'  MISSED' * late}",
                flush=True,
            )
        return int(bool(missed))
    finally:
        for process in (echo and echo.process, echo_server, director):
            if process:
                process.terminate()
                process.wait()


def cpu(pid: int) -> float:
    """Seconds that it and the programs it ran have used."""
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, words[11:15])) / os.sysconf("SC_CLK_TCK")


def children_cpu() -> float:
    """Seconds that programs used that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        return probe.connect_ex(path) == 0


if __name__ == "__main__":
    sys.exit(main())
