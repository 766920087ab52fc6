"""The `uvsadm` command."""

from __future__ import annotations

import errno
import os
import sys

from uvs.adm.errors import Fail
from uvs.adm.grammar import Command, parse
from uvs.control.client import Client, Unreachable
from uvs.control.messages import Cmd
from uvs.ipvs.spec import IpvsError
from uvs.stdio import let_go, make_whole

PROGRAM = "uvsadm"

# What an errno means; where a command is named, for that command alone (ipvsadm's ipvs_strerror).
_ADD, _EDIT = "add-service", "edit-service"
_SERVER = ("add-server", "edit-server", "delete-server")
MESSAGES: dict[tuple[int, str], str] = {
    (errno.EEXIST, _ADD): "Service already exists",
    (errno.ENOENT, _ADD): "Scheduler or persistence engine not found",
    (errno.ENOENT, _EDIT): "Scheduler or persistence engine not found",
    **{(errno.ESRCH, name): "No such service" for name in (_EDIT, "delete-service", "zero", "list", "save")},
    **{(errno.ESRCH, name): "Service not defined" for name in _SERVER},
    (errno.EEXIST, "add-server"): "Destination already exists",
    (errno.ENOENT, "edit-server"): "No such destination",
    (errno.ENOENT, "delete-server"): "No such destination",
    (errno.EEXIST, "start-daemon"): "Daemon has already run",
    (errno.ESRCH, "stop-daemon"): "No daemon is running",
    (errno.EPERM, ""): "Permission denied (you must be root)",
    (errno.EINVAL, ""): "Invalid operation.  Possibly wrong module version, address not unicast, ...",
    (errno.ENOPROTOOPT, ""): "Protocol not available",
    (errno.ENOMEM, ""): "Memory allocation problem",
    (errno.EOPNOTSUPP, ""): "Operation not supported with IPv6",
    (errno.EAFNOSUPPORT, ""): "Operation not supported with specified address family",
    (errno.EMSGSIZE, ""): "Module is wrong version",
    # What this director does not do yet; a kernel's IPVS does not refuse these.
    (errno.EOPNOTSUPP, "start-daemon"): "Operation not supported: this director has no sync daemon yet",
}
LISTINGS = ("list", "save")


def main(argv: list[str] | None = None) -> int:
    """Run uvsadm; returns the exit status."""
    make_whole()
    words = sys.argv[1:] if argv is None else argv
    try:
        status = run(words)
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
    except OSError as e:  # a full disk behind standard output
        let_go(sys.stdout)
        print(f"{PROGRAM}: {e.strerror or e}", file=sys.stderr)
        return 1
    return status


def run(words: list[str]) -> int:
    """Understand the command line, then do it. Fail: message and status."""
    command = parse(words or ["-L"], PROGRAM)
    if command.name in ("help", "version"):
        _tell(command.name)
        return 0
    try:
        with Client() as client:
            if command.name == "restore":
                return restore(client)
            return execute(client, command)
    except Unreachable as e:
        raise Fail(f"Can't initialize ipvs: {e.strerror}") from None


def _tell(what: str) -> None:
    from uvs import __version__

    print(f"{PROGRAM} v{__version__}, as ipvsadm v1.31 (compiled with uvs and IPVS v1.2.1)")
    if what == "help":
        from uvs.adm.help import HELP

        print(HELP, end="")


def execute(client: Client, command: Command) -> int:
    """One command. Fail: what the director refused, status 255; for listings 1."""
    try:
        _do(client, command)
    except IpvsError as e:
        raise Fail(explain(e, command.name), 1 if command.name in LISTINGS else 255) from None
    return 0


def explain(e: IpvsError, name: str) -> str:
    """ipvsadm's words for an errno."""
    number = e.errno or 0
    return MESSAGES.get((number, name)) or MESSAGES.get((number, "")) or os.strerror(number)


def _do(client: Client, command: Command) -> None:
    service, server, key = command.service, command.server, command.service.key
    match command.name:
        case "add-service":
            client.add_service(service)
        case "edit-service":
            client.edit_service(service)
        case "delete-service":
            client.del_service(key)
        case "add-server":
            client.add_dest(key, server)
        case "edit-server":
            client.edit_dest(key, server)
        case "delete-server":
            client.del_dest(key, server.af, server.addr, server.port)
        case "flush":
            client.flush()
        case "zero":
            client.zero(key if "service-address" in command.given else None)
        case "set":
            client.set_timeouts(*command.timeouts)
        case "start-daemon":
            client.request("IPVS", Cmd.NEW_DAEMON, _daemon(command))
        case "stop-daemon":
            client.request("IPVS", Cmd.DEL_DAEMON, _daemon(command))
        case "list":
            _list(client, command)
        case "save":
            _save(client, command)


def _daemon(command: Command) -> bytes:
    from uvs.control.messages import daemon

    d = command.daemon
    return daemon(1 if d.state == "master" else 2, d.interface, d.syncid, d.maxlen, d.group, d.port, d.ttl)


# ------------------------------------------------------------------ listings


def _list(client: Client, command: Command) -> None:
    from uvs.adm import listing
    from uvs.adm.names import Names

    given = command.given
    names = Names(plain="numeric" in given)
    write = sys.stdout.write
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
    for entry in services:
        write(listing.service_line(entry, columns, exact, names) + "\n")
        key = entry.spec.key
        servers = client.dests(key)
        for server in listing.sorted_servers(servers) if ordered else servers:
            write(listing.server_line(server, key, columns, exact, names) + "\n")


def _save(client: Client, command: Command) -> None:
    from uvs.adm import listing, save
    from uvs.adm.names import Names

    names = Names(plain="numeric" in command.given)
    for entry in listing.sorted_services(client.services()):
        servers = listing.sorted_servers(client.dests(entry.spec.key))
        for line in save.lines(entry.spec, servers, names):
            sys.stdout.write(line + "\n")


# ------------------------------------------------------------------- restore


def restore(client: Client) -> int:
    """`-R`: a command a line. A refused one is told and passed over, a wrong one ends it."""
    status = 0
    for line in sys.stdin:
        words = [word for word in line.split() if word != "ipvsadm"]
        if not words:
            continue
        command = parse(words, PROGRAM)
        if command.name in ("help", "version"):
            _tell(command.name)
            continue
        try:
            status = 0
            execute(client, command)
        except Fail as e:
            sys.stdout.flush()
            print(e, file=sys.stderr)
            status = e.status
    return status


if __name__ == "__main__":
    sys.exit(main())
