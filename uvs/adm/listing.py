"""Listings, column by column as ipvsadm 1.31 prints them."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from operator import itemgetter
from typing import TypeVar

from uvs.adm.names import Names
from uvs.control.extension import ConnEntry
from uvs.control.messages import DestEntry, ServiceEntry, Stats
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP, PROTO_NAMES
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, DestSpec, ServiceKey, ServiceSpec

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
PROTOCOL_NAMES = {number: PROTO_NAMES[number] for number in (IPPROTO_TCP, IPPROTO_UDP, IPPROTO_SCTP)}
METHODS = {0: "Masq", 1: "Local", 2: "Tunnel", 3: "Route"}
TUN_NAMES = {0: "ipip", 1: "gue", 2: "gre"}
TUN_CSUMS = {0: "-c", 1: "+c", 2: "r+c"}
SERVICE_WIDTH, SERVER_WIDTH = 33, 28

_Row = TypeVar("_Row")
_Keyed = tuple[list[int], _Row]  # what it is sorted by, and the row


class Columns(Enum):
    """What a listing shows, by the option that asks for it; the first of several wins."""

    STATS = "stats"
    RATE = "rate"
    THRESHOLDS = "thresholds"
    PERSISTENT = "persistent-conn"
    TUNNEL = "tun-info"
    DEFAULT = ""


def version(code: int, size: int) -> str:
    """The line above a full listing."""
    return f"IP Virtual Server version {code >> 16 & 255}.{code >> 8 & 255}.{code & 255} (size={size})"


# ------------------------------------------------------------------- numbers


def large(value: int, exact: bool) -> str:
    """A counter in nine columns; thousands and more by a letter, unless `exact`."""
    if exact:
        return f"{value:{max(9, len(str(value)) + 1)}}"
    if value < 10**8:
        return f"{value:9}"
    for limit, unit, letter in ((10**9, 10**3, "K"), (10**11, 10**6, "M"), (10**14, 10**9, "G")):
        if value < limit:
            return f"{value // unit:8}{letter}"
    return f"{value // 10**12:8}T"


# --------------------------------------------------------------------- texts


def service_text(key: ServiceKey, names: Names) -> str:
    """`TCP  10.0.0.1:80`, `FWM  7 IPv6`; cut to its column for IPv4."""
    if key.fwmark:
        text = f"FWM  {key.fwmark}" + (" IPv6" if key.af == AF_INET6 else "")
    else:
        endpoint = names.endpoint(key.af, key.addr, key.port, key.protocol)
        text = f"{PROTOCOL_NAMES.get(key.protocol, str(key.protocol)):4} {endpoint}"
    return text if key.af == AF_INET6 else text[:SERVICE_WIDTH]


def server_text(spec: DestSpec, key: ServiceKey, names: Names) -> str:
    """`10.0.0.2:80`; cut to its column for IPv4. A fwmark service's ports have no names."""
    text = names.endpoint(spec.af, spec.addr, spec.port, 0 if key.fwmark else key.protocol)
    return text if spec.af == AF_INET6 else text[:SERVER_WIDTH]


def sched_flags(spec: ServiceSpec) -> list[str]:
    """SCHED1..3 by the names that fit the scheduler."""
    own = (("sh-fallback", "sh-port", "flag-3"), ("mh-fallback", "mh-port", "flag-3"))
    named = {"sh": own[0], "mh": own[1]}.get(spec.sched_name, ("flag-1", "flag-2", "flag-3"))
    return [name for bit, name in zip((8, 0x10, 0x20), named, strict=True) if spec.flags & bit]


def netmask_text(spec: ServiceSpec) -> str:
    """The persistence mask, empty if it is a single address."""
    if spec.key.af == AF_INET6:
        return "" if spec.netmask == 128 else str(spec.netmask)
    return "" if spec.netmask == 0xFFFFFFFF else socket.inet_ntoa(spec.netmask.to_bytes(4, "big"))


