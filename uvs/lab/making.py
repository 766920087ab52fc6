"""Making a lab that stays: its programs and services; what a signal in the middle of it does."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from uvs.lab import processes
from uvs.lab.namespaces import Lab


def make(lab: Lab, services: bool = True) -> None:
    """Start servers and director, and set the services."""
    processes.start_servers(lab)
    processes.start_director(lab)
    if services:
        processes.add_services(lab)


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM and SIGHUP end the command as Ctrl-C does, so that what it made is removed."""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    before = {n: signal.signal(n, stop) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
