"""The generic netlink family IPVS, version 1: commands, attributes, encoding and parsing.

What include/uapi/linux/ip_vs.h numbers and net/netfilter/ipvs/ip_vs_ctl.c reads and writes. pyroute2's
classes state most of it and are what the tests compare with; where they are wrong (0.9.7) this follows
the kernel: TUN_PORT is in network order, an IPv6 NETMASK is a prefix length, DAEMON, TIMEOUT_* and INFO
have a form.
"""

from __future__ import annotations

import enum
import errno
from socket import AF_INET, AF_INET6, htonl, htons, ntohl, ntohs
from struct import Struct
from typing import Any, NamedTuple

from uvs.control.netlink import ATTRIBUTE, Attrs, Layout, attribute, attributes, string
from uvs.ipvs.ipproto import IPPROTO_TCP
from uvs.ipvs.spec import SVC_F_HASHED, DestSpec, IpvsError, ServiceKey, ServiceSpec

FAMILY_NAME = "IPVS"
VERSION = 1
IPVS_VERSION_CODE = 0x010201  # 1.2.1
CONN_TAB_SIZE = 4096  # what a kernel says by default (ip_vs_conn_tab_bits 12)
ADDR_SIZE = 16
SCHED_NAME_MAX, PE_NAME_MAX = 15, 16
FWD_MASK = 7


class Cmd(enum.IntEnum):
    """IPVS_CMD_*."""

    NEW_SERVICE = 1
    SET_SERVICE = 2
    DEL_SERVICE = 3
    GET_SERVICE = 4
    NEW_DEST = 5
    SET_DEST = 6
    DEL_DEST = 7
    GET_DEST = 8
    NEW_DAEMON = 9
    DEL_DAEMON = 10
    GET_DAEMON = 11
    SET_CONFIG = 12
    GET_CONFIG = 13
    SET_INFO = 14
    GET_INFO = 15
    ZERO = 16
    FLUSH = 17


class Attr(enum.IntEnum):
    """IPVS_CMD_ATTR_*: top level."""

    SERVICE = 1
    DEST = 2
    DAEMON = 3
    TIMEOUT_TCP = 4
    TIMEOUT_TCP_FIN = 5
    TIMEOUT_UDP = 6


class Info(enum.IntEnum):
    """IPVS_INFO_ATTR_*: top level of the answer to GET_INFO."""

    VERSION = 1
    CONN_TAB_SIZE = 2


class Svc(enum.IntEnum):
    """IPVS_SVC_ATTR_*."""

    AF = 1
    PROTOCOL = 2
    ADDR = 3
    PORT = 4
    FWMARK = 5
    SCHED_NAME = 6
    FLAGS = 7
    TIMEOUT = 8
    NETMASK = 9
    STATS = 10
    PE_NAME = 11
    STATS64 = 12


class Dst(enum.IntEnum):
    """IPVS_DEST_ATTR_*."""

    ADDR = 1
    PORT = 2
    FWD_METHOD = 3
    WEIGHT = 4
    U_THRESH = 5
    L_THRESH = 6
    ACTIVE_CONNS = 7
    INACT_CONNS = 8
    PERSIST_CONNS = 9
    STATS = 10
    ADDR_FAMILY = 11
    STATS64 = 12
    TUN_TYPE = 13
    TUN_PORT = 14
    TUN_FLAGS = 15


class Daemon(enum.IntEnum):
    """IPVS_DAEMON_ATTR_*."""

    STATE = 1
    MCAST_IFN = 2
    SYNC_ID = 3
    SYNC_MAXLEN = 4
    MCAST_GROUP = 5
    MCAST_GROUP6 = 6
    MCAST_PORT = 7
    MCAST_TTL = 8


class Stats(NamedTuple):
    """Counters and rates of a service or destination, in the order of IPVS_STATS_ATTR_*."""

    conns: int = 0
    inpkts: int = 0
    outpkts: int = 0
    inbytes: int = 0
    outbytes: int = 0
    cps: int = 0
    inpps: int = 0
    outpps: int = 0
    inbps: int = 0
    outbps: int = 0


