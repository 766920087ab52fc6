"""Which addresses are diverted: what follows from services, real servers and the connections they have."""

from __future__ import annotations

from collections.abc import Iterator

from uvs.engine.core import Conn, ConnFlag
from uvs.ipvs.ipproto import IPPROTO_UDP
from uvs.ipvs.services import FTPPORT, Dest, Service, Services
from uvs.ipvs.spec import ServiceKey
from uvs.netfilter.diversion import Diversion
from uvs.netfilter.plan import PROTOCOLS, Element

ISAKMP = 500
ANSWERS_MAX = 4096
ANSWERING = (ConnFlag.LOCALNODE, ConnFlag.TUNNEL, ConnFlag.DROUTE)


def _every_port(key: ServiceKey) -> bool:
    """Do packets belong to the service that do not bear its protocol and port?

    FTP's data connections; AH and ESP, which follow a connection of UDP 500 (ip_vs_proto_ah_esp.c).
    """
    return bool(key.fwmark) or key.port in (0, FTPPORT) or (key.protocol, key.port) == (IPPROTO_UDP, ISAKMP)


def service_element(svc: Service) -> Element | None:
    """What requests match: a mark, or address and port. None: a protocol that is never balanced."""
    key = svc.key
    if key.fwmark:
        return Element("mark", key.af, mark=key.fwmark)
    if key.protocol not in PROTOCOLS:
        return None
    return Element("service", key.af, key.protocol, key.addr, 0 if _every_port(key) else key.port)


def server_element(dest: Dest) -> Element | None:
    """What replies match: only those of NAT servers have to come back to the director."""
    spec, key = dest.spec, dest.svc.key
    if dest.fwd != ConnFlag.MASQ or key.protocol not in PROTOCOLS:
        return None
    return Element("server", spec.af, key.protocol, spec.addr, 0 if _every_port(key) else spec.port)


class Diverted:
    """Keeps a `Diversion` true to the services.

    An element lives until its service or server is gone and its last connection has expired: IPVS still
    drops the client's packets and translates the replies of a deleted server, and without us the local
    stack would answer them with RST.
    """

    def __init__(self, services: Services, diversion: Diversion) -> None:
        self._services = services
        self._diversion = diversion
        self._held: dict[int, Element] = {}  # of destinations, by record
        self._stale: list[tuple[Element, list[Dest]]] = []
        self._answers: dict[Element, list[Dest]] = {}  # with the servers that answer so
        services.observers.append(self._changed)

    def adopt(self) -> None:
        """Everything that the services already hold (after a restart), deleted destinations too."""
        for svc in self._services:
            self._changed("add_service", svc, None)
            for dest in svc.dests:
                self._changed("add_dest", svc, dest)
        for dest in self._services.trash:
            for element in (service_element(dest.svc), server_element(dest)):
                if element:
                    self._diversion.add(element)
                    self._stale.append((element, [dest]))
        dests = (dest for svc in self._services for dest in svc.dests)
        if any(dest.svc.key.fwmark and dest.fwd != ConnFlag.MASQ for dest in (*dests, *self._services.trash)):
            for cp in self._services.table.conns():
                if cp.fwmark and cp.flags & (ConnFlag.FWD_MASK | ConnFlag.TEMPLATE) in ANSWERING:
                    self.answers_from(cp)

    def _changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        if dest is not None:
            if event in ("add_dest", "edit_dest", "del_dest"):
                self._hold(dest, None if event == "del_dest" else server_element(dest))
        elif element := service_element(svc):
            if event == "add_service":
                self._diversion.add(element)
            elif event == "del_service":
                self._stale.append((element, self._services.trash.of(svc)))

    def answers_from(self, cp: Conn) -> bool:
        """A server of a fwmark service will answer with the connection's virtual address: divert that too.

        False: nothing new. Beyond ANSWERS_MAX addresses and ports the rest are not seen by ip_vs_out.
        """
        dest = self._services.dest_of(cp.dest)
        if dest is None:
            return False
        element = Element("answer", cp.af, cp.protocol, cp.vaddr, cp.vport)
        servers = self._answers.get(element)
        if servers is not None:
            if not any(each is dest for each in servers):
                servers.append(dest)
            return False
        if len(self._answers) >= ANSWERS_MAX or cp.protocol not in PROTOCOLS or not cp.vport:
            return False
        self._answers[element] = [dest]
        self._diversion.add(element)
        return True

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
        for _ in self.releasing():
            pass

    def releasing(self) -> Iterator[None]:
        """The same in steps, an element each."""
        for answer, servers in tuple(self._answers.items()):  # gone servers whose connections are, too
            servers[:] = [d for d in servers if d.rec.refcnt]
            if not servers and self._answers.get(answer) is servers:
                del self._answers[answer]
                self._diversion.discard(answer)
            yield
        waiting, self._stale = self._stale, []
        for element, dests in waiting:
            # One without connections gets none again, and its record may soon be another's.
            if busy := [d for d in dests if d.rec.refcnt]:
                self._stale.append((element, busy))
            else:
                self._diversion.discard(element)
            yield
