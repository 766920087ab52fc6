"""Which addresses are diverted: what follows from services, real servers and the connections they still have."""

from __future__ import annotations

from uvs.engine.core import ConnFlag
from uvs.ipvs.services import FTPPORT, Dest, Service, Services
from uvs.netfilter.diversion import Diversion, Element


def service_element(svc: Service) -> Element:
    """What requests match: a mark; address and port; the address alone for port 0 and FTP."""
    key = svc.key
    if key.fwmark:
        return Element("mark", key.af, 0, b"", 0, key.fwmark)
    if key.port in (0, FTPPORT):
        return Element("service", key.af, 0, key.addr, 0, 0)
    return Element("service", key.af, key.protocol, key.addr, key.port, 0)


def server_element(dest: Dest) -> Element | None:
    """What replies match: only those of NAT servers have to come back to the director."""
    if dest.fwd != ConnFlag.MASQ:
        return None
    spec, key = dest.spec, dest.svc.key
    if key.fwmark or not spec.port or key.port in (0, FTPPORT):
        return Element("server", spec.af, 0, spec.addr, 0, 0)
    return Element("server", spec.af, key.protocol, spec.addr, spec.port, 0)


class Diverted:
    """Keeps a `Diversion` true to the services.

    An element lives until its service or server is gone and its last connection has expired: IPVS still
    drops the client's packets and translates the replies of a deleted server, and without us the local
    stack would answer them with RST.
    """

    def __init__(self, services: Services, diversion: Diversion) -> None:
        self._services = services
        self._diversion = diversion
        self._held: dict[int, Element] = {}  # by destination record
        self._stale: list[tuple[Element, list[Dest]]] = []
        services.observers.append(self._changed)

    def adopt(self) -> None:
        """Everything that the services already hold (after a restart), deleted destinations too."""
        for svc in self._services:
            self._changed("add_service", svc, None)
            for dest in svc.dests:
                self._changed("add_dest", svc, dest)
        for dest in self._services.trash:
            self._diversion.add(service_element(dest.svc))
            self._stale.append((service_element(dest.svc), [dest]))
            if element := server_element(dest):
                self._diversion.add(element)
                self._stale.append((element, [dest]))

    def _changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        if event == "add_service":
            self._diversion.add(service_element(svc))
        elif event == "del_service":
            self._stale.append((service_element(svc), [d for d in self._services.trash if d.svc is svc]))
        elif dest is not None and event in ("add_dest", "edit_dest", "del_dest"):
            self._hold(dest, None if event == "del_dest" else server_element(dest))

    def _hold(self, dest: Dest, wanted: Element | None) -> None:
        held = self._held.pop(dest.rec.index, None)
        if wanted != held:
            if wanted:
                self._diversion.add(wanted)
            if held:
                self._stale.append((held, [dest]))
        if wanted:
            self._held[dest.rec.index] = wanted

    def release(self) -> None:
        """Let go of what has no connection any more; to be called about once a second."""
        for element, dests in self._stale[:]:
            if not any(d.rec.refcnt for d in dests):
                self._stale.remove((element, dests))
                self._diversion.discard(element)