NO_STATS = Stats()


class ServiceEntry(NamedTuple):
    """A service as it is listed."""

    spec: ServiceSpec
    stats: Stats


class DestEntry(NamedTuple):
    """A destination as it is listed."""

    spec: DestSpec
    activeconns: int
    inactconns: int
    persistconns: int
    stats: Stats


_NUMBER = {1: Struct("=B"), 2: Struct("=H"), 4: Struct("=I"), 8: Struct("=Q")}

# ---------------------------------------------------------------- encoding

_STATS = Layout(*((n, "Q" if n in (4, 5) else "I") for n in range(1, 11)))
_STATS64 = Layout(*((n, "Q") for n in range(1, 11)))
_SVC_BY_MARK = Layout((Svc.AF, "H"), (Svc.FWMARK, "I"))
_SVC_BY_ADDR = Layout((Svc.AF, "H"), (Svc.PROTOCOL, "H"), (Svc.ADDR, "16s"), (Svc.PORT, "H"))
_SVC_REST = Layout((Svc.FLAGS, "8s"), (Svc.TIMEOUT, "I"), (Svc.NETMASK, "I"))
_SVC_STATS = Layout((Svc.STATS, f"{_STATS.size}s"), (Svc.STATS64, f"{_STATS64.size}s"))
_DEST_ID = Layout((Dst.ADDR, "16s"), (Dst.PORT, "H"), (Dst.ADDR_FAMILY, "H"))
_DEST_FIELDS = (
    (Dst.ADDR, "16s"),
    (Dst.PORT, "H"),
    (Dst.FWD_METHOD, "I"),
    (Dst.WEIGHT, "I"),
    (Dst.TUN_TYPE, "B"),
    (Dst.TUN_PORT, "H"),
    (Dst.TUN_FLAGS, "H"),
    (Dst.U_THRESH, "I"),
    (Dst.L_THRESH, "I"),
)
_DEST = Layout(*_DEST_FIELDS, (Dst.ADDR_FAMILY, "H"))
_DEST_LISTED = Layout(
    *_DEST_FIELDS,
    (Dst.ACTIVE_CONNS, "I"),
    (Dst.INACT_CONNS, "I"),
    (Dst.PERSIST_CONNS, "I"),
    (Dst.ADDR_FAMILY, "H"),
    (Dst.STATS, f"{_STATS.size}s"),
    (Dst.STATS64, f"{_STATS64.size}s"),
)
_LISTED_HEAD = ATTRIBUTE.pack(ATTRIBUTE.size + _DEST_LISTED.size, Attr.DEST)
_FLAGS = Struct("=II")
_CONFIG = Layout((Attr.TIMEOUT_TCP, "I"), (Attr.TIMEOUT_TCP_FIN, "I"), (Attr.TIMEOUT_UDP, "I"))
_INFO = Layout((Info.VERSION, "I"), (Info.CONN_TAB_SIZE, "I"))
_U32 = 0xFFFFFFFF
_NO_STATS = _STATS.pack(*NO_STATS), _STATS64.pack(*NO_STATS)


def stats_nests(stats: Stats) -> tuple[bytes, bytes]:
    """Payloads of the STATS nest (rates and packets truncated to 32 bits) and of STATS64."""
    if stats == NO_STATS:
        return _NO_STATS
    c, i, o, ib, ob, *rates = stats
    low = [r & _U32 for r in rates]
    return _STATS.pack(c & _U32, i & _U32, o & _U32, ib, ob, *low), _STATS64.pack(*stats)


def _service_id(key: ServiceKey) -> bytes:
    if key.fwmark:
        return _SVC_BY_MARK.pack(key.af, key.fwmark)
    return _SVC_BY_ADDR.pack(key.af, key.protocol, key.addr, htons(key.port))


def service_id(key: ServiceKey) -> bytes:
    """The SERVICE attribute that names a service."""
    return attribute(Attr.SERVICE, _service_id(key))


