"""Every metric that is exported: docs/reference/metrics.md has the same list.

Those of `node_ipvs_*` are node_exporter's (collector/ipvs_linux.go), names and labels, so that what was made
for ip_vs works.
"""

from __future__ import annotations

from typing import NamedTuple

SERVICE = ("local_address", "local_port", "local_mark", "proto")
# In the order of node_exporter: remote_address and remote_port stand between.
SERVER = ("local_address", "local_port", "remote_address", "remote_port", "proto", "local_mark")
QUEUE = ("queue", "class")


class Family(NamedTuple):
    """A metric. A counter's name ends in `_total`."""

    name: str
    labels: tuple[str, ...]
    text: str

    @property
    def counts(self) -> bool:
        """Is it a counter, which only grows? The others are gauges."""
        return self.name.endswith("_total")


_COUNTED = (
    ("connections", "connections"),
    ("incoming_packets", "packets from clients"),
    ("outgoing_packets", "packets to clients"),
    ("incoming_bytes", "bytes from clients"),
    ("outgoing_bytes", "bytes to clients"),
)

FAMILIES = (
    Family("node_ipvs_connections_total", (), "The total number of connections made."),
    Family("node_ipvs_incoming_packets_total", (), "The total number of incoming packets."),
    Family("node_ipvs_outgoing_packets_total", (), "The total number of outgoing packets."),
    Family("node_ipvs_incoming_bytes_total", (), "The total amount of incoming data."),
    Family("node_ipvs_outgoing_bytes_total", (), "The total amount of outgoing data."),
    Family("node_ipvs_backend_connections_active", SERVER, "Active connections of a real server."),
    Family("node_ipvs_backend_connections_inactive", SERVER, "Inactive connections of a real server."),
    Family("node_ipvs_backend_weight", SERVER, "Weight of a real server; 0: it gets no new connections."),
    Family("uvs_up", (), "1: the director answered; 0: it did not, and nothing else is told of it."),
    Family("uvs_scrape_duration_seconds", (), "How long the director's answers took."),
    Family("uvs_build_info", ("version",), "1, with the version of the running director."),
    Family("uvs_start_time_seconds", (), "When the director began to serve, seconds since 1970."),
    Family("uvs_packets_total", ("why",), "Packets by the reason of their verdict."),
    Family("uvs_queue_packets_total", (*QUEUE, "path"), "Packets of a queue by their path: fast or slow."),
    Family("uvs_queue_dropped_total", (*QUEUE, "reason"), "Packets of a queue that were lost at it."),
    Family("uvs_queue_waiting_packets", QUEUE, "Packets that wait in a queue for their verdict."),
    Family("uvs_unresolved_packets", (), "Packets that wait for a neighbour's MAC address."),
    Family("uvs_services", (), "Virtual services."),
    Family("uvs_servers", (), "Real servers of all services."),
    Family("uvs_connections", (), "Connections in the table."),
    Family("uvs_connection_templates", (), "Persistence templates in the table."),
    Family("uvs_connections_max", (), "Connections and templates that the table can hold."),
    Family("uvs_table_full_total", (), "How often the table had no room for a record."),
    Family("uvs_table_bytes", (), "Size of the table's file."),
    Family("uvs_trace_active", (), "Traces that go on."),
    Family("uvs_trace_matched_total", (), "Packets that matched a trace's filter."),
    Family("uvs_trace_suppressed_total", (), "Of them, those that were not shown: too many."),
    Family("uvs_walks_recorded_total", (), "Walks recorded without a trace, as for a lab's packets."),
    Family("uvs_server_configured_weight", SERVER, "Weight that a real server is configured with."),
    Family("uvs_server_draining", SERVER, "1: a real server is being drained; others have no sample."),
    Family("uvs_service_fallback", SERVICE, "1: a service has its fallback server; others have no sample."),
    Family("uvs_health_up", SERVER, "Checks say of a real server: 1 it is up, 0 it is down."),
    Family("uvs_health_state", (*SERVER, "state"), "1: a checked server is in this state, 0: it is not."),
    Family("uvs_health_check_up", (*SERVER, "check"), "A check of a real server says: 1 up, 0 down."),
    Family("uvs_health_check_duration_seconds", (*SERVER, "check"), "How long a check's last run took."),
    *(Family(f"uvs_service_{name}_total", SERVICE, f"A service's {text}.") for name, text in _COUNTED),
    *(Family(f"uvs_server_{name}_total", SERVER, f"A real server's {text}.") for name, text in _COUNTED),
)  # fmt: skip

BY_NAME = {family.name: family for family in FAMILIES}
