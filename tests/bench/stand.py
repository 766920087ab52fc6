"""A lab with one real server, whatever the director runs; the client's programs; what the director has used."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from uvs.lab import processes
from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.topology import VIP, topology

HERE = Path(__file__).parent
PROGRAMS = ("accept", "sender", "latency")  # in C, beside this file
BULK_PORT, HTTP_PORT, UDP_PORT = 5201, 80, 7000
SERVER, SOURCES = "rs1", "10.0.0.0/8"  # the real server; where the sender's packets come from
TICK = os.sysconf("SC_CLK_TCK")
PATIENCE = 60.0
RTM_GETLINK, NLM_F_REQUEST, IFLA_STATS64 = 18, 1, 23  # linux/rtnetlink.h, netlink.h, if_link.h

# Tens of thousands of connections in a few seconds, between two hosts: ports must not run out.
_MANY_PORTS = {"net/ipv4/ip_local_port_range": "1024 65535", "net/ipv4/tcp_tw_reuse": "1"}

# One small page for all: it should never be the server that is slow.
_NGINX_SERVER = """
user root;
worker_processes auto;
pid {folder}/nginx.pid;
error_log stderr error;
daemon off;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen {port} backlog=16384; listen [::]:{port} backlog=16384; location / {{ return 200 "ok\\n"; }} }}
}}
"""


def compile_programs(folder: Path) -> dict[str, str]:
    """The C programs, by name. RuntimeError with the compiler's words if it refuses."""
    made = {}
    for name in PROGRAMS:
        made[name] = str(folder / name)
        command = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", str(HERE / f"{name}.c"), "-o", made[name]]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return made


@dataclass(frozen=True)
class Use:
    """What has been used since some moment: processor seconds of the director's processes, and of the machine."""

    director: float
    machine: float

    def __sub__(self, other: Use) -> Use:
        return Use(self.director - other.director, self.machine - other.machine)


class Stand:
    """A lab whose director forwards from `client` to `rs1` in some way. `address`: where clients go, by family."""

    def __init__(self, lab: Lab, programs: dict[str, str], address: dict[int, str]) -> None:
        self.lab, self.programs, self.address = lab, programs, address
        self.mac = json.loads(lab.check("director", ["ip", "-j", "link", "show", "eth0"]))[0]["address"]

    # ---- the client

    def client(self, *argv: str, timeout: float = PATIENCE) -> str:
        """Run a command at the client; its output. LabError if it fails."""
        return self.lab.check("client", argv, timeout=timeout)

    def latency(self, kind: str, seconds: float) -> tuple[int, float, float]:
        """Requests one at a time: how many, median and 99th percentile in microseconds."""
        words = (self.address[4], str(HTTP_PORT), kind, str(seconds))
        n, median, p99 = self.client(self.programs["latency"], *words, timeout=seconds + PATIENCE).split()
        return int(n), float(median), float(p99)

    def sender(
        self, kind: str, seconds: float, *, flows: int, port: int = UDP_PORT, ports: int = 1, rate: int = 0
    ) -> list[str]:
        """The command for sender.c, which see."""
        argv = [self.programs["sender"], kind, "eth0", self.mac, self.address[4]]
        return argv + [str(each) for each in (port, ports, flows, rate, seconds)]

    def packets(self, seconds: float, warm_up: float = 0.3, **flows: Any) -> tuple[float, Use]:
        """UDP packets a second that reach the server's device, and what was used in one second of it."""
        command = self.sender("udp", seconds + warm_up + PATIENCE, **flows)
        with quiet_server(self.lab), self.lab.popen("client", command, stdout=subprocess.DEVNULL) as sender:
            try:
                time.sleep(warm_up)
                used, begin = self.used(), time.perf_counter()
                rate = self.lab.call(SERVER, received_rate, seconds)
                took = time.perf_counter() - begin
                used = self.used() - used
            finally:
                sender.terminate()
        return rate, Use(used.director / took, used.machine / took)

    # ---- the director

    def director_pids(self) -> list[int]:
        """Processes that run at the director."""
        return [p.pid for p in self.lab.processes() if p.host == "director"]

    def used(self) -> Use:
        """Processor time so far."""
        return Use(sum(map(process_time, self.director_pids())), machine_time())

    def memory(self) -> int:
        """Bytes that the director's processes have resident, shared pages counted for each."""
        return sum(map(resident, self.director_pids()))

    def kill(self) -> None:
        """SIGKILL for `uvs run`."""
        for member in self.lab.processes():
            if member.host == "director" and "uvs.cli" in member.argv:
                processes.Daemon("director", "uvs", member.pid).kill()


