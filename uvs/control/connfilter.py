"""Which connections are meant: a filter of `uvs flush` and of listings, looked at on the director's side.

Free of the engine, so that a control program need not load it.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from uvs.control.messages import invalid, number, parse_key, service_id
from uvs.control.netlink import Attrs, attribute, attributes
from uvs.ipvs.spec import ServiceKey


class Attr(enum.IntEnum):
    """Attributes of the FILTER nest; addresses of 4 or 16 bytes, ports in host order."""

    SERVICE = 1
    CLIENT = 2
    CLIENT_PREFIX = 3
    CLIENT_PORT = 4
    SERVER = 5
    SERVER_PORT = 6


class Entry(Protocol):
    """What a filter looks at: a connection of the engine's."""

    @property
    def caddr(self) -> bytes:
        """Client."""

    @property
    def daddr(self) -> bytes:
        """Server."""

    @property
    def cport(self) -> int:
        """Client's port."""

    @property
    def dport(self) -> int:
        """Server's port."""


@dataclass(frozen=True, slots=True)
class ConnFilter:
    """What is None matches everything. `client`: packed network address, with `prefix` bits that count."""

    service: ServiceKey | None = None
    client: bytes | None = None
    prefix: int = 128
    client_port: int | None = None
    server: bytes | None = None
    server_port: int | None = None

    def encode(self) -> bytes:
        """The payload of a FILTER nest."""
        return b"".join(self._attributes())

    def _attributes(self) -> Iterator[bytes]:
        if self.service is not None:
            yield service_id(self.service)
        if self.client is not None:
            yield attribute(Attr.CLIENT, self.client)
            yield attribute(Attr.CLIENT_PREFIX, bytes([min(self.prefix, len(self.client) * 8)]))
        if self.server is not None:
            yield attribute(Attr.SERVER, self.server)
        for kind, port in ((Attr.CLIENT_PORT, self.client_port), (Attr.SERVER_PORT, self.server_port)):
            if port is not None:
                yield attribute(kind, port.to_bytes(2, sys.byteorder))

    def matches(self, entry: Entry) -> bool:
        """Is the entry meant, as far as client and server say? The service is the caller's to look at."""
        if self.client_port is not None and entry.cport != self.client_port:
            return False
        if self.server_port is not None and entry.dport != self.server_port:
            return False
        if self.server is not None and entry.daddr != self.server:
            return False
        return self.client is None or _within(entry.caddr, self.client, self.prefix)


def _within(addr: bytes, network: bytes, prefix: int) -> bool:
    if len(addr) != len(network):
        return False
    shift = max(len(addr) * 8 - prefix, 0)
    return int.from_bytes(addr, "big") >> shift == int.from_bytes(network, "big") >> shift


def _address(attrs: Attrs, kind: int) -> bytes | None:
    data = attrs.get(kind)
    if data is not None and len(data) not in (4, 16):
        raise invalid("an address has 4 or 16 bytes")
    return data


def decode(payload: bytes) -> ConnFilter:
    """A FILTER nest. EINVAL: something in it is short or out of range; EAFNOSUPPORT."""
    attrs = attributes(payload)
    service = attrs.get(Attr.SERVICE)
    client, server = _address(attrs, Attr.CLIENT), _address(attrs, Attr.SERVER)
    whole = len(client) * 8 if client else 128
    prefix = number(attrs, Attr.CLIENT_PREFIX, 1, whole)
    if prefix > whole:
        raise invalid("a prefix is longer than its address")
    return ConnFilter(
        None if service is None else parse_key(attributes(service)),
        client,
        prefix,
        number(attrs, Attr.CLIENT_PORT, 2) if Attr.CLIENT_PORT in attrs else None,
        server,
        number(attrs, Attr.SERVER_PORT, 2) if Attr.SERVER_PORT in attrs else None,
    )
