"""The lab of the soak, in which one director uses all forwarding methods at once.

    client, director, rs1 rs2 rs3 all on A, the VIPs on lo of the servers, which are the ends of tunnels too

What a server sends from its own address goes by the director (NAT: a rule of its routing), what it sends from a VIP
goes straight to the client (direct routing and tunnels).
"""

from __future__ import annotations

import dataclasses
import shutil
import socket
from collections.abc import Iterator

from support.running import Running

from uvs.control.client import Client
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.lab import links, processes
from uvs.lab.namespaces import Lab
from uvs.lab.servers import payload
from uvs.lab.topology import ECHO_PORT, HTTP_PORT, topology

MASQ, TUNNEL, DROUTE = 0, 2, 3  # IP_VS_CONN_F_*
TCP, UDP = socket.IPPROTO_TCP, socket.IPPROTO_UDP
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}
NET = {4: "192.0.2.", 6: "2001:db8:a::"}
FTP_PORT, FTP_VIP = 21, 107
FTP_FILE = 150_000
PERSISTENT = 0x1  # IP_VS_SVC_F_PERSISTENT

# Virtual addresses: their last part, and how the three servers of each are reached.
STABLE = {100: MASQ, 101: DROUTE, 102: TUNNEL}  # never changed: no connection may fail
CHANGED = (103, 104, 105, 106)  # changed all the time
SERVERS = 3

FTP_CONFIG = """\
listen_ipv6=YES
run_as_launching_user=YES
seccomp_sandbox=NO
anonymous_enable=YES
anon_root=/run/ftp
connect_from_port_20=YES
background=NO
"""


def vip(family: int, last: int) -> str:
    """A virtual address."""
    return f"{NET[family]}{last}"


def key(family: int, last: int, port: int) -> ServiceKey:
    """The service at a virtual address; the port says the protocol."""
    packed = socket.inet_pton(FAMILIES[family], vip(family, last))
    return ServiceKey(FAMILIES[family], UDP if port == ECHO_PORT else TCP, packed, port)


def server(family: int, number: int, port: int, fwd: int, weight: int = 1) -> DestSpec:
    """Real server rs<number>."""
    packed = socket.inet_pton(FAMILIES[family], f"{NET[family]}{10 + number}")
    return DestSpec(FAMILIES[family], packed, port, fwd, weight)


def stable() -> Iterator[tuple[ServiceSpec, list[DestSpec]]]:
    """The services that are never changed, with their servers."""
    for family in FAMILIES:
        netmask = 0xFFFFFFFF if family == 4 else 128
        for last, fwd in STABLE.items():
            for port in (HTTP_PORT, ECHO_PORT):
                spec = ServiceSpec(
                    key(family, last, port), "wlc" if port == HTTP_PORT else "rr", netmask=netmask
                )
                yield spec, [server(family, n, port, fwd) for n in range(1, SERVERS + 1)]
        yield (
            ServiceSpec(key(family, FTP_VIP, FTP_PORT), "rr", netmask=netmask),
            [server(family, 1, FTP_PORT, MASQ)],
        )


def create() -> Lab:
    """The lab, its servers and tunnels' ends not running yet."""
    made = topology("dr", SERVERS)
    lab = Lab.create(
        dataclasses.replace(
            made,
            hosts=tuple(dataclasses.replace(h, decapsulates=h.name.startswith("rs")) for h in made.hosts),
        )
    )
    more = [last for last in (*STABLE, *CHANGED, FTP_VIP) if last != 100]
    routes = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
    silent = {"net/ipv4/conf/all/send_redirects": "0", "net/ipv4/conf/eth0/send_redirects": "0"}
    deaf = {f"net/ipv{f}/conf/eth0/accept_redirects": "0" for f in FAMILIES}
    lab.call("director", links.write_sysctls, routes | silent)
    for host in lab.topology.hosts:
        lab.call(host.name, links.write_sysctls, deaf)
        if host.name == "client":
            continue
        dev = "eth0" if host.name == "director" else "lo"
        lines = [f"address add {vip(4, last)}/32 dev {dev}" for last in more]
        lines += [f"address add {vip(6, last)}/128 dev {dev} nodad" for last in more]
        lab.check(host.name, ["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
        if host.name == "director":
            continue
        for family in FAMILIES:
            rules = [
                f"route add default via {NET[family]}1 dev eth0 table 100",
                f"rule add from {host.address(family)} lookup 100",
            ]
            lab.check(host.name, ["ip", f"-{family}", "-batch", "-"], stdin="\n".join(rules) + "\n")
    return lab


def ftp(lab: Lab) -> None:
    """vsftpd on rs1."""
    program = shutil.which("vsftpd", path="/usr/sbin:/usr/local/sbin")
    assert program, "vsftpd is missing: scripts/setup test"
    folder = lab.path("/run/ftp")
    folder.mkdir()
    (folder / "data").write_bytes(payload(FTP_FILE))
    lab.path("/run/vsftpd.conf").write_text(FTP_CONFIG)
    lab.start("rs1", "vsftpd", (program, "/run/vsftpd.conf"))


def start(lab: Lab, driver: str, rate: int, options: list[str]) -> Running:
    """The servers, and a director with its stable services."""
    command = ("env", f"UVS_CLOCK_RATE={rate}", *processes.UVS, "run", "--driver", driver, *options)
    running = Running(lab, command)
    ftp(lab)
    with running.client() as client:
        for spec, servers in stable():
            add(client, spec, servers)
    return running


def add(client: Client, spec: ServiceSpec, servers: list[DestSpec]) -> None:
    """A service with its servers."""
    client.add_service(spec)
    for each in servers:
        client.add_dest(spec.key, each)