@contextmanager
def stand(
    mode: str, programs: dict[str, str], start: Callable[[Lab, dict[str, str]], dict[int, str]]
) -> Iterator[Stand]:
    """A lab in `mode`, its server at work, and `start`, which makes the director forward and says to which addresses."""
    with Lab.create(topology(mode, 1)) as lab:
        for host in ("client", "director"):
            lab.call(host, processes_sysctls)
        for host in ("director", "router"):
            if host in lab.names:
                lab.check(host, ["ip", "route", "add", SOURCES, "via", lab.topology["client"].address(4)])
        _start_server(lab)
        yield Stand(lab, programs, start(lab, programs))


def processes_sysctls() -> None:
    """Ports enough, in this network namespace."""
    for name, value in _MANY_PORTS.items():
        Path("/proc/sys", name).write_text(value)


def _start_server(lab: Lab) -> None:
    """iperf3 and nginx on the real server, and the end of its tunnels."""
    host = lab.topology[SERVER]
    if host.decapsulates:
        processes.start_decap(lab, SERVER)
    lab.start(SERVER, "iperf3", ("iperf3", "-s", "-p", str(BULK_PORT)))
    folder = Path("/run/bench-server")
    start_nginx(lab, SERVER, folder, _NGINX_SERVER.format(folder=folder, port=HTTP_PORT))
    for port in (BULK_PORT, HTTP_PORT):
        wait_listening(lab, SERVER, port)


def start_nginx(lab: Lab, host: str, folder: Path, text: str) -> None:
    """nginx with a configuration of our own, in a folder of the lab."""
    inside = lab.path(str(folder))
    inside.mkdir()
    Path(inside, "nginx.conf").write_text(text)
    lab.start(host, "nginx", ("nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "nginx.conf")))


def wait_listening(lab: Lab, host: str, port: int) -> None:
    """Until something listens on a TCP port there."""
    end = time.monotonic() + PATIENCE
    while f":{port} " not in lab.check(host, ["ss", "-Hltn"]):
        if time.monotonic() > end:
            logs = {
                p.name: p.read_text(errors="replace")[-300:] for p in lab.path("/run/log").glob(f"{host}-*")
            }
            raise LabError(f"{host}: nothing listens on port {port}: {logs}")
        time.sleep(0.02)


@contextmanager
def quiet_server(lab: Lab) -> Iterator[None]:
    """The server drops small packets right behind its device: no answer, and no program that competes for a processor."""
    rules = [["-p", protocol, "-j", "DROP"] for protocol in ("udp", "4")]
    for rule in rules:
        lab.check(SERVER, ["iptables", "-t", "raw", "-A", "PREROUTING", *rule])
    try:
        yield
    finally:
        for rule in rules:
            lab.check(SERVER, ["iptables", "-t", "raw", "-D", "PREROUTING", *rule])


def received() -> int:
    """Packets that eth0 of this host has got (rtnetlink: a lab's /proc and /sys may be another namespace's)."""
    request = struct.pack(
        "=IHHII BxHiII", 32, RTM_GETLINK, NLM_F_REQUEST, 0, 0, 0, 0, socket.if_nametoindex("eth0"), 0, 0
    )
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.send(request)
        answer = sock.recv(1 << 16)
    offset = 32
    while offset + 4 <= len(answer):
        length, kind = struct.unpack_from("=HH", answer, offset)
        if kind == IFLA_STATS64:
            packets: int = struct.unpack_from("=Q", answer, offset + 4)[0]
            return packets
        offset += max(4, length + 3 & ~3)
    raise RuntimeError("the kernel tells no statistics of eth0")


def received_rate(seconds: float) -> float:
    """Packets a second that eth0 of this host gets; where none come, it waits for some."""
    before, begin = received(), time.perf_counter()
    while True:
        time.sleep(seconds)
        got, took = received() - before, time.perf_counter() - begin
        if got:
            return got / took
        if took > PATIENCE / 2:
            raise TimeoutError(f"no packet has arrived in {took:.0f} s")


# ---- what the kernel has counted


def process_time(pid: int) -> float:
    """User and system time of a process with all its threads, seconds; 0 if it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICK


def machine_time(text: str | None = None) -> float:
    """Seconds that this machine's processors were not idle (man 5 proc, /proc/stat; stolen time is not ours)."""
    line = (text or Path("/proc/stat").read_text()).splitlines()[0]
    user, nice, system, _idle, _iowait, irq, softirq = map(int, line.split()[1:8])
    return (user + nice + system + irq + softirq) / TICK


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 if it is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def server_address(lab: Lab) -> dict[int, str]:
    """The real server's own addresses."""
    return {family: lab.topology[SERVER].address(family) for family in VIP}