def service_row(spec: ServiceSpec, text: str) -> str:
    """The row of a service where it is shown with its settings."""
    parts = [text, spec.sched_name]
    if flags := sched_flags(spec):
        parts.append(f"({','.join(flags)})")
    if spec.flags & SVC_F_PERSISTENT:
        parts.append(f"persistent {spec.timeout}")
        if mask := netmask_text(spec):
            parts.append(f"mask {mask}")
        if spec.pe_name:
            parts.append(f"pe {spec.pe_name}")
    if spec.flags & SVC_F_ONEPACKET:
        parts.append("ops")
    return " ".join(parts)


def tunnel_text(spec: DestSpec) -> str:
    """`ipip`, `gue:6080:+c`, `gre:-c`, or `n/a`."""
    if METHODS.get(spec.fwd) != "Tunnel":
        return "n/a"
    name = TUN_NAMES.get(spec.tun_type, "n/a")
    csum = TUN_CSUMS.get(spec.tun_flags, "")
    if name == "gue":
        return f"gue:{spec.tun_port}:{csum}"
    return f"gre:{csum}" if name == "gre" else name


# ---------------------------------------------------------------------- rows

_HEAD = "Prot LocalAddress:Port"
_REMOTE = "  -> RemoteAddress:Port"


def _heading(*columns: tuple[str, str]) -> str:
    return f"{_HEAD:33} " + " ".join(f"{title:{width}}" for title, width in columns) + f"\n{_REMOTE}"


HEADERS: dict[Columns, str] = {
    Columns.DEFAULT: f"{_HEAD} Scheduler Flags\n{_REMOTE}           Forward Weight ActiveConn InActConn",
    Columns.STATS: _heading(
        ("Conns", ">8"), ("InPkts", ">8"), ("OutPkts", ">8"), ("InBytes", ">8"), ("OutBytes", ">8")
    ),
    Columns.RATE: _heading(
        ("CPS", ">8"), ("InPPS", ">8"), ("OutPPS", ">8"), ("InBPS", ">8"), ("OutBPS", ">8")
    ),
    Columns.THRESHOLDS: _heading(
        ("Uthreshold", "10"), ("Lthreshold", "10"), ("ActiveConn", "10"), ("InActConn", "10")
    ),
    Columns.PERSISTENT: _heading(
        ("Weight", "9"), ("PersistConn", "11"), ("ActiveConn", "10"), ("InActConn", "10")
    ),
    Columns.TUNNEL: f"{_HEAD} Scheduler Flags\n"
    f"{_REMOTE}           Forward TunnelInfo    Weight ActiveConn InActConn",
}


def service_line(entry: ServiceEntry, columns: Columns, exact: bool, names: Names) -> str:
    """A service's line."""
    text = service_text(entry.spec.key, names)
    if columns in (Columns.STATS, Columns.RATE):
        return f"{text:{SERVICE_WIDTH}}" + "".join(large(n, exact) for n in _five(entry.stats, columns))
    return service_row(entry.spec, text)


def server_line(entry: DestEntry, key: ServiceKey, columns: Columns, exact: bool, names: Names) -> str:
    """A real server's line."""
    spec = entry.spec
    start = f"  -> {server_text(spec, key, names):{SERVER_WIDTH}}"
    active, inactive = entry.activeconns, entry.inactconns
    method = METHODS.get(spec.fwd, "")
    match columns:
        case Columns.STATS:
            return start + "".join(large(n, exact) for n in _five(entry.stats, columns))
        case Columns.RATE:
            five = _five(entry.stats, columns)
            return start + "".join(f" {n:8}" for n in five[:3]) + "".join(large(n, exact) for n in five[3:])
        case Columns.THRESHOLDS:
            return f"{start} {spec.u_threshold:<10} {spec.l_threshold:<10} {active:<10} {inactive:<10}"
        case Columns.PERSISTENT:
            return f"{start} {spec.weight:<9} {entry.persistconns:<11} {active:<10} {inactive:<10}"
        case Columns.TUNNEL:
            return f"{start} {method:7} {tunnel_text(spec):13} {spec.weight:<6} {active:<10} {inactive:<10}"
        case _:
            return f"{start} {method:7} {spec.weight:<6} {active:<10} {inactive:<10}"


def _five(stats: Stats, columns: Columns) -> tuple[int, ...]:
    return stats[:5] if columns == Columns.STATS else stats[5:]


