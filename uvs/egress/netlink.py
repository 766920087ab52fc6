"""What the kernel says of routes, neighbours and links: NETLINK_ROUTE over plain sockets.

pyroute2's message classes state the wire format; the sockets are our own, since an answer is needed
at once (the kernel replies within the request's own system call) and `select()` on pyroute2's
IPRoute lags behind the events. Addresses are packed bytes; None stands for what is absent.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pyroute2.netlink.rtnl import (
    RTM_DELLINK,
    RTM_DELNEIGH,
    RTM_DELROUTE,
    RTM_GETADDR,
    RTM_GETLINK,
    RTM_GETNEIGH,
    RTM_GETROUTE,
    RTM_GETRULE,
    RTM_NEWLINK,
    RTM_NEWNEIGH,
    RTM_NEWROUTE,
    RTMGRP_IPV4_IFADDR,
    RTMGRP_IPV4_ROUTE,
    RTMGRP_IPV4_RULE,
    RTMGRP_IPV6_IFADDR,
    RTMGRP_IPV6_ROUTE,
    RTMGRP_LINK,
    RTMGRP_NEIGH,
)
from pyroute2.netlink.rtnl.fibmsg import fibmsg
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

# linux/netlink.h
NLMSG_ERROR, NLMSG_DONE = 2, 3
NLM_F_DUMP = 0x300
NLM_F_REQUEST, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE = 1, 4, 0x400, 0x100
_HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence, port

# linux/rtnetlink.h: rtm_type
RTN_UNICAST, RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST, RTN_MULTICAST = 1, 2, 3, 4, 5
# linux/fib_rules.h; linux/rtnetlink.h: tables default, main, local
FR_ACT_TO_TBL, COMMON_TABLES = 1, frozenset({253, 254, 255})
# linux/rtnetlink.h: groups that pyroute2 has no name for (1 << (RTNLGRP_... - 1))
RTMGRP_IPV6_RULE, RTMGRP_NEXTHOP = 1 << 18, 1 << 31

ROUTES = (
    RTMGRP_LINK
    | RTMGRP_IPV4_IFADDR
    | RTMGRP_IPV6_IFADDR
    | RTMGRP_IPV4_ROUTE
    | RTMGRP_IPV6_ROUTE
    | RTMGRP_IPV4_RULE
    | RTMGRP_IPV6_RULE
    | RTMGRP_NEXTHOP
)
NEIGHBOURS = RTMGRP_NEIGH

# linux/neighbour.h
NUD_INCOMPLETE, NUD_REACHABLE, NUD_STALE, NUD_DELAY = 0x01, 0x02, 0x04, 0x08
NUD_PROBE, NUD_FAILED, NUD_NOARP, NUD_PERMANENT = 0x10, 0x20, 0x40, 0x80
NUD_SURE = NUD_REACHABLE | NUD_PERMANENT | NUD_NOARP
NUD_VALID = NUD_SURE | NUD_STALE | NUD_DELAY | NUD_PROBE
NTF_USE = 0x01

STORM = 256  # route events that are looked at singly, at a time
READ_BUDGET = 4096  # datagrams at a time

RTEXT_FILTER_SKIP_STATS = 8  # linux/rtnetlink.h


@dataclass(frozen=True, slots=True)
class RouteAnswer:
    """The kernel's route to one address. `gateway`: family and address of the next hop, if it is another."""

    type: int
    ifindex: int
    gateway: tuple[int, bytes] | None
    mtu: int  # the route's own (metric, or learned); 0 = none
    saddr: bytes  # preferred source; empty = the kernel names none


@dataclass(frozen=True, slots=True)
class LinkAnswer:
    """One network device."""

    ifindex: int
    name: str
    type: int  # ARPHRD_*, linux/if_arp.h
    kind: str  # of rtnl_link_ops: "veth", "tun", ...; empty for hardware
    flags: int  # IFF_*, linux/if.h
    mtu: int
    mtu6: int  # IPv6's own, 0 = the device's
    lladdr: bytes


@dataclass(frozen=True, slots=True)
class NeighbourAnswer:
    """One entry of the ARP or ND table; `state` 0: deleted."""

    ifindex: int
    af: int
    addr: bytes
    state: int
    lladdr: bytes


@dataclass(frozen=True, slots=True)
class PrefixChange:
    """Routes to addresses within a prefix may have changed; `length` 0 means every address of the family."""

    af: int
    prefix: bytes
    length: int