def service(spec: ServiceSpec, stats: Stats | None = None) -> bytes:
    """The SERVICE attribute with all of a service (ip_vs_genl_fill_service)."""
    parts = [_service_id(spec.key), string(Svc.SCHED_NAME, spec.sched_name)]
    if spec.pe_name:
        parts.append(string(Svc.PE_NAME, spec.pe_name))
    netmask = htonl(spec.netmask) if spec.key.af == AF_INET else spec.netmask
    parts.append(_SVC_REST.pack(_FLAGS.pack(spec.flags, _U32), spec.timeout, netmask))
    if stats is not None:
        parts.append(_SVC_STATS.pack(*stats_nests(stats)))
    return attribute(Attr.SERVICE, b"".join(parts))


def dest_id(af: int, addr: bytes, port: int) -> bytes:
    """The DEST attribute that names a destination."""
    return attribute(Attr.DEST, _DEST_ID.pack(addr, htons(port), af))


def dest(spec: DestSpec, counts: tuple[int, int, int] | None = None, stats: Stats = NO_STATS) -> bytes:
    """The DEST attribute with all of a destination (ip_vs_genl_fill_dest).

    `counts`: active, inactive, persistent connections, in a listing.
    """
    fields = (
        spec.addr,
        htons(spec.port),
        spec.fwd,
        spec.weight & _U32,
        spec.tun_type,
        htons(spec.tun_port),
        spec.tun_flags,
        spec.u_threshold,
        spec.l_threshold,
    )
    if counts is None:
        return attribute(Attr.DEST, _DEST.pack(*fields, spec.af))
    active, inactive, persistent = counts
    return attribute(
        Attr.DEST,
        _DEST_LISTED.pack(
            *fields, active & _U32, inactive & _U32, persistent & _U32, spec.af, *stats_nests(stats)
        ),
    )


def daemon(state: int, interface: str, syncid: int, maxlen: int, group: bytes, port: int, ttl: int) -> bytes:
    """The DAEMON attribute of NEW_DAEMON and DEL_DAEMON; what is 0 or empty is left to the director."""
    parts = [
        attribute(Daemon.STATE, _NUMBER[4].pack(state)),
        string(Daemon.MCAST_IFN, interface),
        attribute(Daemon.SYNC_ID, _NUMBER[4].pack(syncid)),
    ]
    if maxlen:
        parts.append(attribute(Daemon.SYNC_MAXLEN, _NUMBER[2].pack(maxlen)))
    if group:
        parts.append(attribute(Daemon.MCAST_GROUP if len(group) == 4 else Daemon.MCAST_GROUP6, group))
    if port:
        parts.append(attribute(Daemon.MCAST_PORT, _NUMBER[2].pack(port)))
    if ttl:
        parts.append(attribute(Daemon.MCAST_TTL, _NUMBER[1].pack(ttl)))
    return attribute(Attr.DAEMON, b"".join(parts))


def config(tcp: int, tcp_fin: int, udp: int) -> bytes:
    """The three time-outs, seconds."""
    return _CONFIG.pack(tcp, tcp_fin, udp)


def info() -> bytes:
    """What GET_INFO answers."""
    return _INFO.pack(IPVS_VERSION_CODE, CONN_TAB_SIZE)


# ----------------------------------------------------------------- parsing


def invalid(what: str) -> IpvsError:
    """EINVAL for a message that lacks something."""
    return IpvsError(errno.EINVAL, what)


def number(attrs: Attrs, kind: int, size: int, default: int | None = None) -> int:
    """A number of `size` bytes; EINVAL if it is missing (without default) or short."""
    data = attrs.get(kind)
    if data is None:
        if default is None:
            raise invalid(f"attribute {kind} is missing")
        return default
    if len(data) < size:
        raise invalid(f"attribute {kind} is short")
    value: int = _NUMBER[size].unpack_from(data)[0]
    return value


