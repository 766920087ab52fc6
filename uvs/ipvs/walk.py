"""The walk: what the hook path did with one packet, step by step (docs/reference/walk.md)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any, NamedTuple

from uvs.engine.core import Conn, ConnFlag, Hdr, Header
from uvs.ipvs.ipproto import (
    IPPROTO_AH,
    IPPROTO_ESP,
    IPPROTO_GRE,
    IPPROTO_ICMP,
    IPPROTO_ICMPV6,
    IPPROTO_IPIP,
    IPPROTO_TCP,
    PROTO_NAMES,
)

PROTOCOL_NAMES = {
    **PROTO_NAMES,
    IPPROTO_IPIP: "IPIP",
    41: "IPv6",
    IPPROTO_GRE: "GRE",
    IPPROTO_ESP: "ESP",
    IPPROTO_AH: "AH",
}
SENT_MAX = 16  # packets sent that are told of, where many would take the time of those that wait
VERSION = 1  # of the JSON form; fields may be added without a new one
METHODS = {0: "Masq", 1: "Local", 2: "Tunnel", 3: "Route", 4: "Bypass"}
_TCP_FLAGS = "FSRPAUEC"
_ICMP = {
    (0, 0): "echo reply", (3, 0): "net unreachable", (3, 1): "host unreachable",
    (3, 2): "protocol unreachable", (3, 3): "port unreachable", (3, 4): "fragmentation needed",
    (8, 0): "echo request", (11, 0): "TTL exceeded",
}  # fmt: skip
_ICMPV6 = {
    (1, 0): "no route", (1, 3): "address unreachable", (1, 4): "port unreachable", (2, 0): "packet too big",
    (3, 0): "hop limit exceeded", (128, 0): "echo request", (129, 0): "echo reply",
}  # fmt: skip


def endpoint(addr: bytes, port: int) -> str:
    """`10.0.0.1:80`, `[2001:db8::1]:80`."""
    text = str(ip_address(addr))
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def printable(data: bytes) -> str:
    """Bytes of a packet for a reader's terminal: control characters and what is no ASCII are escaped."""
    return data.decode("latin-1").encode("unicode_escape").decode("ascii")


def describe(iph: Header) -> str:
    """A header in one line: `TCP 10.0.0.2:1024 > 10.0.0.1:80 S`."""
    name = PROTOCOL_NAMES.get(iph.protocol, f"protocol {iph.protocol}")
    if iph.protocol in (IPPROTO_ICMP, IPPROTO_ICMPV6):
        ends = f"{ip_address(iph.saddr)} > {ip_address(iph.daddr)}"
        kind = iph.icmp_type, iph.icmp_code
        told = (_ICMP if iph.protocol == IPPROTO_ICMP else _ICMPV6).get(kind)
        return f"{name} {ends} type {kind[0]} code {kind[1]}" + (f" ({told})" if told else "")
    if not iph.flags & Hdr.PORTS:
        ends = f"{name} {ip_address(iph.saddr)} > {ip_address(iph.daddr)}"
        return ends + (" later fragment" if iph.flags & Hdr.LATER else "")
    text = f"{name} {endpoint(iph.saddr, iph.sport)} > {endpoint(iph.daddr, iph.dport)}"
    if iph.protocol == IPPROTO_TCP:
        text += " " + "".join(c for i, c in enumerate(_TCP_FLAGS) if iph.tcp_flags >> i & 1)
    return text


def transition(before: str, conn: Conn) -> str:
    """`SYN_RECV → ESTABLISHED`, or the state alone if it stayed."""
    after = conn.state_name
    return after if before == after else f"{before} → {after}"


def destination(conn: Conn) -> str:
    """What a transmitter is for: `Masq to 10.0.0.1:80`."""
    return f"{METHODS.get(conn.flags & ConnFlag.FWD_MASK, '?')} to {endpoint(conn.daddr, conn.dport)}"


def entry(conn: Conn, now: int) -> dict[str, Any]:
    """A connection entry as the walk shows it; `expires` in milliseconds."""
    flags = conn.flags
    return {
        "protocol": PROTOCOL_NAMES.get(conn.protocol, str(conn.protocol)),
        "client": endpoint(conn.caddr, conn.cport),
        "virtual": endpoint(conn.vaddr, conn.vport),
        "destination": endpoint(conn.daddr, conn.dport),
        "method": METHODS.get(flags & ConnFlag.FWD_MASK, "?"),
        "state": conn.state_name,
        "expires": conn.remaining(now),
        "template": bool(flags & ConnFlag.TEMPLATE),
    }


@dataclass(slots=True)
class Step:
    """One step: the kernel's function, how deep it was called, what it looked at, what it decided."""

    depth: int
    function: str
    decision: str
    looked_at: dict[str, Any] = field(default_factory=dict)


class Sent(NamedTuple):
    """A packet that left: by which next hop, in one line, its bytes; `own`: an error of the director's."""

    nexthop: str
    packet: str
    data: bytes
    own: bool = False


@dataclass(slots=True)
class Walk:
    """One packet at one hook: what came, the steps, the verdict with its reason, what left.

    `frame`: the MAC addresses that it came with, `src` and `dst` as text; None: not known.
    """

    time: int  # ns, the director's clock
    hook: str
    packet: str
    data: bytes
    number: int = 0  # which of those recorded, from 1 on
    mark: int = 0
    frame: dict[str, str] | None = None
    steps: list[Step] = field(default_factory=list)
    verdict: str = ""
    why: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    delivered: bytes | None = None  # accepted with this content, if it was rewritten
    sent: list[Sent] = field(default_factory=list)
    omitted: int = 0  # packets sent that are not in it

    def step(self, depth: int, function: str, decision: str, **looked_at: Any) -> None:
        """Record one step."""
        self.steps.append(Step(depth, function, decision, looked_at))

    def to_json(self, snap: int | None = None, most: int | None = None) -> dict[str, Any]:
        """The documented JSON form, with `snap` bytes of each packet and `most` packets sent (None: all)."""
        return {
            "version": VERSION,
            "number": self.number,
            "time": self.time,
            "hook": self.hook,
            "packet": self.packet,
            "mark": self.mark,
            "frame": self.frame,
            "length": len(self.data),
            "data": self.data[:snap].hex(),
            "steps": [
                {"depth": s.depth, "function": s.function, "decision": s.decision, "looked_at": s.looked_at}
                for s in self.steps
            ],
            "verdict": self.verdict,
            "why": self.why,
            "entry": {"before": self.before, "after": self.after},
            "delivered": None if self.delivered is None else self.delivered[:snap].hex(),
            "sent": [
                {
                    "nexthop": s.nexthop,
                    "packet": s.packet,
                    "length": len(s.data),
                    "data": s.data[:snap].hex(),
                    "own": s.own,
                }
                for s in self.sent[:most]
            ],
            "omitted": self.omitted + (len(self.sent[most:]) if most is not None else 0),
        }


class Recorder:
    """Keeps the walks of the next `want` packets."""

    def __init__(self, keep: int = 1000) -> None:
        self.want = 0
        self.number = 0
        self.walks: deque[Walk] = deque(maxlen=keep)

    def begin(self, time: int, hook: str, packet: str, data: bytes, mark: int) -> Walk:
        """A walk to record into, which `want` says that somebody asked for. `packet`: in one line."""
        self.want -= 1
        self.number += 1
        walk = Walk(time, hook, packet, data, self.number, mark)
        self.walks.append(walk)
        return walk
