"""What forwards from client to server: uvs, what it stands on, and what people use instead."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from bench.stand import (
    BULK_PORT,
    HTTP_PORT,
    PATIENCE,
    UDP_PORT,
    Stand,
    server_address,
    stand,
    start_nginx,
    wait_listening,
)  # fmt: skip
from uvs.director import DRIVERS
from uvs.lab import processes
from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, VIP, service

ROUTING, DNAT, HAPROXY, NGINX = "plain routing", "iptables DNAT", "HAProxy", "nginx stream"
ACCEPT, ACCEPT_GSO = "accept loop", "accept loop GSO"
TCP_PORTS = (BULK_PORT, HTTP_PORT)
STREAM_MODULE = Path("/usr/lib/nginx/modules/ngx_stream_module.so")


class Start(Protocol):
    def __call__(self, lab: Lab, programs: dict[str, str]) -> dict[int, str]: ...


@dataclass(frozen=True)
class Peer:
    """One that forwards. `needs`: programs without which it cannot; `udp`: does it forward UDP at all?"""

    name: str
    start: Start
    mode: str = "nat"
    needs: tuple[str, ...] = ()
    udp: bool = True
    driver: str | None = None  # of uvs

    def lacks(self) -> list[str]:
        """Programs that this machine has not."""
        path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
        return [program for program in self.needs if shutil.which(program, path=path) is None]

    @contextmanager
    def stand(self, programs: dict[str, str]) -> Iterator[Stand]:
        """A lab in which it forwards."""
        with stand(self.mode, programs, self.start) as made:
            yield made


def uvs_name(mode: str, driver: str) -> str:
    """`uvs NAT native`."""
    return f"uvs {mode.upper()} {driver}"


def peers(uvs_options: Sequence[str] = ()) -> list[Peer]:
    """All of them; `uvs_options`: more words for `uvs run --driver native`."""
    found = [
        Peer(ROUTING, _route),
        Peer(DNAT, _dnat, needs=("iptables", "ip6tables")),
        Peer(HAPROXY, _haproxy, needs=("haproxy",), udp=False),
        Peer(NGINX, _nginx, needs=("nginx",)),
        Peer(ACCEPT, _accept, needs=("iptables", "ip6tables")),
        Peer(ACCEPT_GSO, partial(_accept, gso=True), needs=("iptables", "ip6tables")),
    ]
    for driver in sorted(DRIVERS):  # native first
        options = ("--driver", driver, *(uvs_options if driver == "native" else ()))
        found += [Peer(uvs_name(m, driver), partial(_uvs, options=options), m, driver=driver) for m in MODES]
    return found


def _route(lab: Lab, programs: dict[str, str]) -> dict[int, str]:
    return server_address(lab)


def _dnat(lab: Lab, programs: dict[str, str]) -> dict[int, str]:
    for family, address in server_address(lab).items():
        tool = "ip6tables" if family == 6 else "iptables"
        lab.check(
            "director",
            [
                tool,
                "-t",
                "nat",
                "-A",
                "PREROUTING",
                "-d",
                VIP[family],
                "-j",
                "DNAT",
                "--to-destination",
                address,
            ],
        )
    return VIP


def _accept(lab: Lab, programs: dict[str, str], gso: bool = False) -> dict[int, str]:
    lab.start("director", "accept", (programs["accept"], "0", *(["gso"] if gso else [])))
    deadline = time.monotonic() + PATIENCE
    while "ready" not in lab.log("director", "accept"):
        if time.monotonic() > deadline:
            raise LabError(f"the accept loop is not ready: {lab.last_words('director', 'accept')}")
        time.sleep(0.01)
    for tool in ("iptables", "ip6tables"):
        lab.check("director", [tool, "-A", "FORWARD", "-j", "NFQUEUE", "--queue-num", "0"])
    return server_address(lab)


def _haproxy(lab: Lab, programs: dict[str, str]) -> dict[int, str]:
    lines = [
        "global",
        f"  nbthread {len(os.sched_getaffinity(0))}",
        "  maxconn 4000",  # two descriptors each, and 20,000 are all that some machines allow
        "defaults",
        "  mode tcp",
        "  option splice-auto",
        "  timeout connect 10s",
        "  timeout client 1h",
        "  timeout server 1h",
    ]
    for family, address in server_address(lab).items():
        for port in TCP_PORTS:
            lines += [
                f"listen v{family}-{port}",
                f"  bind {_bare(family, port)}",
                f"  server {address_of(address, port)}",
            ]
    lab.path("/run/haproxy.cfg").write_text("\n".join(lines) + "\n")
    lab.start("director", "haproxy", ("haproxy", "-db", "-f", "/run/haproxy.cfg"))
    for port in TCP_PORTS:
        wait_listening(lab, "director", port)
    return VIP


def _bare(family: int, port: int) -> str:
    return f"{VIP[family]}:{port}"  # HAProxy takes the last colon for the port's


def address_of(address: str, port: int) -> str:
    """HAProxy's words for a server: a name and where it is."""
    return f"rs1 {address}:{port}"


def _nginx(lab: Lab, programs: dict[str, str]) -> dict[int, str]:
    folder = Path("/run/bench-stream")
    lines = [
        *([f"load_module {STREAM_MODULE};"] if STREAM_MODULE.exists() else []),
        "user root; worker_processes auto; daemon off; error_log stderr error;",
        f"pid {folder}/nginx.pid;",
        "events { worker_connections 4096; }",
        "stream {",
        "  proxy_timeout 1h;",
    ]
    for family, address in server_address(lab).items():
        for port, words in (*((p, "backlog=16384") for p in TCP_PORTS), (UDP_PORT, "udp reuseport")):
            there = service(family, port, address)
            lines.append(f"  server {{ listen {service(family, port)} {words}; proxy_pass {there}; }}")
    start_nginx(lab, "director", folder, "\n".join([*lines, "}", ""]))
    for port in TCP_PORTS:
        wait_listening(lab, "director", port)
    return VIP


def _uvs(lab: Lab, programs: dict[str, str], options: Sequence[str]) -> dict[int, str]:
    processes.start_director(lab, options)
    wanted = [(f, port, protocol) for f in VIP for port, protocol in SERVICES]
    processes.restore(lab, [line for each in wanted for line in processes.service_commands(lab, *each)])
    return VIP


SERVICES = ((BULK_PORT, "-t"), (HTTP_PORT, "-t"), (UDP_PORT, "-u"))
