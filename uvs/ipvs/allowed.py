"""What a service and a destination may be (ip_vs_add_service, ip_vs_add_dest and around, ip_vs_ctl.c)."""

from __future__ import annotations

import errno

from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec

AF_INET, AF_INET6 = 2, 10
TUNNEL = 2  # IP_VS_CONN_F_TUNNEL
TUN_GUE = 1  # IP_VS_CONN_F_TUNNEL_TYPE_GUE


def check_service(spec: ServiceSpec) -> None:
    """IpvsError ENOENT: no such scheduler or persistence engine; EINVAL: protocol, prefix length."""
    from uvs.ipvs import pe, scheduling  # they need the engine, which a control program does not load

    if spec.key.protocol > 0xFF:  # ip_vs takes it, but no packet has one
        raise IpvsError(errno.EINVAL, "a protocol has 8 bits")
    if spec.sched_name != "none" and scheduling.find(spec.sched_name) is None:
        raise IpvsError(errno.ENOENT, f"no scheduler {spec.sched_name!r}")
    if spec.pe_name and pe.find(spec.pe_name) is None:
        raise IpvsError(errno.ENOENT, f"no persistence engine {spec.pe_name!r}")
    if spec.key.af == AF_INET6 and not 1 <= spec.netmask <= 128:
        raise IpvsError(errno.EINVAL, "IPv6 prefix length must be 1..128")


def check_dest(key: ServiceKey, spec: DestSpec) -> None:
    """IpvsError EAFNOSUPPORT, EINVAL: families, tunnel; ERANGE: weight, thresholds."""
    if spec.af not in (AF_INET, AF_INET6):
        raise IpvsError(errno.EAFNOSUPPORT, "address family")
    if spec.af != key.af and spec.fwd != TUNNEL:
        raise IpvsError(errno.EINVAL, "another address family only by tunnelling")
    if spec.weight < 0 or spec.l_threshold > spec.u_threshold:
        raise IpvsError(errno.ERANGE, "weight or thresholds out of range")
    if spec.tun_type == TUN_GUE and not spec.tun_port:
        raise IpvsError(errno.EINVAL, "a gue tunnel needs a port")