@dataclass(frozen=True, slots=True)
class LinkChange:
    """A device was removed, or something of it changed that the event does not tell."""

    ifindex: int


@dataclass(frozen=True, slots=True)
class AnyChange:
    """Something changed (address, rule, next-hop object) that any route may depend on."""


Event = NeighbourAnswer | LinkAnswer | PrefixChange | LinkChange | AnyChange


def addr_bytes(af: int, text: str) -> bytes:
    """Packed form of an address as pyroute2 writes it."""
    return socket.inet_pton(af, text)


def addr_text(addr: bytes) -> str:
    """An address for people and for pyroute2."""
    return socket.inet_ntop(socket.AF_INET if len(addr) == 4 else socket.AF_INET6, addr)


def _lladdr(text: Any) -> bytes:
    """`aa:bb:..` as bytes; empty for what is no such address (tunnels have IP addresses here)."""
    try:
        return bytes.fromhex(str(text or "").replace(":", ""))
    except ValueError:
        return b""


def encode(cls: Any, kind: int, flags: int, seq: int, fields: dict[str, Any], attrs: list[Any]) -> bytes:
    """A request as bytes, by pyroute2's message class `cls`."""
    msg = cls()
    msg["header"]["type"], msg["header"]["flags"] = kind, NLM_F_REQUEST | flags
    msg["header"]["sequence_number"] = seq
    for name, value in fields.items():
        msg[name] = value
    msg["attrs"] = attrs
    msg.encode()
    return bytes(msg.data)


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """The messages of one datagram: (type, sequence number, message with its header)."""
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, seq, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size or at + length > len(data):
            return
        yield kind, seq, data[at : at + length]
        at += (length + 3) & ~3


def _decoded(cls: Any, data: bytes) -> Any:
    msg = cls(data)
    msg.decode()
    return msg


def decode_route(data: bytes) -> RouteAnswer:
    """An RTM_NEWROUTE that answers RTM_GETROUTE (the kernel's rt_fill_info, rt6_fill_node)."""
    msg = _decoded(rtmsg, data)
    af = msg["family"]
    gateway: tuple[int, bytes] | None = None
    if via := msg.get_attr("RTA_GATEWAY"):
        gateway = af, addr_bytes(af, via)
    elif via := msg.get_attr("RTA_VIA"):  # IPv4 by an IPv6 next hop, RFC 8950
        gateway = via["family"], addr_bytes(via["family"], via["addr"])
    metrics = msg.get_attr("RTA_METRICS")
    saddr = msg.get_attr("RTA_PREFSRC")
    return RouteAnswer(
        type=msg["type"],
        ifindex=msg.get_attr("RTA_OIF") or 0,
        gateway=gateway,
        mtu=(metrics.get_attr("RTAX_MTU") if metrics else 0) or 0,
        saddr=addr_bytes(af, saddr) if saddr else b"",
    )


def decode_link(data: bytes) -> LinkAnswer:
    """An RTM_NEWLINK."""
    msg = _decoded(ifinfmsg, data)
    info = msg.get_attr("IFLA_LINKINFO")
    spec = msg.get_attr("IFLA_AF_SPEC")
    spec6 = spec.get_attr("AF_INET6") if spec else None
    conf6 = spec6.get_attr("IFLA_INET6_CONF") if spec6 else None
    return LinkAnswer(
        ifindex=msg["index"],
        name=msg.get_attr("IFLA_IFNAME") or "?",
        type=msg["ifi_type"],
        kind=(info.get_attr("IFLA_INFO_KIND") if info else None) or "",
        flags=msg["flags"],
        mtu=msg.get_attr("IFLA_MTU") or 0,
        mtu6=conf6["mtu"] if conf6 else 0,
        lladdr=_lladdr(msg.get_attr("IFLA_ADDRESS")),
    )


def decode_neighbour(data: bytes) -> NeighbourAnswer | None:
    """An RTM_NEWNEIGH or RTM_DELNEIGH; None for what is no ARP or ND entry (bridge tables)."""
    msg = _decoded(ndmsg, data)
    addr = msg.get_attr("NDA_DST")
    if msg["family"] not in (socket.AF_INET, socket.AF_INET6) or not addr:
        return None
    gone = msg["header"]["type"] == RTM_DELNEIGH
    return NeighbourAnswer(
        ifindex=msg["ifindex"],
        af=msg["family"],
        addr=addr_bytes(msg["family"], addr),
        state=0 if gone else msg["state"],
        lladdr=_lladdr(msg.get_attr("NDA_LLADDR")),
    )


