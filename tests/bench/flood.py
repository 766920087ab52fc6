"""A SYN flood from random addresses at the sender's full rate: what an established flow keeps, and what comes after."""

from __future__ import annotations

import json
import socket
import statistics
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from bench.connections import allocated
from bench.results import Figure
from bench.stand import BULK_PORT, HTTP_PORT, PATIENCE, Stand
from bench.work import Pace
from uvs.lab import processes

FIXED = "500M"  # bit/s: what a machine can carry beside the flood
FLOWS = {"fixed": f"flow of {FIXED}bit/s", "full": "flow at full rate"}
EDGE = 0.5  # seconds around the flood's begin and end that belong to neither
SLIP = 0.1  # that iperf3's intervals may be off
IN_A_ROW, QUICKLY = 20, 0.2  # so many requests answered, each within so long: the service is whole

FIGURES = [
    *(Figure(f"{title}: share kept", "x") for title in FLOWS.values()),
    *(Figure(f"{title}: before", "Gbit/s") for title in FLOWS.values()),
    Figure("flood", "1000 SYN/s sent", 0),
    Figure("whole again", "s", 2, more=False),
    Figure("resident before", "MB", 1, more=False),
    Figure("resident at the end", "MB", 1, more=False),
    Figure("table before", "MB", 1, more=False),
    Figure("table at the end", "MB", 1, more=False),
    Figure("connections at the end", "", 0, more=False),
]


def shares(intervals: Sequence[dict[str, Any]], begin: float, end: float) -> tuple[float, float]:
    """bit/s before a flood from `begin` to `end` (median of iperf3's intervals, the first second left out) and during it (mean)."""
    sums = [each["sum"] for each in intervals]
    quiet, flooded = (min(1.0, begin / 2), begin - EDGE / 2), (begin + EDGE, end)
    before, during = (
        [s["bits_per_second"] for s in sums if s["start"] > first - SLIP and s["end"] < last + SLIP]
        for first, last in (quiet, flooded)
    )
    if not before or not during:
        raise ValueError(f"iperf3 ended early: {len(sums)} intervals")
    return statistics.median(before), statistics.mean(during)


def answered(address: str) -> bool:
    """Is a request on a new connection answered quickly?"""
    try:
        with socket.create_connection((address, HTTP_PORT), QUICKLY) as sock:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            return sock.recv(4096).startswith(b"HTTP/1.1 200")
    except OSError:
        return False


def whole_again(address: str, since: float) -> float:
    """Seconds from `since` (monotonic) until the first of so many requests in a row that are answered."""
    begin, row = time.monotonic(), 0
    while row < IN_A_ROW:
        if row == 0:
            begin = time.monotonic()
        row = row + 1 if answered(address) else 0
        if time.monotonic() > since + PATIENCE / 2:
            raise TimeoutError(f"the service is not whole {PATIENCE / 2:g} s after the flood")
    return begin - since


def connections(listing: str) -> int:
    """Active and inactive ones of all servers in `uvsadm -Ln`."""
    rows = [line.split() for line in listing.splitlines() if line.startswith("  -> ")]
    return sum(int(row[-2]) + int(row[-1]) for row in rows if row[-1].isdigit())


def measure(stand: Stand, pace: Pace, is_uvs: bool) -> dict[str, float]:
    """A flood for each kind of flow."""
    found: dict[str, float] = {}
    if is_uvs:
        stand.lab.check("director", (*processes.UVS, "sysctl", "-q", "drop_entry=3"))
    for kind, title in FLOWS.items():
        found["resident before"] = min(found.get("resident before", float("inf")), stand.memory() / 1e6)
        if is_uvs:
            found.setdefault("table before", allocated(stand) / 1e6)
        before, during = one_flood(stand, pace, kind, found)
        found[f"{title}: before"], found[f"{title}: share kept"] = before / 1e9, during / before
        if is_uvs:
            found["table at the end"] = allocated(stand) / 1e6
            found["connections at the end"] = connections(processes.uvsadm(stand.lab, "-Ln"))
    return found


def one_flood(stand: Stand, pace: Pace, kind: str, found: dict[str, float]) -> tuple[float, float]:
    """bit/s of the flow before and during it; into `found` what else there is to see."""
    seconds = pace.flood_before + round(pace.flood) + 1
    argv = ["iperf3", "-c", stand.address[4], "-p", str(BULK_PORT), "-t", str(seconds), "-i", "0.25", "-J"]
    argv += ["-b", FIXED if kind == "fixed" else "0"]
    pipe = subprocess.PIPE
    with stand.lab.popen("client", argv, stdout=pipe, text=True) as flow:
        try:
            time.sleep(pace.flood_before)
            sender = stand.sender("syn", pace.flood, flows=0, port=HTTP_PORT)
            with stand.lab.popen("client", sender, stdout=pipe, text=True) as flooder:
                sent, _ = flooder.communicate(timeout=pace.flood + PATIENCE)
            ended = time.monotonic()
            found["resident at the end"] = max(found.get("resident at the end", 0), stand.memory() / 1e6)
            found["flood"] = int(sent) / pace.flood / 1e3
            whole = stand.lab.call("client", whole_again, stand.address[4], ended)
            found["whole again"] = max(found.get("whole again", 0), whole)
            report = json.loads(flow.communicate(timeout=PATIENCE)[0])
        finally:
            flow.kill()
    try:  # a flow that the flood has stopped may end with an error, after all that is asked for
        return shares(report["intervals"], pace.flood_before, pace.flood_before + pace.flood)
    except (KeyError, ValueError):
        raise RuntimeError(f"iperf3: {report.get('error', 'it ended early')}") from None
