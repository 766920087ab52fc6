"""Services and servers of the running director, as the checks look at them."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from uvs.control.messages import DestEntry, ServiceEntry
from uvs.control.rows import service_text
from uvs.doctor.host import Director, Host, Knock

# IP_VS_CONN_F_FWD_MASK (include/uapi/linux/ip_vs.h): forwarding methods
METHODS = {0: "nat", 1: "local", 2: "tun", 3: "dr", 4: "bypass"}
PROTOCOLS = {6: "TCP", 17: "UDP", 132: "SCTP"}
TCP = 6
MOST = 256  # services, and servers, for which the kernel is asked: a director may have thousands


def text(addr: bytes) -> str:
    """A packed address as text."""
    return socket.inet_ntop(socket.AF_INET if len(addr) == 4 else socket.AF_INET6, addr)


def join(address: str, port: int) -> str:
    """`address:port` as uvsadm takes it."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@dataclass(frozen=True)
class Virtual:
    """A virtual service."""

    entry: ServiceEntry
    dests: list[DestEntry]

    @property
    def mark(self) -> int:
        """Its mark, 0 if it is named by an address."""
        return self.entry.spec.key.fwmark

    @property
    def family(self) -> int:
        """4 or 6."""
        return 4 if self.entry.spec.key.af == socket.AF_INET else 6

    @property
    def address(self) -> str:
        """The VIP; "" of a service by mark."""
        return "" if self.mark else text(self.entry.spec.key.addr)

    @property
    def protocol(self) -> int:
        """IPPROTO_*; 0 of a service by mark."""
        return 0 if self.mark else self.entry.spec.key.protocol

    @property
    def port(self) -> int:
        """0: every port."""
        return self.entry.spec.key.port

    @property
    def name(self) -> str:
        """As a listing shows it."""
        if self.mark:
            return f"FWM {self.mark}"
        return f"{PROTOCOLS.get(self.protocol, str(self.protocol))} {join(self.address, self.port)}"

    @property
    def label(self) -> str:
        """As rows of GET_HEALTH name it."""
        return service_text(self.entry.spec.key)

    @property
    def option(self) -> str:
        """As uvsadm takes it."""
        if self.mark:
            return f"-f {self.mark}" + (" -6" if self.family == 6 else "")
        flag = {6: "-t", 17: "-u"}.get(self.protocol, "--sctp-service")
        return f"{flag} {join(self.address, self.port)}"


@dataclass(frozen=True)
class Real:
    """A real server of a service."""

    service: Virtual
    entry: DestEntry
    local: bool

    @property
    def method(self) -> str:
        """One of METHODS' values."""
        return METHODS.get(self.entry.spec.fwd & 7, "?")

    @property
    def family(self) -> int:
        """4 or 6: the server's own, which in a tunnel may be another than the service's."""
        return 4 if len(self.entry.spec.addr) == 4 else 6

    @property
    def address(self) -> str:
        """Its address."""
        return text(self.entry.spec.addr)

    @property
    def port(self) -> int:
        """Its port."""
        return self.entry.spec.port

    @property
    def name(self) -> str:
        """As a listing shows it."""
        return join(self.address, self.port)

    @property
    def knock(self) -> Knock | None:
        """A SYN for it by the forwarding path; None if there is none (this host, other protocols)."""
        service, spec = self.service, self.entry.spec
        if (
            self.local
            or self.method not in ("nat", "dr", "tun")
            or service.protocol != TCP
            or not service.port
        ):
            return None
        if self.method == "nat":  # the same for every service
            return Knock(bytes(len(spec.addr)), 0, spec.addr, spec.port or service.port, spec.fwd)
        return Knock(
            service.entry.spec.key.addr, service.port, spec.addr, spec.port or service.port, spec.fwd,
            spec.tun_type, spec.tun_port, spec.tun_flags,
        )  # fmt: skip


def director(host: Host) -> Director | None:
    """What the running director says, None if there is none."""
    found = host.director()
    return None if isinstance(found, str) else found


def virtuals(host: Host) -> list[Virtual]:
    """All services."""
    found = director(host)
    return [Virtual(*service) for service in found.services] if found else []


def addressed(host: Host) -> list[Virtual]:
    """The first services that are named by an address: those for which the kernel and others are asked."""
    return [v for v in virtuals(host) if not v.mark][:MOST]


def reals(host: Host) -> list[Real]:
    """Servers of all services, up to MOST addresses of them."""
    own = {a.address for a in host.addresses()}
    found: list[Real] = []
    local: dict[bytes, bool] = {}  # by address
    for v in virtuals(host):
        for dest in v.dests:
            addr = dest.spec.addr
            if addr not in local:
                if len(local) == MOST:
                    continue
                address = text(addr)
                local[addr] = address in own or address.startswith("127.") or address == "::1"
            found.append(Real(v, dest, local[addr]))
    return found