def is_common_rule(data: bytes) -> bool:
    """Is a rule one of those for the tables local, main and default that are there from the beginning?"""
    msg = _decoded(fibmsg, data)
    known = {"FRA_TABLE", "FRA_PRIORITY", "FRA_SUPPRESS_PREFIXLEN", "FRA_PROTOCOL"}
    table = msg.get_attr("FRA_TABLE") or msg["table"]
    plain = not msg["src_len"] and not msg["dst_len"] and not msg["tos"] and msg["action"] == FR_ACT_TO_TBL
    return plain and table in COMMON_TABLES and {name for name, *_ in msg["attrs"]} <= known


def decode_event(kind: int, data: bytes) -> Event | None:
    """A notification as what it means to the next-hop table; None for what means nothing to it."""
    if kind in (RTM_NEWNEIGH, RTM_DELNEIGH):
        return decode_neighbour(data)
    if kind in (RTM_NEWROUTE, RTM_DELROUTE):
        msg = _decoded(rtmsg, data)
        if msg["family"] not in (socket.AF_INET, socket.AF_INET6):
            return None
        dst = msg.get_attr("RTA_DST")
        prefix = (
            addr_bytes(msg["family"], dst) if dst else bytes(4 if msg["family"] == socket.AF_INET else 16)
        )
        return PrefixChange(msg["family"], prefix, msg["dst_len"])
    if kind in (RTM_NEWLINK, RTM_DELLINK):
        msg = _decoded(ifinfmsg, data)
        if kind == RTM_NEWLINK and msg["family"] == socket.AF_UNSPEC:
            link = decode_link(data)
            # A new MTU is told before IPv6 has taken it over: its own in there may be the old one.
            return link if link.mtu6 in (0, link.mtu) else LinkChange(link.ifindex)
        # IPv6 tells of its own MTU (a router's advertisement); a bridge of its ports, which is nothing to us.
        return None if msg["family"] == socket.AF_BRIDGE else LinkChange(msg["index"])
    return AnyChange()


