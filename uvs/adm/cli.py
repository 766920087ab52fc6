"""The `uvsadm` command."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from uvs.adm.errors import Fail
from uvs.adm.grammar import Command, parse
from uvs.adm.messages import explain
from uvs.adm.requests import request
from uvs.control.client import Client, Unreachable
from uvs.ipvs.spec import IpvsError
from uvs.stdio import let_go, make_whole

if TYPE_CHECKING:
    from uvs.adm.restore import Line

PROGRAM = "uvsadm"

LISTINGS = ("list", "save")


def _program() -> str:
    """What it was called as: where a distribution offers it as `ipvsadm`, it is that to the letter."""
    return "ipvsadm" if os.path.basename(sys.argv[0]).startswith("ipvsadm") else PROGRAM


def main(argv: list[str] | None = None) -> int:
    """Run uvsadm; returns the exit status."""
    words = sys.argv[1:] if argv is None else argv
    return _guarded(lambda: run(words, _program()))


def _guarded(work: Callable[[], int]) -> int:
    """What ends a command otherwise than by its own return, as message and status."""
    make_whole()
    try:
        status = work()
        sys.stdout.flush()
    except Fail as e:
        sys.stdout.flush()
        print(e, file=sys.stderr)
        return e.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # uvsadm -Ln | head
        let_go(sys.stdout)
        return 0
    except Unreachable as e:  # it went away meanwhile
        print(f"Can't initialize ipvs: {e.strerror}", file=sys.stderr)
        return 2
    except OSError as e:  # a full disk behind standard output
        let_go(sys.stdout)
        print(f"{_program()}: {e.strerror or e}", file=sys.stderr)
        return 1
    return status


def _client() -> Client:
    try:
        return Client()
    except Unreachable as e:
        raise Fail(f"Can't initialize ipvs: {e.strerror}") from None


def run(words: list[str], program: str = PROGRAM) -> int:
    """Understand the command line, then do it. Fail: message and status."""
    command = parse(words or ["-L"], program)
    if command.name in ("help", "version"):
        _tell(command.name, program)
        return 0
    with _client() as client:
        if command.name == "restore":
            return restore(client, program, "atomic" in command.given)
        return execute(client, command, program)


def _tell(what: str, program: str) -> None:
    from uvs import __version__

    version = f"v1.31 of uvs {__version__}" if program == "ipvsadm" else f"v{__version__}, as ipvsadm v1.31"
    print(f"{program} {version} (compiled with uvs and IPVS v1.2.1)")
    if what == "help":
        from uvs.adm.help import HELP

        print(HELP.replace(PROGRAM, program), end="")


def execute(client: Client, command: Command, program: str = PROGRAM) -> int:
    """One command. Fail: what the director refused, status 255; for listings 1."""
    try:
        _do(client, command, program)
    except IpvsError as e:
        raise Fail(explain(e, command.name), 1 if command.name in LISTINGS else 255) from None
    return 0


def _do(client: Client, command: Command, program: str) -> None:
    if asked := request(command):
        client.request("IPVS", *asked)
    elif command.name == "list":
        _list(client, command)
    else:
        _save(client, command, thresholds=program != "ipvsadm")


# ------------------------------------------------------------------ listings


def _list(client: Client, command: Command) -> None:
    from uvs.adm import listing
    from uvs.adm.names import Names

    given = command.given
    names = Names(plain="numeric" in given)
    write = sys.stdout.write
    if "json" in given:
        _list_json(client, command)
        return
    if "connection" in given:
        for line in listing.connections(client.conns(), "persistent-conn" in given, names):
            write(line + "\n")
        return
    if "timeout" in given:
        write("Timeout (tcp tcpfin udp): {} {} {}\n".format(*client.timeouts()))
        return
    if "daemon" in given:
        client.daemons()
        return
    columns = next(
        (c for c in listing.Columns if c.value in given),  # the first of several wins
        listing.Columns.DEFAULT,
    )
    ordered, exact = "nosort" not in given, "exact" in given
    if "service-address" in given:
        services = [client.service(command.service.key)]
    else:
        write(listing.version(*client.info()) + "\n")
        services = client.services()
        if ordered:
            services = listing.sorted_services(services)
    write(listing.HEADERS[columns] + "\n")
    keys = [entry.spec.key for entry in services]
    for entry, key, servers in zip(services, keys, client.all_dests(keys), strict=True):
        write(listing.service_line(entry, columns, exact, names) + "\n")
        for server in listing.sorted_servers(servers) if ordered else servers:
            write(listing.server_line(server, key, columns, exact, names) + "\n")


def _list_json(client: Client, command: Command) -> None:
    import json

    from uvs.adm import jsontext, listing

    given = command.given
    if "connection" in given:
        jsontext.put(jsontext.connections(client.conns()))
    elif "timeout" in given:
        jsontext.put(jsontext.timeouts(client.timeouts()))
    elif "daemon" in given:
        client.daemons()
        jsontext.put({"daemons": []})
    else:
        one = "service-address" in given
        services = [client.service(command.service.key)] if one else client.services()
        ordered = "nosort" not in given
        services = listing.sorted_services(services) if ordered else services
        found = client.all_dests([entry.spec.key for entry in services])
        rows = [
            jsontext.service(entry, listing.sorted_servers(servers) if ordered else servers)
            for entry, servers in zip(services, found, strict=True)
        ]
        beside = {}
        if "stats" in given and not one:
            beside = jsontext.counters(client.queues(), client.counters(), json.loads(client.total()[1]))
        jsontext.put({"services": rows, **beside})


def _save(client: Client, command: Command, thresholds: bool) -> None:
    from uvs.adm import listing, save
    from uvs.adm.names import Names

    names = Names(plain="numeric" in command.given)
    services = listing.sorted_services(client.services())
    found = client.all_dests([entry.spec.key for entry in services])
    for entry, servers in zip(services, found, strict=True):
        for line in save.lines(entry.spec, listing.sorted_servers(servers), names, thresholds):
            sys.stdout.write(line + "\n")


# ------------------------------------------------------------------- restore


def restore(client: Client, program: str, everything: bool = False, clear: bool = False) -> int:
    """`-R`: a command a line. A refused one is told and passed over, a wrong one ends it.

    `everything`: all lines or none of them (`--atomic`). `clear`: as ipvsadm-restore, the table is emptied
    first, and lines that begin with `#` are comments.
    """
    from uvs.adm.restore import Restore, atomic, chunks, commands

    first = ["-C"] if clear else []
    if everything:
        lines = first + [line for chunk in chunks() for line in chunk]
        return atomic(client, list(commands(_told(lines, clear), 1 - len(first), program)), program)
    doing = Restore(client, program)
    number = 1
    if clear:
        doing.run(commands(first, 0, program))
    for chunk in chunks():
        found = commands(_told(chunk, clear), number, program)
        number += len(chunk)
        while (line := doing.run(found)) is not None:
            doing.status = _other(client, line, program)
    return doing.status


def _told(lines: list[str], clear: bool) -> list[str]:
    return ["" if line.startswith("#") else line for line in lines] if clear else lines


def _other(client: Client, line: Line, program: str) -> int:
    """A line that is no change."""
    if line.command.name in ("help", "version"):
        _tell(line.command.name, program)
        return 0
    try:
        if line.wrong:
            raise line.wrong
        return execute(client, line.command, program)
    except Fail as e:
        sys.stdout.flush()
        print(e, file=sys.stderr)
        return e.status


RESTORE_OPTIONS = ("--atomic", "-n")
SAVE_HELP = """\
uvsadm-save [-n]: write the table of services to standard output, as uvsadm -S
  -n  addresses and ports as numbers: without it, what is restored is what the names mean then
