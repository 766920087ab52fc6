"""The walk: what the hook path did with one packet, step by step (docs/reference/walk.md)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from uvs.engine.core import Conn, ConnFlag, Header
from uvs.ipvs.ipproto import IPPROTO_AH, IPPROTO_ESP, IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_TCP, PROTO_NAMES

PROTOCOL_NAMES = {**PROTO_NAMES, IPPROTO_ESP: "ESP", IPPROTO_AH: "AH"}
METHODS = {0: "Masq", 1: "Local", 2: "Tunnel", 3: "Route", 4: "Bypass"}
_TCP_FLAGS = "FSRPAUEC"


def endpoint(addr: bytes, port: int) -> str:
    """`10.0.0.1:80`, `[2001:db8::1]:80`."""
    text = str(ip_address(addr))
    return f"[{text}]:{port}" if ":" in text else f"{text}:{port}"


def printable(data: bytes) -> str:
    """Bytes of a packet for a reader: what is no ASCII is escaped."""
    return data.decode("ascii", "backslashreplace")


def describe(iph: Header) -> str:
    """A header in one line: `TCP 10.0.0.2:1024 > 10.0.0.1:80 S`."""
    name = PROTOCOL_NAMES.get(iph.protocol, f"protocol {iph.protocol}")
    if iph.protocol in (IPPROTO_ICMP, IPPROTO_ICMPV6):
        ends = f"{ip_address(iph.saddr)} > {ip_address(iph.daddr)}"
        return f"{name} {ends} type {iph.icmp_type} code {iph.icmp_code}"
    text = f"{name} {endpoint(iph.saddr, iph.sport)} > {endpoint(iph.daddr, iph.dport)}"
    if iph.protocol == IPPROTO_TCP:
        text += " " + "".join(c for i, c in enumerate(_TCP_FLAGS) if iph.tcp_flags >> i & 1)
    return text


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


@dataclass(slots=True)
class Walk:
    """One packet at one hook: what came, the steps, the verdict with its reason, what left."""

    time: int  # ns, the director's clock
    hook: str
    packet: str
    data: bytes
    steps: list[Step] = field(default_factory=list)
    verdict: str = ""
    why: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    delivered: bytes | None = None  # accepted with this content, if it was rewritten
    sent: list[tuple[str, str, bytes]] = field(default_factory=list)  # next hop, description, packet

    def step(self, depth: int, function: str, decision: str, **looked_at: Any) -> None:
        """Record one step."""
        self.steps.append(Step(depth, function, decision, looked_at))

    def to_json(self) -> dict[str, Any]:
        """The documented JSON form."""
        return {
            "time": self.time,
            "hook": self.hook,
            "packet": self.packet,
            "data": self.data.hex(),
            "steps": [
                {"depth": s.depth, "function": s.function, "decision": s.decision, "looked_at": s.looked_at}
                for s in self.steps
            ],
            "verdict": self.verdict,
            "why": self.why,
            "entry": {"before": self.before, "after": self.after},
            "delivered": None if self.delivered is None else self.delivered.hex(),
            "sent": [{"nexthop": n, "packet": text, "data": data.hex()} for n, text, data in self.sent],
        }


class Recorder:
    """Keeps the walks of the next `want` packets."""

    def __init__(self, keep: int = 1000) -> None:
        self.want = 0
        self.walks: deque[Walk] = deque(maxlen=keep)

    def begin(self, time: int, hook: str, iph: Header, data: bytes) -> Walk | None:
        """A walk to record into, or None when nobody asked."""
        if self.want <= 0:
            return None
        self.want -= 1
        walk = Walk(time, hook, describe(iph), data)
        self.walks.append(walk)
        return walk
