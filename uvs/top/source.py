"""What a director does now, as one answer."""

from __future__ import annotations

import json
import time
from typing import NamedTuple

from uvs.adm.listing import sorted_servers, sorted_services
from uvs.control.client import Client, Unreachable
from uvs.control.messages import DestEntry, ServiceEntry, Stats
from uvs.ipvs.spec import IpvsError, QueueRow


class Snapshot(NamedTuple):
    """A director at one moment.

    `first`: on this connection, so that nothing before it need be the same director's. `time`: seconds since
    1970, when it was asked. `at`: the same moment by a clock that is never set. `took`: seconds that its
    answers took. The rest is as the control protocol has it; services and servers in uvsadm's order.
    """

    first: bool

    time: float
    at: float
    took: float
    services: list[tuple[ServiceEntry, list[DestEntry]]]
    total: Stats
    reasons: dict[str, int]
    queues: list[QueueRow]
    table: dict[str, int]


class Source:
    """Asks a director, on one connection as long as that lasts, then on another."""

    def __init__(self, path: str | None = None) -> None:
        """`path`: of the control socket, None: the default."""
        self._path = path
        self._client: Client | None = None

    def take(self) -> Snapshot:
        """Ask. Unreachable: nobody answers now; IpvsError: we may not ask. Either may be otherwise later."""
        try:
            first = self._client is None
            if self._client is None:
                self._client = Client(self._path)
            return _take(self._client, first)
        except (Unreachable, IpvsError):
            self.close()
            raise

    def close(self) -> None:
        """Hang up."""
        if self._client is not None:
            self._client.close()
            self._client = None


def _take(client: Client, first: bool) -> Snapshot:
    wall, start = time.time(), time.monotonic()
    reasons, queues = client.counters(), client.queues()
    total, figures = client.total()
    services = sorted_services(client.services())
    servers = client.all_dests([entry.spec.key for entry in services])
    listed = [(entry, sorted_servers(own)) for entry, own in zip(services, servers, strict=True)]
    took = time.monotonic() - start
    return Snapshot(first, wall, start, took, listed, total, reasons, queues, json.loads(figures))


def rest(interval: float, took: float) -> float:
    """Seconds until the director is asked again.

    The answers of one with thousands of services take a second and more: at least three quarters of the time
    it is left alone.
    """
    return max(interval - took, 3 * took)
