"""What FTP's commands and replies say about a data connection (RFC 959, RFC 2428; ip_vs_ftp_get_addrport).

As ip_vs_ftp reads them: one packet at a time, leniently here and strictly there. Offsets count from the
payload's start.
"""

from __future__ import annotations

import enum
import re
from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from uvs.engine.core import AF_INET


class Mode(enum.IntEnum):
    """What the helper waits for from the server."""

    ACTIVE = 0  # nothing
    PASV = 1
    EPSV = 2


class Place(NamedTuple):
    """An address and port in a payload, and where they stand."""

    addr: bytes | None  # packed; None: not given
    port: int
    start: int
    end: int


_PASSIVE = re.compile(rb"(?i:pasv)\r\n|(?i:epsv)(?=[ \r])")
_FIVE_COMMAS = re.compile(rb"([0-9]*)," * 5 + rb"([0-9]*)(?=[^0-9])")
_DIGITS = re.compile(rb"[0-9]*")
_OCTETS = re.compile(rb"0*([0-9]{1,3})\." * 3 + rb"0*([0-9]{1,3})")
_ZEROS = re.compile(rb"(?<![0-9a-fA-F])0+(?=[0-9a-fA-F]{4}(?![0-9a-fA-F]))")


def passive_command(text: bytes, af: int) -> Mode | None:
    """Which reply a client's packet asks for: PASV, EPSV; None: it does not say, ACTIVE: it says
    something that is not to be answered, and nothing else is to be looked for in it."""
    at = 0
    while found := _PASSIVE.search(text, at):
        at, at_most = found.start(), len(text) - 6
        if at > at_most:
            return None
        if text[at] in b"Pp":
            if af == AF_INET:
                return Mode.PASV
        elif text[at + 4] != 0x20:
            return Mode.EPSV
        else:
            whole = at < at_most and text[at + 6] == 0x0D
            return Mode.EPSV if whole and text[at + 5] == ord("1" if af == AF_INET else "2") else Mode.ACTIVE
        at += 1
    return None


def port_command(text: bytes, af: int) -> Place | None:
    """`PORT` (IPv4) or `EPRT` at the start of a client's packet."""
    if af == AF_INET and (place := _plain(text, b"port", b" ")):
        return place
    place = _extended(text, b"eprt", b" ", af)
    return place if place and place.addr else None


def passive_reply(text: bytes, mode: Mode, af: int) -> Place | None:
    """`227` (IPv4) or `229`, as asked for, at the start of a server's packet."""
    if mode == Mode.PASV:
        return _plain(text, b"227 ", b"(") if af == AF_INET else None
    return _extended(text, b"229 ", b"(", af) if mode == Mode.EPSV else None


def _begins(text: bytes, word: bytes) -> bool:
    return text[: len(word)].lower() == word


def _behind(text: bytes, at: int, skip: bytes) -> int:
    """The first byte behind the next run of `skip`; the text's length without one."""
    at = text.find(skip, at)
    if at < 0:
        return len(text)
    return len(text) - len(text[at:].lstrip(skip))


def _plain(text: bytes, word: bytes, skip: bytes) -> Place | None:
    """Six numbers up to 255 with commas between, behind the first digit or `skip`; something must follow.

    Each may be empty.
    """
    if not _begins(text, word):
        return None
    first = re.compile(b"[0-9" + re.escape(skip) + b"]").search(text, len(word))
    if not first:
        return None
    start = first.start() if first[0].isdigit() else _behind(text, first.start(), skip)
    found = _FIVE_COMMAS.match(text, start)
    if not found:
        return None
    six = [_number(digits, 0xFF) for digits in found.groups()]
    if None in six:
        return None
    octets = bytes(n or 0 for n in six)
    return Place(octets[:4], int.from_bytes(octets[4:], "big"), start, found.end())


def _number(digits: bytes, high: int) -> int | None:
    """Digits, or nothing, as a number; None beyond `high` (as Linux 6.1.0-57 does)."""
    digits = digits.lstrip(b"0")
    value = int(digits or b"0") if len(digits) <= len(str(high)) else high + 1
    return value if value <= high else None


def _extended(text: bytes, word: bytes, skip: bytes, af: int) -> Place | None:
    """`|||port|` or `|family|address|port|` with any printable delimiter."""
    if not _begins(text, word):
        return None
    start = _behind(text, len(word), skip)
    delim = text[start : start + 1]
    if not delim or not 33 <= delim[0] <= 126:
        return None
    at = start + 1
    addr: bytes | None = None
    if text[at : at + 1] == delim:
        if text[at + 1 : at + 2] != delim:
            return None
        at += 2
    else:
        if text[at : at + 2] != (b"1" if af == AF_INET else b"2") + delim:
            return None
        at += 2
        end = text.find(delim, at)
        addr = _address(text[at:end], af) if end >= 0 else None
        if addr is None:
            return None
        at = end + 1
    end = _DIGITS.match(text, at).end()  # type: ignore[union-attr]
    port = _number(text[at:end], 0xFFFF)
    if not port or text[end : end + 1] != delim:
        return None
    return Place(addr, port, start, end + 1)


def _address(text: bytes, af: int) -> bytes | None:
    """in4_pton, in6_pton: leading zeros do not matter."""
    try:
        if af != AF_INET:
            if b"%" in text:
                return None
            return IPv6Address(_ZEROS.sub(b"", text).decode("ascii")).packed
        octets = _OCTETS.fullmatch(text)
        return IPv4Address(".".join(str(int(o)) for o in octets.groups())).packed if octets else None
    except ValueError:
        return None