# ---------------------------------------------------------------- connections


def connections(conns: Iterable[ConnEntry], pe: bool, names: Names) -> Iterator[str]:
    """`-L -c`: heading and a line for each entry."""
    yield "IPVS connection entries"
    head = f"pro expire {'state':11} {'source':18} {'virtual':18} "
    yield head + (f"{'destination':18} {'pe name':16} pe_data" if pe else "destination")
    for c in conns:
        protocol = PROTO_NAMES.get(c.protocol, f"IP_{c.protocol}")
        seconds = c.expires // 1000
        source, virtual, server = (
            names.endpoint(af, addr, port, c.protocol)
            for af, addr, port in (
                (c.af, c.caddr, c.cport),
                (c.af, c.vaddr, c.vport),
                (c.daf, c.daddr, c.dport),
            )
        )
        expiry = f"{seconds // 60:02}:{seconds % 60:02}"
        row = f"{protocol:3} {expiry:6} {c.state:11} {source:18} {virtual:18} "
        name, _, data = c.pe.decode("ascii", "backslashreplace").partition(" ")
        yield row + (f"{server:16} {name:18} {data}" if pe and data else server)


def conn_json(c: ConnEntry) -> dict[str, object]:
    """A connection as `uvsadm -Lc --json` and `uvs flush -n --json` tell it."""
    row: dict[str, object] = {
        "protocol": PROTO_NAMES.get(c.protocol, f"IP_{c.protocol}"),
        "expires": c.expires // 1000,
        "state": c.state,
        "client": {"address": socket.inet_ntop(c.af, c.caddr), "port": c.cport},
        "virtual": {"address": socket.inet_ntop(c.af, c.vaddr), "port": c.vport},
        "server": {"address": socket.inet_ntop(c.daf, c.daddr), "port": c.dport},
        "fwmark": c.fwmark,
        "flags": c.flags,
    }
    return row


# ------------------------------------------------------------------- sorting


def _wrapped(a: int, b: int) -> int:
    """a - b in a C int: ipvsadm's order turns round where the difference passes 2^31."""
    return ((a - b + 2**31) & 0xFFFFFFFF) - 2**31


def _words(addr: bytes) -> list[int]:
    return [int.from_bytes(addr[i : i + 4], "big") for i in range(0, len(addr), 4)]


def _compare(a: list[int], b: list[int]) -> int:
    return next((d for x, y in zip(a, b, strict=False) if (d := _wrapped(x, y))), 0)


def _service_order(entry: ServiceEntry) -> list[int]:
    key = entry.spec.key
    return [key.fwmark, key.af, key.protocol, *_words(key.addr), key.port]


def _server_order(entry: DestEntry) -> list[int]:
    return [*_words(entry.spec.addr), entry.spec.port]


def merge_sort(rows: list[_Row], order: Callable[[_Row], list[int]]) -> list[_Row]:
    """Sort as glibc's qsort does.

    The order is not transitive where it wraps, so that the way of sorting shows in the result.
    """
    keyed = [(order(row), row) for row in rows]
    if not _wraps([key for key, _ in keyed]):
        return [row for _, row in sorted(keyed, key=itemgetter(0))]
    return [row for _, row in _merged(keyed)]


def _wraps(keys: list[list[int]]) -> bool:
    """Is there anything in which two may differ by 2^31 or more? Else any stable sort gives the same."""
    if len({len(key) for key in keys}) > 1:
        return True
    return any(max(column) - min(column) >= 2**31 for column in zip(*keys, strict=True))


def _merged(rows: list[_Keyed[_Row]]) -> list[_Keyed[_Row]]:
    if len(rows) < 2:
        return rows
    half = len(rows) // 2
    left, right = _merged(rows[:half]), _merged(rows[half:])
    merged: list[_Keyed[_Row]] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if _compare(left[i][0], right[j][0]) <= 0:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


def sorted_services(rows: list[ServiceEntry]) -> list[ServiceEntry]:
    """By mark, family, protocol, address, port."""
    return merge_sort(rows, _service_order)


def sorted_servers(rows: list[DestEntry]) -> list[DestEntry]:
    """By address and port."""
    return merge_sort(rows, _server_order)
