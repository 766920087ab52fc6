"""All checks, in the order in which their findings are told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from uvs.doctor import (
    conntrack,
    counters,
    firewall,
    layered,
    machine,
    rivals,
    segment,
    servers,
    services,
    sysctls,
)
from uvs.doctor.finding import Finding
from uvs.doctor.host import Host

CHECKS: tuple[Callable[[Host], Iterator[Finding]], ...] = (
    machine.check_privileges,
    machine.check_queue,
    machine.check_rules,
    machine.check_packet_socket,
    machine.check_user_namespaces,
    machine.check_ipip,
    machine.check_clock,
    machine.check_offload,
    sysctls.check_forwarding,
    sysctls.check_rp_filter,
    sysctls.check_accept_local,
    sysctls.check_send_redirects,
    sysctls.check_route_localnet,
    sysctls.check_bridge,
    conntrack.check_conntrack,
    conntrack.check_notrack,
    firewall.check_firewall,
    firewall.check_marks,
    rivals.check_stale,
    rivals.check_ip_vs,
    rivals.check_directors,
    counters.check_director,
    services.check_vips,
    services.check_vip_on_lo,
    segment.check_vip_elsewhere,
    services.check_servers,
    layered.check_layers,
    services.check_shadowed,
    services.check_server_ports,
    servers.check_ways,
    servers.check_off_link,
    servers.check_replies,
    servers.check_silent,
    servers.check_tunnels,
)


def examine(host: Host) -> list[Finding]:
    """All findings, in the order of the checks."""
    return [finding for check in CHECKS for finding in check(host)]
