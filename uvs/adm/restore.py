"""`-R`: a command a line, many under way at once; and all or nothing, if that is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from uvs.adm.errors import Fail, Unreadable
from uvs.adm.grammar import Command, parse
from uvs.adm.messages import explain
from uvs.adm.requests import request
from uvs.control.client import Client
from uvs.control.messages import Cmd, DestEntry, dest, dest_id, service, service_id
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec

CHUNK = 1 << 20

Lookup = tuple[int, int, bytes, int, int]
Table = dict[Lookup, tuple[ServiceSpec, list[DestEntry]]]
Request = tuple[int, bytes]


class Line(NamedTuple):
    """A line of the input: its number and what it asks for; or, in ipvsadm's place, what is wrong with it."""

    number: int
    command: Command
    wrong: Unreadable | None = None


_NOTHING = Command("", ServiceSpec(ServiceKey(0, 0, b"", 0)), DestSpec(0, b"", 0))


def chunks() -> Iterator[list[str]]:
    """Standard input as lines, together what is there at once: a slow writer is not waited for."""
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:
        yield sys.stdin.read().splitlines()
        return
    rest = b""
    while data := os.read(buffer.fileno(), CHUNK):
        *lines, rest = (rest + data).split(b"\n")
        if lines:
            yield [os.fsdecode(line) for line in lines]
    if rest:
        yield [os.fsdecode(rest)]


def commands(lines: Iterable[str], start: int, program: str) -> Iterator[Line]:
    """The lines that say something. Fail: a wrong one, by its number unless ipvsadm is imitated.

    ipvsadm passes over a line with an option that it cannot read; such a line is handed on as wrong.
    """
    for number, line in enumerate(lines, start):
        words = [word for word in line.split() if word not in ("ipvsadm", "uvsadm")]
        if not words:
            continue
        try:
            yield Line(number, parse(words, program))
        except Unreadable as e:
            if program != "ipvsadm":
                raise Unreadable(named(number, str(e), program)) from None
            yield Line(number, _NOTHING, e)
        except Fail as e:
            raise Fail(named(number, str(e), program), e.status) from None


def named(number: int, message: str, program: str) -> str:
    """A message with its line's number, unless ipvsadm is imitated."""
    return message if program == "ipvsadm" else f"line {number}: {message}"


class Restore:
    """Runs lines against a director. `status` is the last line's; `refused` counts those refused."""

    def __init__(self, client: Client, program: str) -> None:
        self.client = client
        self.program = program
        self.status = 0
        self.refused = 0

    def run(self, lines: Iterator[Line]) -> Line | None:
        """Do lines up to one that is no change (a listing): that is returned. Fail: a wrong line."""
        sent: list[Line] = []
        other: list[Line] = []
        wrong: list[Fail] = []

        def changes() -> Iterator[Request]:
            try:
                for line in lines:
                    asked = request(line.command)
                    if asked is None:
                        other.append(line)
                        return
                    sent.append(line)
                    yield asked
            except Fail as e:  # what came before it is done
                wrong.append(e)

        last_refused = -1

        def failed(index: int, error: IpvsError) -> None:
            nonlocal last_refused
            line = sent[index]
            last_refused = index
            self.refused += 1
            message = explain(error, line.command.name)
            sys.stdout.flush()
            print(named(line.number, message, self.program), file=sys.stderr)

        self.client.batch(changes(), failed)
        if sent:
            self.status = 255 if last_refused == len(sent) - 1 else 0
        if wrong:
            raise wrong[0]
        return other[0] if other else None


# -------------------------------------------------------------- all or nothing


def table(client: Client) -> Table:
    """The whole table of services."""
    services = client.services()
    servers = client.all_dests([entry.spec.key for entry in services])
    return {
        entry.spec.key.lookup: (entry.spec, dests) for entry, dests in zip(services, servers, strict=True)
    }


def atomic(client: Client, lines: list[Line], program: str) -> int:
    """Do all lines; if one is refused, put everything back as it was. Returns the exit status."""
    for line in lines:
        if line.wrong:
            raise line.wrong
        if request(line.command) is None:
            raise Fail(named(line.number, f"'{line.command.name}' does not go with --atomic", program))
    before, timeouts = table(client), client.timeouts()
    restore = Restore(client, program)
    restore.run(iter(lines))
    if not restore.refused:
        return 0
    everything = any(line.command.name == "flush" for line in lines)
    touched = None if everything else {line.command.service.key.lookup for line in lines}
    refused: list[str] = []

    def failed(index: int, error: IpvsError) -> None:
        refused.append(error.strerror or "")

    client.batch(undo(before, table(client), touched), failed)
    if any(line.command.name == "set" for line in lines):
        client.set_timeouts(*timeouts)
    if refused:
        raise Fail(f"not all could be put back: {refused[0]}", 255)
    raise Fail("nothing was changed", 255)


def undo(before: Table, now: Table, touched: set[Lookup] | None) -> Iterator[Request]:
    """What makes the table of before out of the one of now; `touched`: services to look at, None for all."""
    for lookup, (spec, _) in now.items():
        if lookup not in before and (touched is None or lookup in touched):
            yield Cmd.DEL_SERVICE, service_id(spec.key)
    for lookup, (spec, dests) in before.items():
        if touched is not None and lookup not in touched:
            continue
        if lookup not in now:
            yield Cmd.NEW_SERVICE, service(spec)
            yield from _servers(spec.key, dests, [])
            continue
        if now[lookup][0] != spec:
            yield Cmd.SET_SERVICE, service(spec)
        yield from _servers(spec.key, dests, now[lookup][1])


def _servers(key: ServiceKey, before: list[DestEntry], now: list[DestEntry]) -> Iterator[Request]:
    """Of one service. Destinations are listed newest first, so that they are made from the last one on."""
    old, new = ({(e.spec.af, e.spec.addr, e.spec.port): e.spec for e in entries} for entries in (before, now))
    for identity in new.keys() - old.keys():
        yield Cmd.DEL_DEST, service_id(key) + dest_id(*identity)
    for identity, spec in reversed(old.items()):
        if identity not in new:
            yield Cmd.NEW_DEST, service_id(key) + dest(spec)
        elif new[identity] != spec:
            yield Cmd.SET_DEST, service_id(key) + dest(spec)
