"""`-S`: the table as command lines, which `-R` reads."""

from __future__ import annotations

import socket
from collections.abc import Iterator

from uvs.adm.listing import TUN_NAMES, netmask_text, sched_flags
from uvs.adm.names import Names
from uvs.control.messages import DestEntry
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, DestSpec, ServiceKey, ServiceSpec

_FLAGS = {IPPROTO_TCP: "-t", IPPROTO_UDP: "-u", IPPROTO_SCTP: "--sctp-service"}
_METHODS = {0: "-m", 2: "-i", 3: "-g"}
_CSUMS = {0: "--tun-nocsum", 1: "--tun-csum", 2: "--tun-remcsum"}


def _service(key: ServiceKey, names: Names) -> str:
    if key.fwmark:
        return f"-f {key.fwmark}" + (" -6" if key.af == socket.AF_INET6 else "")
    return f"{_FLAGS.get(key.protocol, '-t')} {names.endpoint(key.af, key.addr, key.port, key.protocol)}"


def lines(
    spec: ServiceSpec, servers: list[DestEntry], names: Names, thresholds: bool = True
) -> Iterator[str]:
    """A service and its real servers; `thresholds`: with theirs, which ipvsadm 1.31 leaves out."""
    service = _service(spec.key, names)
    line = f"-A {service} -s {spec.sched_name}"
    if spec.flags & SVC_F_PERSISTENT:
        line += f" -p {spec.timeout}"
        if mask := netmask_text(spec):
            line += f" -M {mask}"
    if spec.pe_name:
        line += f" --pe {spec.pe_name}"
    if spec.flags & SVC_F_ONEPACKET:
        line += " -o"
    if flags := sched_flags(spec):
        line += f" -b {','.join(flags)}"
    yield line
    for entry in servers:
        server = entry.spec
        endpoint = names.endpoint(
            server.af, server.addr, server.port, 0 if spec.key.fwmark else spec.key.protocol
        )
        method = _METHODS.get(server.fwd, "-g")
        limits = _thresholds(server) if thresholds else ""
        yield f"-a {service} -r {endpoint} {method} -w {server.weight}{limits}{_tunnel(server)}"


def _thresholds(spec: DestSpec) -> str:
    upper = f" -x {spec.u_threshold}" if spec.u_threshold else ""
    return upper + (f" -y {spec.l_threshold}" if spec.l_threshold else "")


def _tunnel(spec: DestSpec) -> str:
    if _METHODS.get(spec.fwd) != "-i":
        return ""
    name = TUN_NAMES.get(spec.tun_type, "ipip")
    if name == "ipip":
        return " --tun-type ipip"
    port = f" --tun-port {spec.tun_port}" if name == "gue" else ""
    return f" --tun-type {name}{port} {_CSUMS.get(spec.tun_flags, '--tun-nocsum')}"