def text(attrs: Attrs, kind: int, limit: int, default: str | None = None) -> str:
    """A NUL-terminated string of at most `limit` bytes; EINVAL otherwise."""
    data = attrs.get(kind)
    if data is None:
        if default is None:
            raise invalid(f"attribute {kind} is missing")
        return default
    end = data.find(b"\0")
    if not 0 <= end <= limit or len(data) > limit + 1:
        raise invalid(f"attribute {kind} is no string of at most {limit} bytes")
    return data[:end].decode(errors="surrogateescape")


def payload(attrs: Attrs, kind: int) -> bytes:
    """A nest as it stands; EINVAL if it is missing."""
    data = attrs.get(kind)
    if data is None:
        raise invalid(f"nest {kind} is missing")
    return data


def nest(attrs: Attrs, kind: int) -> Attrs:
    """A nest's attributes; EINVAL if it is missing."""
    return attributes(payload(attrs, kind))


def _address(attrs: Attrs, kind: int, af: int) -> bytes:
    data = attrs.get(kind)
    if data is None or len(data) > ADDR_SIZE:
        raise invalid("address is missing or too long")
    return data.ljust(ADDR_SIZE, b"\0")[: 4 if af == AF_INET else 16]


def parse_key(attrs: Attrs) -> ServiceKey:
    """What names a service in a SERVICE nest. EINVAL, EAFNOSUPPORT (ip_vs_genl_parse_service)."""
    if Svc.AF not in attrs or (
        Svc.FWMARK not in attrs and not {Svc.PROTOCOL, Svc.ADDR, Svc.PORT} <= attrs.keys()
    ):
        raise invalid("a service needs AF and a mark, or protocol, address and port")
    af = number(attrs, Svc.AF, 2)
    mark = number(attrs, Svc.FWMARK, 4, 0)
    by_mark = Svc.FWMARK in attrs
    protocol = IPPROTO_TCP if by_mark else number(attrs, Svc.PROTOCOL, 2)
    port = 0 if by_mark else ntohs(number(attrs, Svc.PORT, 2))
    if af not in (AF_INET, AF_INET6):
        raise IpvsError(errno.EAFNOSUPPORT, f"address family {af}")
    addr = bytes(4 if af == AF_INET else 16) if by_mark else _address(attrs, Svc.ADDR, af)
    return ServiceKey(af, protocol, addr, port, mark)


def parse_service(attrs: Attrs, key: ServiceKey, flags: int = 0) -> ServiceSpec:
    """All of a service in a SERVICE nest; `flags` of the one that exists, 0 for a new one. EINVAL."""
    name = text(attrs, Svc.SCHED_NAME, SCHED_NAME_MAX)
    data = attrs.get(Svc.FLAGS, b"")
    if len(data) < _FLAGS.size:
        raise invalid("flags are missing or short")
    new, mask = _FLAGS.unpack_from(data)
    timeout = number(attrs, Svc.TIMEOUT, 4)
    netmask = number(attrs, Svc.NETMASK, 4)
    pe_name = text(attrs, Svc.PE_NAME, PE_NAME_MAX, "")
    if key.af == AF_INET:
        netmask = ntohl(netmask)
    flags = ((flags & ~mask) | (new & mask)) & ~SVC_F_HASHED
    return ServiceSpec(key, name, flags, timeout, netmask, pe_name)


def parse_dest(attrs: Attrs, svc_af: int, full: bool) -> DestSpec:
    """A destination in a DEST nest: what names it, or all of it. EINVAL, EAFNOSUPPORT."""
    af = number(attrs, Dst.ADDR_FAMILY, 2, 0) or svc_af
    if Dst.ADDR not in attrs or Dst.PORT not in attrs:
        raise invalid("a destination needs address and port")
    port = ntohs(number(attrs, Dst.PORT, 2))
    addr = _address(attrs, Dst.ADDR, af)
    spec = DestSpec(af, addr, port)
    if full:
        spec.fwd = number(attrs, Dst.FWD_METHOD, 4) & FWD_MASK
        weight = number(attrs, Dst.WEIGHT, 4)
        spec.weight = weight - (1 << 32) if weight >> 31 else weight
        spec.u_threshold = number(attrs, Dst.U_THRESH, 4)
        spec.l_threshold = number(attrs, Dst.L_THRESH, 4)
        spec.tun_type = number(attrs, Dst.TUN_TYPE, 1, 0)
        spec.tun_port = ntohs(number(attrs, Dst.TUN_PORT, 2, 0))
        spec.tun_flags = number(attrs, Dst.TUN_FLAGS, 2, 0)
    if af not in (AF_INET, AF_INET6):
        raise IpvsError(errno.EAFNOSUPPORT, f"address family {af}")
    return spec


