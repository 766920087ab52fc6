"""Plain services: their new connections are made by the engine, without Python (csrc/service.c)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvs.engine.core import publish as _publish
from uvs.engine.core import withdraw as _withdraw

if TYPE_CHECKING:
    from uvs.ipvs.services import Dest, Service


def publish(svc: Service) -> None:
    """Tell the engine of a service that is new, or not as it was; one that is not plain is the hook path's.

    What its former scheduler keeps must live until this was called.
    """
    scheduler, key = svc.scheduler, svc.key
    plain = not (svc.persistent or svc.one_packet or svc.pe) and (key.port or key.fwmark)
    _publish(svc.rec, scheduler.sched if plain and scheduler and scheduler.kind else None)


def withdraw(svc: Service) -> None:
    """Packets do not find the service any more; before its scheduler and its record go."""
    _withdraw(svc.rec)


def leads(dest: Dest | None, nexthop: int) -> None:
    """New connections to a destination go by that row of the next-hop table."""
    if dest is not None and dest.nexthop != nexthop and dest.available and dest.svc.scheduler:
        dest.nexthop = nexthop
        dest.svc.scheduler.sched.nexthop(dest.rec, nexthop)
