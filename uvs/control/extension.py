"""The generic netlink family UVS, version 1: what a kernel offers by other means than IPVS's family.

Sysctls, the connection table, counters by reason, walks. Described in docs/reference/control-protocol.md.
"""

from __future__ import annotations

import enum
import json
from struct import Struct
from typing import NamedTuple

from uvs.control.connfilter import ConnFilter
from uvs.control.netlink import attribute, string

FAMILY_NAME = "UVS"
VERSION = 1


class Cmd(enum.IntEnum):
    """Commands; an answer bears the number of its request."""

    GET_SYSCTL = 1
    SET_SYSCTL = 2
    GET_CONNS = 3
    GET_COUNTERS = 4
    GET_TOTAL = 5
    RECORD = 6
    GET_WALKS = 7
    GET_PROC = 8
    SET_SOCKOPT = 9
    GET_SOCKOPT = 10
    FLUSH_CONNS = 11
    GET_QUEUES = 12
    TRACE = 13
    GET_TRACE = 14
    SET_HEALTH = 16
    SET_FALLBACK = 17
    GET_HEALTH = 18
    DRAIN = 19
    RELOAD = 20
    DIFF = 21


class Attr(enum.IntEnum):
    """Attributes, all at top level."""

    NAME = 1
    VALUE = 2
    CONN = 3
    COUNT = 4
    STATS64 = 5
    JSON = 6
    TEXT = 7
    SOCKOPT = 8
    DATA = 9
    FILTER = 10


# af, daf, protocol, cport, vport, dport, pad, flags, ms left, mark, state name, client, virtual, server
_CONN = Struct("=BBHHHHHIII12s16s16s16s")
_U64 = Struct("=Q")
_SOCKOPT = Struct("=II")  # number, length; what the caller's buffer begins with follows
CONN_SIZE = _CONN.size


class ConnEntry(NamedTuple):
    """A connection as it is listed: a row of /proc/net/ip_vs_conn and what stands behind it.

    Addresses are packed, ports host order, `expires` in ms, `flags` as `IP_VS_CONN_F_*`.
    """

    af: int
    daf: int
    protocol: int
    cport: int
    vport: int
    dport: int
    flags: int
    expires: int
    fwmark: int
    state: str
    caddr: bytes
    vaddr: bytes
    daddr: bytes
    pe: bytes = b""  # a persistence engine's name, a blank, its data


def conn(entry: ConnEntry) -> bytes:
    """The CONN attribute of a connection."""
    af, daf, protocol, cport, vport, dport, flags, expires, fwmark, state, *addrs, pe = entry
    return attribute(
        Attr.CONN,
        _CONN.pack(
            af, daf, protocol, cport, vport, dport, 0, flags, expires, fwmark, state.encode()[:12], *addrs
        )
        + pe,
    )


def parse_conn(payload: bytes) -> ConnEntry:
    """A CONN attribute; ValueError if it is short."""
    if len(payload) < CONN_SIZE:
        raise ValueError("a CONN attribute is short")
    af, daf, protocol, cport, vport, dport, _, flags, expires, fwmark, state, caddr, vaddr, daddr = (
        _CONN.unpack_from(payload)
    )
    size, dsize = 4 if af == 2 else 16, 4 if daf == 2 else 16
    return ConnEntry(
        af,
        daf,
        protocol,
        cport,
        vport,
        dport,
        flags,
        expires,
        fwmark,
        state.rstrip(b"\0").decode("ascii", "replace"),
        caddr[:size],
        vaddr[:size],
        daddr[:dsize],
        payload[CONN_SIZE:],
    )


def filter(wanted: ConnFilter) -> bytes:
    """The FILTER attribute; nothing if every connection is meant."""
    payload = wanted.encode()
    return attribute(Attr.FILTER, payload) if payload else b""


def name(text: str) -> bytes:
    """The NAME attribute."""
    return string(Attr.NAME, text)


def value(text: str) -> bytes:
    """The VALUE attribute."""
    return string(Attr.VALUE, text)


def count(number: int) -> bytes:
    """The COUNT attribute."""
    return attribute(Attr.COUNT, _U64.pack(number))


def parse_count(payload: bytes) -> int:
    """A COUNT attribute; ValueError if it is short."""
    if len(payload) < 8:
        raise ValueError("a COUNT attribute is short")
    number: int = _U64.unpack_from(payload)[0]
    return number


def json_text(value: object) -> bytes:
    """The JSON attribute."""
    return attribute(Attr.JSON, json.dumps(value, separators=(",", ":")).encode())


def text(words: str) -> bytes:
    """The TEXT attribute."""
    return attribute(Attr.TEXT, words.encode())


def sockopt(option: int, size: int, data: bytes) -> bytes:
    """The SOCKOPT attribute: a get- or setsockopt of `size` bytes, of which `data` are the first."""
    return attribute(Attr.SOCKOPT, _SOCKOPT.pack(option, size) + data)


def parse_sockopt(payload: bytes) -> tuple[int, int, bytes]:
    """A SOCKOPT attribute: number, length, data; ValueError if it is short."""
    if len(payload) < _SOCKOPT.size:
        raise ValueError("a SOCKOPT attribute is short")
    option, size = _SOCKOPT.unpack_from(payload)
    return option, size, payload[_SOCKOPT.size :]
