"""Services and real servers from command lines, as `uvsadm-save` writes them, into a table on paper."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from uvs.adm.errors import Fail, NoCommand
from uvs.adm.grammar import Command, parse
from uvs.adm.messages import explain
from uvs.control.ipvs_family import set_timeouts
from uvs.engine.core import AF_INET, AF_INET6
from uvs.errors import UserError
from uvs.ipvs.services import Services
from uvs.ipvs.spec import IpvsError
from uvs.walk.expressions import in_a_line


def load(services: Services, lines: Iterable[str], where: str) -> None:
    """Do each line; blank ones and those that begin with # are passed over. UserError: which is wrong."""
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            change(services, line, f"{where}, line {number}")


def change(services: Services, line: str, where: str) -> None:
    """One command line, with or without `uvsadm` or `ipvsadm` in front. UserError: what is wrong with it."""
    try:
        words = [word for word in shlex.split(line) if word not in ("uvsadm", "ipvsadm")]
        _do(services, parse(words, "uvsadm"))
    except IpvsError as e:
        raise UserError(f"{where}: {_said(e, words)}: {in_a_line(line)}", 1) from None
    except NoCommand:
        raise UserError(f"{where}: no command of uvsadm, as `-A -t …` is: {in_a_line(line)}", 2) from None
    except Fail as e:
        raise UserError(f"{where}: {str(e).strip()}: {in_a_line(line)}", 2) from None
    except ValueError as e:  # shlex: a quotation that does not end
        raise UserError(f"{where}: {e}: {in_a_line(line)}", 2) from None


def _said(e: IpvsError, words: list[str]) -> str:
    return explain(e, parse(words, "uvsadm").name)


def _family(of_host: int) -> int:
    """AF_INET6 has another number on each system; the engine's is Linux's."""
    return AF_INET if of_host == AF_INET else AF_INET6


def _do(services: Services, command: Command) -> None:
    spec, server = command.service, command.server
    spec.key = key = spec.key._replace(af=_family(spec.key.af))
    server.af = _family(server.af)
    match command.name:
        case "add-service":
            services.add_service(spec)
        case "edit-service":
            services.edit_service(spec)
        case "delete-service":
            services.del_service(key)
        case "add-server":
            services.add_dest(key, server)
        case "edit-server":
            services.edit_dest(key, server)
        case "delete-server":
            services.del_dest(key, server.af, server.addr, server.port)
        case "flush":
            services.flush()
        case "set":
            set_timeouts(services.table, *command.timeouts)
        case name:
            raise Fail(f"'{name}' is nothing to do on paper: only changes of services and servers, and --set")
