"""dns: a query and its answer (RFC 1035); just the names and records that a check may ask for."""

from __future__ import annotations

import asyncio
import secrets
import socket
import struct
from ipaddress import ip_address

from uvs.config.checks import Dns
from uvs.health.checks.base import Failed, Result, Target, address, connection, datagrams, passed

PORT = 53
TYPES = {"A": 1, "NS": 2, "CNAME": 5, "SOA": 6, "PTR": 12, "MX": 15, "TXT": 16, "AAAA": 28, "SRV": 33}
RCODES = ("NOERROR", "FORMERR", "SERVFAIL", "NXDOMAIN", "NOTIMP", "REFUSED")
IN, RD, QR = 1, 0x0100, 0x8000
HEADER = struct.Struct("!6H")
JUMPS = 64  # of a compressed name
RECORDS = 256


class Malformed(ValueError):
    """No DNS message, or one that was cut."""


async def check(target: Target, settings: Dns) -> Result:
    """One query, by UDP or TCP; answers to other queries are passed over."""
    ident = secrets.randbelow(1 << 16)
    asked = question(settings.query, settings.record)
    query = HEADER.pack(ident, RD, 1, 0, 0, 0) + asked
    where = address(target, settings, PORT)
    if settings.transport == "tcp":
        async with connection(where) as (reader, writer):
            writer.write(struct.pack("!H", len(query)) + query)
            try:
                (size,) = struct.unpack("!H", await reader.readexactly(2))
                return judge(settings, ident, await reader.readexactly(size))
            except asyncio.IncompleteReadError:
                raise Failed("closed without an answer") from None
            except Malformed as error:
                raise Failed(f"no DNS answer: {error}") from None
    with datagrams(where, query) as answers:
        while True:
            answer = await answers.receive()
            try:
                return judge(settings, ident, answer)
            except Malformed as error:
                if answer[:2] == query[:2]:
                    raise Failed(f"no DNS answer: {error}") from None


def question(name: str, record: str) -> bytes:
    """The question section of a query."""
    labels = [label.encode() for label in name.removesuffix(".").split(".") if label]
    encoded = b"".join(bytes([len(label)]) + label for label in labels) + b"\0"
    return encoded + struct.pack("!2H", TYPES[record], IN)


def judge(settings: Dns, ident: int, message: bytes) -> Result:
    """Is that the answer that is wanted? Failed: it is not. Malformed: it is no answer to this query."""
    rcode, records = parse(message, ident, question(settings.query, settings.record))
    if rcode != settings.rcode:
        raise Failed(f"rcode {rcode}")
    found = [text for kind, text in records if kind == TYPES[settings.record]]
    if settings.answer is not None and _same(settings.answer) not in map(_same, found):
        raise Failed(
            f"no {settings.record} {settings.answer} in the answer: {', '.join(found) or 'none'}"[:200]
        )
    return passed(f"rcode {rcode}, {len(found)} {settings.record}")


def _same(text: str) -> str:
    try:
        return str(ip_address(text))
    except ValueError:
        return text.lower().removesuffix(".")


def parse(message: bytes, ident: int, asked: bytes) -> tuple[str, list[tuple[int, str]]]:
    """Response code, and the answer section's records as type and text. Malformed."""
    if len(message) < HEADER.size:
        raise Malformed("it is short")
    number, flags, questions, answers, _, _ = HEADER.unpack_from(message)
    if number != ident or not flags & QR:
        raise Malformed("it is no answer to this query")
    rcode, at = flags & 15, HEADER.size
    name_of_rcode = RCODES[rcode] if rcode < len(RCODES) else str(rcode)
    if not questions:  # of servers that refuse
        return name_of_rcode, []
    if message[at : at + len(asked)].lower() != asked.lower():
        raise Malformed("it is about another question")
    at += len(asked)
    records = []
    for _ in range(min(answers, RECORDS)):
        _, at = name(message, at)
        if at + 10 > len(message):
            raise Malformed("it is cut")
        kind, _, _, size = struct.unpack_from("!2HIH", message, at)
        at += 10
        if at + size > len(message):
            raise Malformed("it is cut")
        records.append((kind, _text(message, kind, at, size)))
        at += size
    return name_of_rcode, records


def name(message: bytes, at: int) -> tuple[str, int]:
    """The name at an offset, and the offset behind it. Malformed."""
    labels: list[str] = []
    end = -1
    for _ in range(JUMPS):
        if at >= len(message):
            raise Malformed("it is cut")
        size = message[at]
        if size & 0xC0 == 0xC0:
            if at + 2 > len(message):
                raise Malformed("it is cut")
            end = at + 2 if end < 0 else end
            at = (size & 0x3F) << 8 | message[at + 1]
        elif size & 0xC0 or at + 1 + size > len(message):
            raise Malformed("a name is broken")
        elif not size:
            return ".".join(labels) or ".", at + 1 if end < 0 else end
        else:
            labels.append(message[at + 1 : at + 1 + size].decode("latin-1"))
            at += 1 + size
    raise Malformed("a name has no end")


def _text(message: bytes, kind: int, at: int, size: int) -> str:
    """A record's content as zone files write it."""
    data = message[at : at + size]
    if kind in (TYPES["A"], TYPES["AAAA"]):
        if size != (4 if kind == TYPES["A"] else 16):
            raise Malformed("an address is broken")
        return socket.inet_ntop(socket.AF_INET if size == 4 else socket.AF_INET6, data)
    if kind in (TYPES["NS"], TYPES["CNAME"], TYPES["PTR"], TYPES["SOA"]):
        return name(message, at)[0]
    if kind == TYPES["MX"] and size > 2:
        return f"{int.from_bytes(data[:2], 'big')} {name(message, at + 2)[0]}"
    if kind == TYPES["SRV"] and size > 6:
        return " ".join([*map(str, struct.unpack_from("!3H", data)), name(message, at + 6)[0]])
    if kind == TYPES["TXT"]:
        parts, i = [], 0
        while i < size:
            parts.append(data[i + 1 : i + 1 + data[i]].decode("latin-1"))
            i += 1 + data[i]
        return "".join(parts)
    return data.hex()
