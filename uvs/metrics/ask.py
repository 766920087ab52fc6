"""What is asked of a director for one scrape."""

from __future__ import annotations

import errno
import json
import time
from typing import Any, NamedTuple

from uvs.control.client import About, Client, Unreachable
from uvs.control.messages import DestEntry, ServiceEntry, Stats
from uvs.ipvs.spec import IpvsError, QueueRow

PATIENCE_S = 5.0  # for each answer: Prometheus itself waits ten seconds
LIMIT_S = 30.0  # for all of them, of a director that is slow to say each


class Answers(NamedTuple):
    """A director at one moment, as the control protocol has it; `took`: seconds."""

    took: float
    about: About
    total: Stats
    table: dict[str, int]
    reasons: dict[str, int]
    queues: list[QueueRow]
    services: list[tuple[ServiceEntry, list[DestEntry]]]
    health: list[dict[str, Any]]  # GET_HEALTH


def ask(path: str | None = None) -> Answers:
    """Ask, on a connection of its own. Unreachable: nobody answers; IpvsError: we may not ask."""
    start = time.monotonic()
    with Client(path, PATIENCE_S) as client:
        about = client.about()
        total, figures = client.total()
        reasons, queues = client.counters(), client.queues()
        services = client.services()
        servers = client.all_dests([entry.spec.key for entry in services])
        listed = []
        for each in zip(services, servers, strict=True):
            listed.append(each)
            if time.monotonic() - start > LIMIT_S:
                raise Unreachable(errno.ETIMEDOUT, f"the director's answers take more than {LIMIT_S:g} s")
        health = _health(client)
    took = time.monotonic() - start
    return Answers(took, about, total, json.loads(figures), reasons, queues, listed, health)


def _health(client: Client) -> list[dict[str, Any]]:
    """Of an older director: nothing."""
    try:
        return client.get_health()
    except IpvsError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise
