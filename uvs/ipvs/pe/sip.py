"""`sip`: all datagrams of a call go to one real server (ip_vs_pe_sip.c, nf_conntrack_sip.c).

The Call-ID header is looked for as the kernel's SIP parser does, its peculiarities included: they decide
whether a datagram is dropped.
"""

from __future__ import annotations

import re
from typing import ClassVar

from uvs.engine.core import Header
from uvs.ipvs.ipproto import IPPROTO_UDP
from uvs.ipvs.pe import DATA_MAX, PersistenceEngine

UDP_HEADER = 8

_LINE_END = re.compile(rb"[\r\n]")
_BLANKS = re.compile(rb"[ \t]*")
# Letters of the kernel's isalpha(): Latin-1 (lib/ctype.c).
_ALPHA = rb"A-Za-z\xc0-\xd6\xd8-\xf6\xf8-\xff"
_NAME = re.compile(rb"(?i:call-id)|[iI](?=[^" + _ALPHA + rb"])", re.DOTALL)
# iswordc(): what RFC 3261 25.1 calls a word.
_WORD = re.compile(rb"[" + _ALPHA + rb"0-9\-.!%*_+`'~()<>:\\\"/\[\]?{}]*")


def _line_start(text: bytes, at: int) -> tuple[int, bool]:
    """Where the next line that is no continuation begins behind `at`; False: there is none."""
    while found := _LINE_END.search(text, at):
        at = found.end()
        at += text[at - 1 : at + 1] == b"\r\n"
        if at >= len(text):
            break
        if text[at : at + 1] not in b" \t":
            return at, True
        at += 1
    return len(text), False


def _skip_blanks(text: bytes, at: int) -> int:
    """Blanks, and one line end with blanks behind it; the text's length when it ends there."""
    at = _BLANKS.match(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] not in (b"\r", b"\n"):
        return at
    at += 2 if text[at : at + 2] == b"\r\n" else 1
    if text[at : at + 1] not in (b" ", b"\t"):
        return len(text)
    return _BLANKS.match(text, at).end()  # type: ignore[union-attr]


def _header(text: bytes, at: int) -> tuple[int, int] | None:
    """ct_sip_get_header: start and length (0: no value) of the first Call-ID behind `at`; None: no header."""
    while True:
        at, there = _line_start(text, at)
        if not there:
            return None
        name = _NAME.match(text, at)
        if name:
            break
        at += 1  # the kernel goes on behind this byte, so that of two line ends the second starts no line
    at = _skip_blanks(text, name.end())
    if text[at : at + 1] != b":" or at + 1 >= len(text):
        return None
    start = _skip_blanks(text, at + 1)
    end = _WORD.match(text, start).end()  # type: ignore[union-attr]
    if end > start and text[end : end + 1] == b"@":
        host = _WORD.match(text, end + 1).end()  # type: ignore[union-attr]
        end = host if host > end + 1 else start
    return start, end - start


def call_id(text: bytes) -> bytes | None:
    """The Call-ID of a SIP message, at most DATA_MAX bytes and with a line end behind it; None without."""
    at = 0
    while found := _header(text, at):
        start, size = found
        if size:
            end = start + size
            whole = size <= DATA_MAX and text[end : end + 1] in (b"\r", b"\n")
            return text[start:end] if whole else None
        at += start
    return None


class Sip(PersistenceEngine):
    """Templates by Call-ID; UDP only."""

    name = "sip"
    conn_out: ClassVar[frozenset[int]] = frozenset({IPPROTO_UDP})

    def fill_param(self, iph: Header, packet: bytes) -> bytes | None:
        """ip_vs_sip_fill_param."""
        return call_id(packet[iph.len + UDP_HEADER :]) if iph.protocol == IPPROTO_UDP else None


ENGINE = Sip
