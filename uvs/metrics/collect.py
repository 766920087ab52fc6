"""A director's answers as metrics."""

from __future__ import annotations

import socket
from collections import defaultdict

from uvs.control.messages import Stats
from uvs.control.rows import service_text
from uvs.ipvs.ipproto import PROTO_NAMES
from uvs.ipvs.spec import DestSpec, ServiceKey
from uvs.metrics.ask import Answers
from uvs.metrics.families import BY_NAME

Labels = tuple[str, ...]
Samples = dict[str, dict[Labels, float]]  # by metric and the values of its labels, both in order

COUNTED = ("connections", "incoming_packets", "outgoing_packets", "incoming_bytes", "outgoing_bytes")
STATES = ("OK", "DEGRADED", "FAULTED")
# Packets that a queue lost, by the names of GET_QUEUES.
_LOST = ("cut", "refused", "unsaid", "errors")
_FIGURES = {
    "uvs_unresolved_packets": "waiting",
    "uvs_services": "services",
    "uvs_servers": "dests",
    "uvs_connections": "conns",
    "uvs_connection_templates": "templates",
    "uvs_connections_max": "conn_max",
    "uvs_table_full_total": "full",
    "uvs_table_bytes": "bytes",
    "uvs_trace_active": "traces",
    "uvs_trace_matched_total": "traced",
    "uvs_trace_suppressed_total": "untold",
    "uvs_walks_recorded_total": "walks",
}


def samples(answers: Answers | None) -> Samples:
    """What is exported; None: no director answered."""
    if answers is None:
        return {"uvs_up": {(): 0}}
    found: Samples = {"uvs_up": {(): 1}, "uvs_scrape_duration_seconds": {(): answers.took}}
    if answers.about.version:
        found["uvs_build_info"] = {(answers.about.version,): 1}
        found["uvs_start_time_seconds"] = {(): answers.about.started}
    found["uvs_packets_total"] = {(why,): count for why, count in answers.reasons.items()}
    found |= {name: {(): answers.table[key]} for name, key in _FIGURES.items() if key in answers.table}
    _queues(found, answers)
    _counted(found, "node_ipvs", (), answers.total)
    _services(found, answers)
    _health(found, answers)
    return {name: found[name] for name in BY_NAME if name in found}


def _queues(found: Samples, answers: Answers) -> None:
    packets, dropped, waiting = (
        found.setdefault(f"uvs_queue_{name}", {})
        for name in ("packets_total", "dropped_total", "waiting_packets")
    )
    for row in answers.queues:
        queue = str(row["queue"]), str(row["class"])
        for path in ("fast", "slow"):
            packets[*queue, path] = _number(row.get(path))
        # The kernel's own count where it can be read; else what is missing among those that came.
        full = row.get("dropped")
        dropped[*queue, "full"] = _number(row.get("lost") if full is None else full)
        for reason in _LOST:
            dropped[*queue, reason] = _number(row.get(reason))
        if row.get("waiting") is not None:
            waiting[queue] = _number(row["waiting"])


def _number(value: int | str | None) -> float:
    return value if isinstance(value, int) else 0


def _services(found: Samples, answers: Answers) -> None:
    active, inactive, weight = (
        found.setdefault(f"node_ipvs_backend_{name}", defaultdict(float))
        for name in ("connections_active", "connections_inactive", "weight")
    )
    for entry, servers in answers.services:
        address, port, mark, proto = service_labels(entry.spec.key)
        _counted(found, "uvs_service", (address, port, mark, proto), entry.stats)
        for server in servers:
            # Services by one mark for both families are one here, as in node_exporter, and are summed up.
            labels = address, port, *server_labels(server.spec), proto, mark
            active[labels] += server.activeconns
            inactive[labels] += server.inactconns
            weight[labels] += server.spec.weight
            _counted(found, "uvs_server", labels, server.stats)


def _health(found: Samples, answers: Answers) -> None:
    configured, draining, fallback, up, states = (
        found.setdefault(f"uvs_{name}", {})
        for name in (
            "server_configured_weight",
            "server_draining",
            "service_fallback",
            "health_up",
            "health_state",
        )
    )
    services = {service_text(entry.spec.key): service_labels(entry.spec.key) for entry, _ in answers.services}
    for row in answers.health:
        if (service := services.get(row["service"])) is None:
            continue  # it came in between
        address, port, mark, proto = service
        labels = address, port, *_split(row["server"]), proto, mark
        if row["fallback"]:
            fallback[service] = 1
        configured[labels] = configured.get(labels, 0) + row["configured"]
        if row["drain"] is not None:
            draining[labels] = 1
        if row["up"] is not None:
            up[labels] = row["up"]
        if isinstance(state := row["about"].get("state"), str):
            for each in STATES:
                states[*labels, each] = each == state
        _checks(found, labels, row["about"].get("checks"))


def _checks(found: Samples, labels: Labels, checks: object) -> None:
    """Of what a monitor told: whatever it is, it does no harm."""
    up = found.setdefault("uvs_health_check_up", {})
    took = found.setdefault("uvs_health_check_duration_seconds", {})
    for check in checks if isinstance(checks, list) else ():
        if not (isinstance(check, dict) and isinstance(name := check.get("name"), str)):
            continue
        if isinstance(says := check.get("up"), bool):
            up[*labels, name] = says
        if isinstance(duration := check.get("duration"), int | float):
            took[*labels, name] = duration


def _split(server: str) -> tuple[str, str]:
    """`198.51.100.11:80`, `[2001:db8::1]:80` as labels."""
    host, _, port = server.rpartition(":")
    return host.strip("[]"), port


def _counted(found: Samples, of: str, labels: Labels, stats: Stats) -> None:
    for name, count in zip(COUNTED, stats, strict=False):  # the rates come after
        family = found.setdefault(f"{of}_{name}_total", {})
        family[labels] = family.get(labels, 0) + count


def service_labels(key: ServiceKey) -> tuple[str, str, str, str]:
    """Address, port, mark and protocol as node_exporter has them: of /proc/net/ip_vs."""
    if key.fwmark:
        return "", "0", f"{key.fwmark:08X}", "FWM"
    return address(key.af, key.addr), str(key.port), "", PROTO_NAMES.get(key.protocol, f"IP_{key.protocol}")


def server_labels(spec: DestSpec) -> tuple[str, str]:
    """Address and port."""
    return address(spec.af, spec.addr), str(spec.port)


def address(af: int, addr: bytes) -> str:
    """An address for people."""
    return socket.inet_ntop(af, addr)
