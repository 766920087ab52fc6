"""What is done inside a lab's namespaces: sysctls, addresses, waiting for links, offloads."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import socket
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from json import loads
from pathlib import Path

from uvs.lab import holder
from uvs.lab.topology import VIP, Host, Topology

SETTLE = 30.0  # seconds; links take up to one to come up, on a busy machine longer
MS_BIND = 4096
IFF_UP, IFF_RUNNING = 0x1, 0x40
SIOCGIFFLAGS, SIOCETHTOOL = 0x8913, 0x8946


def write_sysctls(sysctls: Mapping[str, str]) -> None:
    """Set sysctls (paths below /proc/sys) of this network namespace."""
    for name, value in sysctls.items():
        try:
            Path("/proc/sys", name).write_text(value)
        except FileNotFoundError:
            if "ipv6" not in name:  # a kernel without IPv6 is told where it matters
                raise


def addresses(host: Host) -> Iterator[str]:
    """The ip(8) lines that give a host its addresses and routes.

    On an Ethernet interface an IPv6 VIP is deprecated, lest it become the source of the host's own packets.
    """
    yield "link set lo up"
    for interface in host.interfaces:
        for address in interface.addresses:
            options = " nodad" if ":" in address else ""
            if interface.segment and address.endswith("/128"):
                options += " preferred_lft 0"
            yield f"address add {address} dev {interface.name}{options}"
        yield f"link set {interface.name} up"
    for gateway in host.gateways:
        yield f"route add default via {gateway}"


def write_hosts(topology: Topology) -> None:
    """/etc/hosts of the lab: its hosts by name, and `vip`."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for host in topology.hosts:
        lines += [f"{host.address(family)} {host.name}" for family in (4, 6)]
    lines += [f"{VIP[4]} vip", f"{VIP[6]} vip"]
    Path("/run/hosts").write_text("\n".join(lines) + "\n")
    with contextlib.suppress(OSError):
        holder.mount("/run/hosts", "/etc/hosts", "", MS_BIND)


def wait_links(names: Sequence[str]) -> list[str]:
    """Wait until interfaces have carrier and their link-local addresses; names of those that have not."""
    late = list(names)
    deadline = time.monotonic() + SETTLE
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while late and time.monotonic() < deadline:
            ready = _link_local(late)
            late = [n for n in late if not (_flags(sock, n) & IFF_RUNNING and n in ready)]
            if late:
                time.sleep(0.02)
    return [f"{socket.gethostname()} {n}" for n in late]


def _link_local(names: Sequence[str]) -> set[str]:
    """Interfaces that have a link-local IPv6 address; all, on a kernel without IPv6."""
    try:
        rows = Path("/proc/net/if_inet6").read_text().splitlines()
    except FileNotFoundError:
        return set(names)
    return {row.split()[5] for row in rows if row.startswith("fe80")}


def _flags(sock: socket.socket, name: str) -> int:
    request = struct.pack("16sh14x", name.encode(), 0)
    flags: int = struct.unpack_from("16sh", fcntl.ioctl(sock, SIOCGIFFLAGS, request))[1]
    return flags & 0xFFFF


def is_up(name: str) -> bool:
    """Is an interface set up?"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        return bool(_flags(sock, name) & IFF_UP)


def wait_ports() -> list[str]:
    """Wait until all bridge ports forward; those that do not."""
    deadline = time.monotonic() + SETTLE
    while True:
        ports = loads(subprocess.check_output(["bridge", "-j", "link", "show"]) or b"[]")
        late = [port["ifname"] for port in ports if port.get("state") != "forwarding"]
        if not late or time.monotonic() > deadline:
            return late
        time.sleep(0.02)


def set_offload(on: bool) -> None:
    """As ethtool -K rx tx sg tso gso, for all devices here (linux/ethtool.h, struct ethtool_value)."""
    commands = (0x15, 0x17, 0x19, 0x1F, 0x24)  # ETHTOOL_S: RXCSUM, TXCSUM, SG, TSO, GSO
    order = commands if on else commands[::-1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            if name == "lo":
                continue
            for command in order:
                value = (ctypes.c_uint32 * 2)(command, int(on))
                with contextlib.suppress(OSError):  # a feature that this kernel's veth has not
                    request = struct.pack("16sP8x", name.encode(), ctypes.addressof(value))
                    fcntl.ioctl(sock, SIOCETHTOOL, request)
