"""What a request and its reply look like on each side of a lab: MAC and IP addresses, TTL, the way back."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.processes import PYTHON
from uvs.lab.topology import VIP, url
from uvs.lab.wires import Frame, Listener, owners
from uvs.walk.text import fitting

QUIET = 0.5  # seconds without a frame after the answer came: then all are there
_SYN = 0x02
_ETH, _IP = 14, 20  # header lengths; the lab's own packets have no IP options


class Seen(NamedTuple):
    """A packet on a wire: MAC addresses as hosts' names, IP addresses, TTL; those of a tunnel around it."""

    frame: tuple[str, str]
    addresses: tuple[str, str]
    ttl: int
    outer: tuple[str, str] | None = None
    outer_ttl: int = 0


class Crossing(NamedTuple):
    """A request, and its reply, at both ends; who answered; the hosts by which the reply came."""

    title: str
    server: str
    places: Mapping[str, Seen]
    back: Sequence[str]


PLACES = ("request, at the client", "request, at the server", "reply, at the server", "reply, at the client")


def measure(lab: Lab) -> Crossing:
    """Have the client fetch the virtual service's page, and watch. LabError: no answer."""
    hosts = [h.name for h in lab.topology.hosts]
    names = owners(lab)
    listener = Listener(lab, hosts)
    try:
        done = lab.run("client", [*PYTHON, "uvs.lab.fetch", url(4)], timeout=120)
        if done.returncode:
            raise LabError(f"no answer from {url(4)} in mode {lab.topology.title}: {done.stdout.strip()}")
        frames = list(listener.frames(QUIET))
    finally:
        listener.close()
    found = crossing(lab.topology.title, frames, names)
    if found is None:
        raise LabError("the request was answered, but not seen: is this machine very busy? try again")
    return found


def crossing(title: str, frames: Iterable[Frame], names: Mapping[str, str]) -> Crossing | None:
    """Of all frames, those with the first SYN to the VIP and its answer. `names`: hosts by MAC address."""
    frames = list(frames)
    vip = socket.inet_aton(VIP[4])
    asked = next(
        (f for f in frames if f.host == "client" and f.out and f.data[12:14] == b"\x08\x00"
         and f.data[30:34] == vip and f.data[23] == socket.IPPROTO_TCP and f.data[47] == _SYN), None
    )  # fmt: skip
    if asked is None:
        return None
    ports, number = asked.data[34:38], asked.data[38:42]
    acknowledged = ((int.from_bytes(number) + 1) % (1 << 32)).to_bytes(4)
    # By what NAT and tunnels leave alone: ports (the lab's servers have the service's) and sequence numbers.
    request = re.compile(re.escape(ports + number))
    reply = re.compile(re.escape(ports[2:] + ports[:2]) + b"...." + re.escape(acknowledged), re.DOTALL)

    def seen(pattern: re.Pattern[bytes], host: str, out: bool) -> list[tuple[Frame, int]]:
        here = [f for f in frames if f.out == out and f.host.startswith(host)]
        wired = [f for f in here if f.data[:12] != bytes(12)]  # not of a TUN device or `lo`
        matches = [(frame, pattern.search(frame.data, _ETH + _IP)) for frame in wired]
        return [(frame, match.start()) for frame, match in matches if match]

    marks = [
        seen(request, "client", True),
        seen(request, "rs", False),
        seen(reply, "rs", True),
        seen(reply, "client", False),
    ]
    if not all(marks):
        return None
    server = marks[2][0][0].host
    ways = [name for name in ("director", "router") if seen(reply, name, False)]
    places = {place: _at(*mark[0], names) for place, mark in zip(PLACES, marks, strict=True)}
    return Crossing(title, server, places, [server, *ways, "client"])


def _at(frame: Frame, transport: int, names: Mapping[str, str]) -> Seen:
    data = frame.data
    macs_ = (names.get(data[6:12].hex(":"), "?"), names.get(data[:6].hex(":"), "?"))
    inner = data[transport - _IP : transport]
    outer = data[_ETH : _ETH + _IP] if transport > _ETH + _IP else None
    return Seen(macs_, _ends(inner), inner[8], _ends(outer) if outer else None, outer[8] if outer else 0)


def _ends(header: bytes) -> tuple[str, str]:
    return socket.inet_ntoa(header[12:16]), socket.inet_ntoa(header[16:20])


def table(columns: Sequence[Crossing]) -> str:
    """Side by side, a column for each."""
    rows = [["", *(c.title for c in columns)]]
    for place in PLACES:
        rows.append([place, *("" for _ in columns)])
        at = [c.places[place] for c in columns]
        rows.append(["  MAC", *(" → ".join(s.frame) for s in at)])
        if any(s.outer for s in at):
            rows.append(["  tunnel", *(" → ".join(s.outer) if s.outer else "" for s in at)])
            rows.append(["  its TTL", *(str(s.outer_ttl) if s.outer else "" for s in at)])
        rows.append(["  IP", *(" → ".join(s.addresses) for s in at)])
        rows.append(["  TTL", *(str(s.ttl) for s in at)])
    rows.append(["return path", *(" → ".join(c.back) for c in columns)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns) + 1)]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return fitting("\n".join(lines), sys.stdout.encoding)
