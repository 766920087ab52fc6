"""The engine's pure part in one place: packets, the connection table, names (`csrc/uvs.h`).

Addresses are packed bytes in network order (4 or 16), ports are host-order integers, times are
nanoseconds of one monotonic clock unless a name says ms. Nothing here does I/O but `Table`, which
maps a file.
"""

from uvs.engine.binding import ffi, lib
from uvs.engine.clock import clock
from uvs.engine.fastpath import Fast, FastPath, NextHop, NextHops, Step
from uvs.engine.names import (
    AF_INET,
    AF_INET6,
    PACKET_MAX,
    PE_MAX,
    RECORD_SIZE,
    ROUTE_LEARNED,
    ROUTE_MTU,
    TUN_F_CSUM,
    TUN_F_REMCSUM,
    TUN_GRE,
    TUN_GUE,
    TUN_IPIP,
    Choose,
    ConnFlag,
    DestFlag,
    Dir,
    Hdr,
    Why,
)
from uvs.engine.packet import Header, Packet, checksum, crc32c, tunnel_hlen
from uvs.engine.reassembly import Reassembler
from uvs.engine.services import Kind, Sched, publish, withdraw
from uvs.engine.table import (
    AppData,
    Conn,
    DestRecord,
    ServiceRecord,
    Table,
    TableError,
    sctp_next,
    state_name,
    tcp_next,
    why_name,
)
from uvs.engine.trace import Trace

__all__ = [
    "AF_INET",
    "AF_INET6",
    "PACKET_MAX",
    "PE_MAX",
    "RECORD_SIZE",
    "ROUTE_LEARNED",
    "ROUTE_MTU",
    "TUN_F_CSUM",
    "TUN_F_REMCSUM",
    "TUN_GRE",
    "TUN_GUE",
    "TUN_IPIP",
    "AppData",
    "Choose",
    "Conn",
    "ConnFlag",
    "DestFlag",
    "DestRecord",
    "Dir",
    "Fast",
    "FastPath",
    "Hdr",
    "Header",
    "Kind",
    "NextHop",
    "NextHops",
    "Packet",
    "Reassembler",
    "Sched",
    "ServiceRecord",
    "Step",
    "Table",
    "TableError",
    "Trace",
    "Why",
    "checksum",
    "clock",
    "crc32c",
    "ffi",
    "lib",
    "publish",
    "sctp_next",
    "state_name",
    "tcp_next",
    "tunnel_hlen",
    "why_name",
    "withdraw",
]
