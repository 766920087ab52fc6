"""Commands that change something, as requests to a director."""

from __future__ import annotations

from uvs.adm.grammar import Command
from uvs.control import messages
from uvs.control.messages import Cmd


def request(command: Command) -> tuple[int, bytes] | None:
    """Number and attributes of the request; None for a command that is none."""
    service, server, key = command.service, command.server, command.service.key
    match command.name:
        case "add-service":
            return Cmd.NEW_SERVICE, messages.service(service)
        case "edit-service":
            return Cmd.SET_SERVICE, messages.service(service)
        case "delete-service":
            return Cmd.DEL_SERVICE, messages.service_id(key)
        case "add-server":
            return Cmd.NEW_DEST, messages.service_id(key) + messages.dest(server)
        case "edit-server":
            return Cmd.SET_DEST, messages.service_id(key) + messages.dest(server)
        case "delete-server":
            return Cmd.DEL_DEST, messages.service_id(key) + messages.dest_id(
                server.af, server.addr, server.port
            )
        case "flush":
            return Cmd.FLUSH, b""
        case "zero":
            return Cmd.ZERO, messages.service_id(key) if "service-address" in command.given else b""
        case "set":
            return Cmd.SET_CONFIG, messages.config(*command.timeouts)
        case "start-daemon":
            return Cmd.NEW_DAEMON, _daemon(command)
        case "stop-daemon":
            return Cmd.DEL_DAEMON, _daemon(command)
        case _:
            return None


def _daemon(command: Command) -> bytes:
    d = command.daemon
    state = 1 if d.state == "master" else 2
    return messages.daemon(state, d.interface, d.syncid, d.maxlen, d.group, d.port, d.ttl)
