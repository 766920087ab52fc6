"""HTTP through the director: connections a second, and requests a second on connections that stay. wrk -c64."""

from __future__ import annotations

import re

from bench.peers import ACCEPT, NGINX, Peer
from bench.results import Figure
from bench.stand import HTTP_PORT, Stand
from bench.work import Pace, Work

UNITS = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}  # milliseconds


def parse(report: str) -> dict[str, float]:
    """What wrk --latency prints: requests (1000/s), p50 and p99 (ms), errors (connections and answers that failed)."""
    rate = re.search(r"^Requests/sec:\s+([\d.]+)$", report, re.M)
    shares = {
        percent: float(value) * UNITS[unit]
        for percent, value, unit in re.findall(r"^\s+(50|99)(?:\.\d+)?%\s+([\d.]+)(us|ms|s|m)$", report, re.M)
    }
    if rate is None or len(shares) != 2:
        raise ValueError(f"not what wrk prints: {report!r}")
    errors = sum(map(int, re.findall(r"(?:connect|read|write|timeout) (\d+)", report)))
    errors += sum(map(int, re.findall(r"Non-2xx or 3xx responses: (\d+)", report)))
    return {
        "requests": float(rate[1]) / 1e3,
        "p50": shares["50"],
        "p99": shares["99"],
        "errors": float(errors),
    }


def run(stand: Stand, seconds: int, *words: str) -> dict[str, float]:
    """wrk at the client."""
    url = f"http://{stand.address[4]}:{HTTP_PORT}/"
    return parse(stand.client("wrk", "-t2", "-c64", f"-d{seconds}", "--latency", *words, url))


def close(stand: Stand, pace: Pace) -> dict[str, float]:
    """Every request on a connection of its own."""
    found = run(stand, pace.web, "-H", "Connection: close")
    return {"connections": found["requests"], **{name: found[name] for name in ("p50", "p99", "errors")}}


def keep(stand: Stand, pace: Pace) -> dict[str, float]:
    """64 connections that stay."""
    return run(stand, pace.web)


def sparing(peer: Peer) -> bool:
    """In a quick run the accept loop without GSO and nginx are left out."""
    return peer.name not in (ACCEPT, NGINX)


TIMES = [
    Figure("p50", "ms", more=False),
    Figure("p99", "ms", more=False),
    Figure("errors", "connections and answers", 0, more=False),
]
CLOSE = Work(
    "close", "HTTP, a connection each (wrk -c64, Connection: close)",
    lambda pace: [Figure("connections", "1000/s", 1), *TIMES], close, sparing=sparing,
)  # fmt: skip
KEEP = Work(
    "keep", "HTTP on connections that stay (wrk -c64)",
    lambda pace: [Figure("requests", "1000/s", 1), *TIMES], keep, sparing=sparing,
)  # fmt: skip
