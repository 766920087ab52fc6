"""`--json`: listings for programs. Described in uvsadm(8)."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterable
from typing import Any

from uvs.adm import listing
from uvs.control.client import Timeouts
from uvs.control.extension import ConnEntry
from uvs.control.messages import DestEntry, ServiceEntry, Stats
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, DestSpec, QueueRow

COUNTERS = ("connections", "packets_in", "packets_out", "bytes_in", "bytes_out")
RATES = ("connections", "packets_in", "packets_out", "bytes_in", "bytes_out")


def put(what: dict[str, Any]) -> None:
    """Write it out."""
    json.dump(what, sys.stdout, indent=2)
    sys.stdout.write("\n")


def timeouts(found: Timeouts) -> dict[str, Any]:
    """`-L --timeout`, seconds."""
    return {"timeouts": {"tcp": found.tcp, "tcpfin": found.tcp_fin, "udp": found.udp}}


def connections(found: Iterable[ConnEntry]) -> dict[str, Any]:
    """`-L -c`."""
    return {"connections": [listing.conn_json(entry) for entry in found]}


def service(entry: ServiceEntry, servers: list[DestEntry]) -> dict[str, Any]:
    """A service and its real servers."""
    spec, key = entry.spec, entry.spec.key
    row: dict[str, Any] = {"family": "inet6" if key.af == socket.AF_INET6 else "inet"}
    if key.fwmark:
        row["fwmark"] = key.fwmark
    else:
        row |= {
            "protocol": listing.PROTOCOL_NAMES.get(key.protocol, str(key.protocol)).lower(),
            "address": socket.inet_ntop(key.af, key.addr),
            "port": key.port,
        }
    row |= {
        "scheduler": spec.sched_name,
        "scheduler_flags": listing.sched_flags(spec),
        "persistence": None,
        "ops": bool(spec.flags & SVC_F_ONEPACKET),
        **stats(entry.stats),
        "servers": [_server(server) for server in servers],
    }
    if spec.flags & SVC_F_PERSISTENT:
        whole = "128" if key.af == socket.AF_INET6 else "255.255.255.255"
        mask = listing.netmask_text(spec) or whole
        row["persistence"] = {"timeout": spec.timeout, "netmask": mask, "engine": spec.pe_name or None}
    return row


def _server(entry: DestEntry) -> dict[str, Any]:
    spec = entry.spec
    return {
        "address": socket.inet_ntop(spec.af, spec.addr),
        "port": spec.port,
        "method": listing.METHODS.get(spec.fwd, str(spec.fwd)).lower(),
        "tunnel": _tunnel(spec),
        "weight": spec.weight,
        "upper_threshold": spec.u_threshold,
        "lower_threshold": spec.l_threshold,
        "active": entry.activeconns,
        "inactive": entry.inactconns,
        "persistent": entry.persistconns,
        **stats(entry.stats),
    }


def _tunnel(spec: DestSpec) -> dict[str, Any] | None:
    if listing.METHODS.get(spec.fwd) != "Tunnel":
        return None
    checksum = {0: "none", 1: "full", 2: "remote"}.get(spec.tun_flags)
    kind = listing.TUN_NAMES.get(spec.tun_type, str(spec.tun_type))
    return {"type": kind, "port": spec.tun_port, "checksum": checksum}


def counters(queues: list[QueueRow], reasons: dict[str, int], table: dict[str, int]) -> dict[str, Any]:
    """What stands beside the services with `--stats`: counts of queues, verdicts by reason, the table."""
    return {"queues": queues, "reasons": reasons, "table": table}


def stats(counted: Stats) -> dict[str, Any]:
    """Counters and rates."""
    return {
        "stats": dict(zip(COUNTERS, counted[:5], strict=True)),
        "rate": dict(zip(RATES, counted[5:], strict=True)),
    }