def parse_stats(attrs: Attrs, kind: int) -> Stats:
    """A STATS64 nest."""
    data = attrs.get(kind, b"")
    if (row := _STATS64.unpack(data)) is not None:
        return Stats(*row)
    values = attributes(data)
    return Stats(*(number(values, n, 8, 0) for n in range(1, 11)))


def parse_service_entry(attrs: Attrs) -> ServiceEntry:
    """A service of a listing."""
    inner = nest(attrs, Attr.SERVICE)
    return ServiceEntry(parse_service(inner, parse_key(inner)), parse_stats(inner, Svc.STATS64))


def parse_dest_entry(attrs: Attrs, svc_af: int) -> DestEntry:
    """A destination of a listing."""
    inner = nest(attrs, Attr.DEST)
    return DestEntry(
        parse_dest(inner, svc_af, full=True),
        number(inner, Dst.ACTIVE_CONNS, 4, 0),
        number(inner, Dst.INACT_CONNS, 4, 0),
        number(inner, Dst.PERSIST_CONNS, 4, 0),
        parse_stats(inner, Dst.STATS64),
    )


# What our own programs send, and this director lists, is read in one step; all else attribute by attribute.


def key_in(data: bytes) -> ServiceKey:
    """`parse_key` of a SERVICE nest's payload."""
    row = _SVC_BY_ADDR.unpack(data) if len(data) == _SVC_BY_ADDR.size else None
    if row is None or row[0] not in (AF_INET, AF_INET6):
        return parse_key(attributes(data))
    af, protocol, addr, port = row
    return ServiceKey(af, protocol, addr[:4] if af == AF_INET else addr, ntohs(port))


def dest_in(data: bytes, svc_af: int) -> DestSpec:
    """`parse_dest` of a DEST nest's payload, all of it."""
    row = _DEST.unpack(data) if len(data) == _DEST.size else None
    if row is None or row[-1] not in (AF_INET, AF_INET6):
        return parse_dest(attributes(data), svc_af, full=True)
    return _dest_spec(row, row[-1])


def dest_entry_in(data: bytes, svc_af: int) -> DestEntry:
    """`parse_dest_entry` of a message's payload."""
    row = _DEST_LISTED.unpack(data, len(_LISTED_HEAD)) if data.startswith(_LISTED_HEAD) else None
    if row is None or row[12] not in (AF_INET, AF_INET6):
        return parse_dest_entry(attributes(data), svc_af)
    active, inactive, persistent = row[9:12]
    stats = parse_stats({Dst.STATS64: row[14]}, Dst.STATS64)
    return DestEntry(_dest_spec(row, row[12]), active, inactive, persistent, stats)


def _dest_spec(row: tuple[Any, ...], af: int) -> DestSpec:
    addr, port, fwd, weight, tun_type, tun_port, tun_flags, u_threshold, l_threshold = row[:9]
    return DestSpec(
        af,
        addr[:4] if af == AF_INET else addr,
        ntohs(port),
        fwd & FWD_MASK,
        weight - (1 << 32) if weight >> 31 else weight,
        u_threshold,
        l_threshold,
        tun_type,
        ntohs(tun_port),
        tun_flags,
    )


def parse_timeout(attrs: Attrs, kind: int) -> int:
    """A TIMEOUT_* as the kernel reads it: signed seconds; 0 if it is missing."""
    value = number(attrs, kind, 4, 0)
    return value - (1 << 32) if value >> 31 else value
