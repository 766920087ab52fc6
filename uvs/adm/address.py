"""Addresses and ports: as they are typed, and as they are shown."""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from typing import NamedTuple

from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP

PROTOCOLS = {IPPROTO_TCP: "tcp", IPPROTO_UDP: "udp", IPPROTO_SCTP: "sctp"}


class Endpoint(NamedTuple):
    """An address as it was typed; `port` None: none was given."""

    af: int
    addr: bytes
    port: int | None


def number(text: str, low: int, high: int) -> int | None:
    """A decimal number in a range, as strtol reads it: blanks and a sign before it, nothing after."""
    digits = text.lstrip(" \t\n\v\f\r")
    body = digits[1:] if digits[:1] in ("+", "-") else digits
    if not body.isascii() or not body.isdigit():
        return None
    value = int(digits)
    return value if low <= value <= high else None


def leading_number(text: str) -> int:
    """What atoi makes of a text: the digits that it begins with, 0 without any."""
    found = re.match(r"[ \t\n\v\f\r]*([+-]?[0-9]+)", text)
    return int(found[1]) if found else 0


def parse_endpoint(text: str, protocol: int) -> Endpoint | None:
    """`host[:port]`, `[v6]:port` or a bare IPv6 address; None if it is none of them."""
    if text.startswith("["):
        inside, closed, behind = text[1:].partition("]")
        if not closed or not behind.startswith(":"):
            return None
        port = _port(behind[1:], protocol)
        if addr6 := _host_address6(inside):
            return None if port is None else Endpoint(socket.AF_INET6, addr6, port)
        text = inside
    elif text.count(":") > 1:
        with suppress(OSError, ValueError):
            return Endpoint(socket.AF_INET6, _pton6(text), None)
    host, colon, behind = text.rpartition(":")
    if not colon:
        host = text
        if host.isascii() and host.isdigit():  # 0..4294967295 is an address too, but hardly meant
            return None
    addr = host_address(host)
    if addr is None:
        return None
    if not colon:
        return Endpoint(socket.AF_INET, addr, None)
    port = _port(behind, protocol)
    return None if port is None else Endpoint(socket.AF_INET, addr, port)


def _pton6(text: str) -> bytes:
    if "\0" in text:
        raise OSError
    return socket.inet_pton(socket.AF_INET6, text)


def _host_address6(host: str) -> bytes | None:
    """What stands in brackets: an IPv6 address or, which ipvsadm lists but does not read, the name of one."""
    with suppress(OSError, ValueError):
        return _pton6(host)
    with suppress(OSError, ValueError):
        socket.inet_aton(host)
        return None
    with suppress(OSError, ValueError):
        found = socket.getaddrinfo(host, None, socket.AF_INET6, socket.SOCK_STREAM)
        return _pton6(str(found[0][4][0]).partition("%")[0])
    return None


def host_address(host: str) -> bytes | None:
    """An IPv4 address of a name or of digits and dots, as inet_aton reads them."""
    if not host:
        return None
    with suppress(OSError, ValueError):
        return socket.inet_aton(host)
    with suppress(OSError, ValueError):
        return socket.inet_aton(socket.gethostbyname(host))
    return None


def _port(text: str, protocol: int) -> int | None:
    found = number(text, 0, 65535)
    if found is None and protocol in PROTOCOLS:
        with suppress(OSError, ValueError):
            found = socket.getservbyname(text, PROTOCOLS[protocol])
    return found


def numeric(af: int, addr: bytes, port: int) -> str:
    """`10.0.0.1:80`, `[2001:db8::1]:80`."""
    text = socket.inet_ntop(af, addr)
    return f"[{text}]:{port}" if af == socket.AF_INET6 else f"{text}:{port}"
