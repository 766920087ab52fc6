"""What runs in a lab: real servers, tunnels' ends, the director; and the services it is told of."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from uvs.lab import servers
from uvs.lab.enter import Daemon
from uvs.lab.namespaces import Lab
from uvs.lab.topology import ECHO_PORT, GUE_PORT, HTTP_PORT, service

RUN = ("run", "--driver", os.environ.get("UVS_DRIVER") or "native")
# -P: the installed package, even if the command is typed in a checkout that is not built.
PYTHON = (sys.executable, "-P", "-m")
UVS = (*PYTHON, "uvs.cli")
UVSADM = (*PYTHON, "uvs.adm.cli")


def start_servers(lab: Lab) -> list[Daemon]:
    """HTTP and UDP echo on every real server, and the ends of its tunnels."""
    started = []
    for host in lab.topology.servers:
        started.append(start_server(lab, host.name))
        if host.decapsulates:
            started += start_decap(lab, host.name)
    return started


def start_server(lab: Lab, host: str) -> Daemon:
    """HTTP and UDP echo on one real server."""
    program = (sys.executable, "-I", "-S", servers.__file__)
    return lab.start(host, "server", (*program, host), notify=True)


def start_decap(lab: Lab, host: str) -> list[Daemon]:
    """The end of a real server's tunnels: the kernel's own devices where it has them, else `uvs decap`."""
    if lab.topology.tun_type != "ipip":
        options = ("--gue-port", str(GUE_PORT)) if lab.topology.tun_type == "gue" else ("--proto", "47")
        return [lab.start(host, "decap", (*UVS, "decap", *options), notify=True)]
    devices = lab.check(host, ["ip", "-o", "link", "show"])
    kernel = [name for name in ("tunl0", "ip6tnl0") if f" {name}@" in devices or f" {name}:" in devices]
    if len(kernel) == 2:
        for name in kernel:
            lab.check(host, ["ip", "link", "set", name, "up"])
        return []
    return [lab.start(host, "decap", (*UVS, "decap"), notify=True)]


def start_director(lab: Lab, options: Sequence[str] = RUN[1:]) -> Daemon:
    """`uvs run` on the director; returns when it is ready. LabError with its own message if it refuses."""
    return lab.start("director", "uvs", (*UVS, "run", *options), notify=True)


def uvsadm(lab: Lab, *arguments: str) -> str:
    """Run uvsadm on the director; its output. LabError with its message if it fails."""
    return lab.check("director", (*UVSADM, *arguments))


def restore(lab: Lab, commands: Sequence[Sequence[str]]) -> None:
    """Many uvsadm commands at once (uvsadm -R). LabError with its message if one fails."""
    lab.check("director", (*UVSADM, "-R"), stdin="".join(f"{' '.join(c)}\n" for c in commands))


def service_commands(
    lab: Lab, family: int, port: int = HTTP_PORT, protocol: str = "-t", scheduler: str = "rr"
) -> list[list[str]]:
    """The uvsadm argument lists that make a service at the VIP with all real servers, in this lab's mode."""
    virtual = service(family, port)
    commands = [["-A", protocol, virtual, "-s", scheduler]]
    for host in lab.topology.servers:
        real = service(family, port, host.address(family))
        commands.append(["-a", protocol, virtual, "-r", real, *lab.topology.forwarding])
    return commands


def add_services(lab: Lab) -> None:
    """The services of a lab that is to be used at once: HTTP and UDP echo, both families."""
    wanted = [(f, *service) for f in families() for service in ((HTTP_PORT, "-t"), (ECHO_PORT, "-u"))]
    restore(lab, [line for each in wanted for line in service_commands(lab, *each)])


def families() -> tuple[int, ...]:
    """The address families that this kernel has."""
    return (4, 6) if os.path.isdir("/proc/sys/net/ipv6") else (4,)