"""
RESTORE_HELP = """\
uvsadm-restore [--atomic] < FILE: empty the table of services, then run the lines of FILE, as uvsadm -R
  --atomic  all lines or, if one is refused, none: the table stays as it was
Lines that begin with # are comments.
"""


def save_main(argv: list[str] | None = None) -> int:
    """`uvsadm-save`, as ipvsadm-save."""
    words = sys.argv[1:] if argv is None else argv
    if any(word.startswith("-") and word != "-n" for word in words):
        print(SAVE_HELP.replace(PROGRAM, _program()), end="", file=sys.stderr)
        return 1
    return main(["-S", "-n"] if "-n" in words else ["-S"])


def restore_main(argv: list[str] | None = None) -> int:
    """`uvsadm-restore`, as ipvsadm-restore."""
    words = sys.argv[1:] if argv is None else argv
    if "-h" in words or "--help" in words:
        print(RESTORE_HELP.replace(PROGRAM, _program()), end="")
        return 0
    if strange := [word for word in words if word not in RESTORE_OPTIONS]:
        name = f"{_program()}-restore"
        print(f"{name}: no such option: {strange[0]}: see {name} --help", file=sys.stderr)
        return 1

    def work() -> int:
        with _client() as client:
            return restore(client, _program(), "--atomic" in words, clear=True)

    return _guarded(work)


if __name__ == "__main__":
    sys.exit(main())
