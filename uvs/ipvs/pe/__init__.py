"""Persistence engines: what else than its address a client's template is known by (ip_vs_pe.c).

One small file each, found by name (`sip` is `uvs.ipvs.pe.sip`).
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from uvs.engine.core import Header

NAME_MAX, DATA_MAX = 16, 255  # IP_VS_PENAME_MAXLEN with its NUL, IP_VS_PEDATA_MAXLEN


class PersistenceEngine:
    """Finds what a packet's template is known by (struct ip_vs_pe). It keeps nothing."""

    name: ClassVar[str]
    conn_out: ClassVar[frozenset[int]] = frozenset()  # protocols whose real servers may begin a connection

    def fill_param(self, iph: Header, packet: bytes) -> bytes | None:
        """The template's data, 1 to DATA_MAX bytes without a blank; None: the packet is refused.

        `iph`: the packet's own header, also when one quoted in an ICMP error is to be scheduled.
        """
        raise NotImplementedError

    def key(self, iph: Header, packet: bytes) -> bytes | None:
        """As the table keeps it and `-Lc --persistent-conn` lists it: name, blank, data."""
        data = self.fill_param(iph, packet)
        return None if data is None else self.name.encode() + b" " + data


@cache
def _found() -> tuple[str, ...]:
    return tuple(sorted(m.name for m in pkgutil.iter_modules(__path__)))


def names() -> list[str]:
    """The engines there are."""
    return list(_found())


@cache
def find(name: str) -> PersistenceEngine | None:
    """The engine of that name (ip_vs_pe_getbyname), None if there is none."""
    if name not in _found():
        return None
    found: type[PersistenceEngine] = import_module(f"{__name__}.{name}").ENGINE
    return found()
