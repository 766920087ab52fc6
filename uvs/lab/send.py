"""`uvs lab send`: crafted packets from a host of a lab, and what the director did with them."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from uvs.control.client import Client, Unreachable
from uvs.lab.enter import LabError
from uvs.lab.namespaces import SOCKET, Lab
from uvs.lab.wires import Sender
from uvs.walk import text
from uvs.walk.expressions import Packet, packets

WALKS_MAX = 1000  # the director keeps no more
PACKETS_MAX = 100  # of one command: each has a walk to be read
QUIET = 0.3  # seconds without a walk after which replies are not waited for any more
POLL = 0.02


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `uvs lab send`."""
    add = parser.add_argument
    add("host", metavar="HOST", help="client, director, rs1, ...")
    add("expr", nargs="+", metavar="EXPR", help="a packet as scapy writes it: see `uvs walk --help`")
    add("--wait", type=float, default=2.0, metavar="S", help="seconds to wait for a walk (default 2)")
    add("--json", action="store_true", help="the walks as JSON objects, one a line")


def main(args: argparse.Namespace, lab: Lab) -> int:
    """Send, and show the walks; 0 if the director saw each packet, else 1."""
    if not 0 < args.wait <= 60:
        raise LabError("--wait takes more than 0 and at most 60 seconds", 2)
    wanted = [one for expr in args.expr for one in packets(expr)]
    if len(wanted) > PACKETS_MAX:
        raise LabError(f"{len(wanted)} packets: at most {PACKETS_MAX} at once", 2)
    try:
        found = list(sent(lab, args.host, wanted, args.wait))
    except Unreachable:
        raise LabError("no director runs in this lab: uvs lab start director") from None
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    for walk in found:
        shown = json.dumps(walk) if args.json else text.render(walk, colour) + "\n"
        print(text.fitting(shown, sys.stdout.encoding))
    seen = _seen(found, wanted)
    if seen < len(wanted):
        told = "the packet" if len(wanted) == 1 else f"{len(wanted) - seen} of {len(wanted)} packets"
        print(f"uvs lab send: {told} did not come to IPVS: {_WHY}", file=sys.stderr)
        return 1
    return 0


_WHY = "no service or connection of this director's takes it, or it went another way"


def sent(lab: Lab, host: str, wanted: Sequence[Packet], wait: float) -> Iterator[dict[str, Any]]:
    """Send the packets, one after another; walks of them and of what answers them, as they were made."""
    sender = Sender(lab, host)
    ends = {_source(one.data) for one in wanted}
    try:
        with Client(str(lab.path(SOCKET))) as director:
            director.record(WALKS_MAX)
            try:
                director.walks()  # somebody else's
                found: list[dict[str, Any]] = []
                for number, packet in enumerate(wanted, 1):
                    sender.send(packet)
                    found += _of(director, ends, wanted[:number], found, wait)
                yield from found
            finally:
                director.record(0)
    finally:
        sender.close()


def _of(
    director: Client, ends: set[str], out: Sequence[Packet], before: list[dict[str, Any]], wait: float
) -> list[dict[str, Any]]:
    """The walks that came after one more packet was sent; waits shorter when its own is there."""
    found: list[dict[str, Any]] = []
    last = time.monotonic()
    while True:
        new = [w for w in map(json.loads, director.walks()) if ends & set(_ends(w))]
        found += new
        now = time.monotonic()
        last = now if new else last
        complete = _seen(before + found, out) > _seen(before, out[:-1])
        if now - last > (min(QUIET, wait) if complete else wait):
            return found
        time.sleep(POLL)


def _seen(walks: Sequence[dict[str, Any]], out: Sequence[Packet]) -> int:
    """How many of the packets have a walk of their own."""
    left = [bytes.fromhex(walk["data"]) for walk in walks]
    count = 0
    for packet in out:
        own = next((data for data in left if _same(packet.data, data)), None)
        if own is not None:
            left.remove(own)
            count += 1
    return count


def _same(sent: bytes, walked: bytes) -> bool:
    """Is it the packet that was sent? The host fills in the IP header; a walk may keep only the beginning."""
    head = _payload(walked)
    ends = (_source(sent), _destination(sent)) == (_source(walked), _destination(walked))
    return ends and _payload(sent).startswith(head)


def _payload(data: bytes) -> bytes:
    return data[(data[0] & 15) * 4 :] if data[0] >> 4 == 4 else data[40:]


def _ends(walk: dict[str, Any]) -> tuple[str, str]:
    """Source and destination of the packet that a walk is of."""
    data = bytes.fromhex(walk["data"])
    return _source(data), _destination(data)


def _source(data: bytes) -> str:
    return (data[12:16] if data[0] >> 4 == 4 else data[8:24]).hex()


def _destination(data: bytes) -> str:
    return (data[16:20] if data[0] >> 4 == 4 else data[24:40]).hex()