class Netlink:
    """Questions to the kernel, one at a time."""

    def __init__(self) -> None:
        self._socket = _open()
        # The answer is there when send() returns; a limit only keeps a fault from becoming a hang.
        self._socket.settimeout(1.0)
        self._seq = 0
        self._route_requests: dict[int, bytearray] = {}  # by family: encoding costs more than asking

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def route(self, af: int, addr: bytes) -> RouteAnswer | None:
        """Route to `addr`, asked by destination only. None: there is none, or one that refuses."""
        request = self._route_requests.get(af)
        if request is None:
            fields = {"family": af, "dst_len": 8 * len(addr)}
            encoded = encode(rtmsg, RTM_GETROUTE, 0, 0, fields, [("RTA_DST", addr_text(addr))])
            request = self._route_requests[af] = bytearray(encoded)
        request[-len(addr) :] = addr  # the only attribute
        try:
            reply = self._exchange(request)
        except OSError:  # ENETUNREACH, EHOSTUNREACH, EINVAL (blackhole), EACCES, no such family
            return None
        return decode_route(reply) if reply else None

    def route_from(self, af: int, addr: bytes, saddr: bytes, mark: int) -> RouteAnswer | None:
        """The same, asked by source and mark too, as for a packet that this host itself sends."""
        fields = {"family": af, "dst_len": 8 * len(addr), "src_len": 8 * len(saddr)}
        attrs: list[Any] = [("RTA_DST", addr_text(addr)), ("RTA_SRC", addr_text(saddr)), ("RTA_MARK", mark)]
        try:
            reply = self._ask(rtmsg, RTM_GETROUTE, 0, fields, attrs)
        except OSError:
            return None
        return decode_route(reply) if reply else None

    def has_policy(self) -> bool:
        """Are there rules of routing policy beside those that every host has?"""
        return any(
            not is_common_rule(rule)
            for af in (socket.AF_INET, socket.AF_INET6)
            for rule in self._dump(fibmsg, RTM_GETRULE, {"family": af})
        )

    def _dump(self, cls: Any, kind: int, fields: dict[str, Any]) -> Iterator[bytes]:
        self._seq = (self._seq + 1) & 0xFFFFFFFF
        self._socket.send(encode(cls, kind, NLM_F_DUMP, self._seq, fields, []))
        while True:
            for answer, seq, data in messages(self._socket.recv(65536)):
                if seq != self._seq:
                    continue
                if answer in (NLMSG_DONE, NLMSG_ERROR):
                    return
                yield data

    def addresses(self) -> Iterator[tuple[str, str, int]]:
        """This host's addresses: device, address as text, prefix length."""
        names: dict[int, str] = {}
        for data in list(self._dump(ifaddrmsg, RTM_GETADDR, {})):
            msg = _decoded(ifaddrmsg, data)
            address, index = msg.get_attr("IFA_LOCAL") or msg.get_attr("IFA_ADDRESS"), msg["index"]
            if index not in names:
                link = self.link(index)
                names[index] = link.name if link else "?"
            if address:
                yield names[index], address, msg["prefixlen"]

    def link(self, ifindex: int) -> LinkAnswer | None:
        """A device; None if it is gone."""
        attrs = [("IFLA_EXT_MASK", RTEXT_FILTER_SKIP_STATS)]
        try:
            reply = self._ask(ifinfmsg, RTM_GETLINK, 0, {"index": ifindex}, attrs)
        except OSError:
            return None
        return decode_link(reply) if reply else None

    def neighbour(self, ifindex: int, af: int, addr: bytes) -> NeighbourAnswer | None:
        """An ARP or ND entry; None if there is none."""
        try:
            fields = {"family": af, "ifindex": ifindex}
            reply = self._ask(ndmsg, RTM_GETNEIGH, 0, fields, [("NDA_DST", addr_text(addr))])
        except OSError:
            return None
        return decode_neighbour(reply) if reply else None

    def use(self, ifindex: int, af: int, addr: bytes) -> int:
        """Have the kernel resolve or confirm a neighbour, as sending to it would. 0 or errno."""
        fields = {"family": af, "ifindex": ifindex, "state": 0, "flags": NTF_USE}
        flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE
        try:
            self._ask(ndmsg, RTM_NEWNEIGH, flags, fields, [("NDA_DST", addr_text(addr))])
        except OSError as e:
            return e.errno or errno.EIO
        return 0

    def _ask(self, cls: Any, kind: int, flags: int, fields: dict[str, Any], attrs: list[Any]) -> bytes | None:
        """Send a request; its reply, or None for a bare acknowledgement; OSError as the kernel refuses."""
        return self._exchange(bytearray(encode(cls, kind, flags, 0, fields, attrs)))

    def _exchange(self, request: bytearray) -> bytes | None:
        self._seq = (self._seq + 1) & 0xFFFFFFFF
        struct.pack_into("=I", request, 8, self._seq)  # nlmsg_seq
        self._socket.send(request)
        while True:
            for answer, seq, data in messages(self._socket.recv(65536)):
                if seq != self._seq:  # late, of a question that timed out
                    continue
                if answer != NLMSG_ERROR:
                    return data
                (code,) = struct.unpack_from("=i", data, _HEADER.size)
                if code:
                    raise OSError(-code, os.strerror(-code))
                return None


class Watch:
    """Notifications of the given groups (`ROUTES`, `NEIGHBOURS`)."""

    def __init__(self, groups: int) -> None:
        self._socket = _open(groups)
        self._socket.setblocking(False)

    def fileno(self) -> int:
        """Readable when there are events."""
        return self._socket.fileno()

    def events(self) -> Iterator[Event | None]:
        """What happened since the last call. None: events were lost, everything must be read again.

        Of a storm of route changes (a routing daemon that starts) only the first are told one by one.
        """
        routes = 0
        for _ in range(READ_BUDGET):
            try:
                data = self._socket.recv(65536)
            except BlockingIOError:
                break
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise
                yield None
                continue
            for kind, _, message in messages(data):
                if kind in (RTM_NEWROUTE, RTM_DELROUTE):
                    routes += 1
                    if routes > STORM:
                        continue
                if (event := decode_event(kind, message)) is not None:
                    yield event
        if routes > STORM:
            yield AnyChange()

    def drain(self) -> None:
        """Forget what happened since the last call, for those who only want to know that something did."""
        for _ in range(READ_BUDGET):
            try:
                self._socket.recv(65536)
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno != errno.ENOBUFS:
                    raise

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def source_towards(af: int, addr: bytes) -> bytes:
    """The source that the kernel would choose towards `addr` where the route names none; empty: no route."""
    with socket.socket(af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as s:
        try:
            s.connect((socket.inet_ntop(af, addr), 9))
            return socket.inet_pton(af, s.getsockname()[0].partition("%")[0])
        except OSError:
            return b""


def _open(groups: int = 0) -> socket.socket:
    s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    try:
        if groups:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        s.bind((0, groups))
    except OSError:
        s.close()
        raise
    return s
