"""`uvs drain`: take a real server out gently, cancel that, or list the drains there are."""

from __future__ import annotations

import argparse
import errno
import json
import time
from typing import Any

from uvs.control.client import Client
from uvs.control.rows import DamagedError, service_key, service_text
from uvs.errors import UserError
from uvs.flush import real_server, service, service_options
from uvs.ipvs.spec import IpvsError, ServiceKey
from uvs.layers import ServerId, text
from uvs.reload import refused

WAIT_S = 0.5  # between looks, with --wait

_EPILOG = """\
examples:
  uvs drain tcp:192.0.2.100:80 198.51.100.11                 until its connections are gone
  uvs drain -t 192.0.2.100:80 -r 198.51.100.11 --deadline 600    at the latest in ten minutes
  uvs drain -t 192.0.2.100:80 -r 198.51.100.11 --cancel      it has its weight again
  uvs drain                                                  which servers are drained
The server gets no new client: its weight is 0. It is removed once it has neither connections nor
persistence templates (which do not count with expire_quiescent_template=1), or at the deadline. A restart of
the director does not end that; a weight given by uvsadm does. A configuration does not bring the server back
until its entry is changed.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs drain`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "words", nargs="*", metavar="SERVICE SERVER", help="tcp:ADDR:PORT or fwmark:MARK, and ADDR[:PORT]"
    )
    service_options(parser)
    parser.add_argument("-r", "--server", metavar="ADDR[:PORT]", help="the real server")
    parser.add_argument(
        "--deadline", type=float, metavar="S", help="seconds, after which it is removed anyway"
    )
    parser.add_argument(
        "--cancel", action="store_true", help="end the drain: the server has its weight again"
    )
    parser.add_argument("--wait", action="store_true", help="return when the server is removed")
    parser.add_argument("--json", action="store_true", help="tell it as JSON")


def main(args: argparse.Namespace) -> int:
    """Drain, cancel or list."""
    named = _named(args)
    if args.deadline is not None and not 0 <= args.deadline <= 86400 * 3650:
        raise UserError(f"--deadline takes seconds, not {args.deadline:g}", 2)
    if args.cancel and (args.wait or args.deadline is not None):
        raise UserError("--cancel goes with neither --wait nor --deadline", 2)
    if named is None and (args.cancel or args.wait or args.deadline is not None):
        raise UserError("name a service and a server", 2)
    try:
        with Client() as client:
            if named is None:
                return _list(client, args.json)
            return _drain(client, *named, args)
    except OSError as error:
        if isinstance(error, IpvsError) and error.errno in (errno.ESRCH, errno.ENOENT) and named:
            raise UserError(_missing(error, *named, args.cancel)) from None
        raise refused(error) from None


def _named(args: argparse.Namespace) -> tuple[ServiceKey, ServerId] | None:
    """Service and server; None: neither is named."""
    words = list(args.words)
    key = service(args)
    if key is None and words:
        try:
            key = service_key(words[0])
        except DamagedError as error:
            raise UserError(str(error), 2) from None
        del words[0]
    if args.server is not None:
        words.append(args.server)
    if key is None and not words:
        return None
    if key is None or len(words) != 1:
        raise UserError("name a service and one server: tcp:192.0.2.100:80 198.51.100.11", 2)
    server = real_server(words[0])
    return key, (server.af, server.addr, key.port if server.port is None else server.port)


def _missing(error: IpvsError, key: ServiceKey, server: ServerId, cancel: bool) -> str:
    if error.errno == errno.ESRCH:
        return f"there is no service {service_text(key)}"
    if cancel:
        return f"{text(server)} of {service_text(key)} is not being drained"
    return f"{service_text(key)} has no server {text(server)}"


def _drain(client: Client, key: ServiceKey, server: ServerId, args: argparse.Namespace) -> int:
    client.drain(key, server, args.deadline, args.cancel)
    row = _row(client, key, server)
    if not args.wait or row is None:
        _tell(row, args.json)
        return 0
    while row is not None and row["drain"] is not None and not row["drain"]["done"]:
        time.sleep(WAIT_S)
        row = _row(client, key, server)
    if row is not None and row["drain"] is None:
        raise UserError(f"the drain of {text(server)} has ended otherwise: its weight is {row['effective']}")
    print(json.dumps({"removed": text(server)}) if args.json else f"{text(server)} is removed")
    return 0


def _row(client: Client, key: ServiceKey, server: ServerId) -> dict[str, Any] | None:
    names = service_text(key), text(server)
    return next((row for row in client.get_health() if (row["service"], row["server"]) == names), None)


def _tell(row: dict[str, Any] | None, as_json: bool) -> None:
    if as_json:
        print(json.dumps(row, indent=2))
    elif row is None:
        print("the server is removed")
    elif row["drain"] is None:
        print(f"{row['server']} of {row['service']} is drained no longer: weight {row['effective']}")
    else:
        print(_state(row))


def _list(client: Client, as_json: bool) -> int:
    rows = [row for row in client.get_health() if row["drain"]]
    if as_json:
        print(json.dumps(rows, indent=2))
        return 0
    for row in rows:
        print(_state(row))
    if not rows:
        print("no server is being drained")
    return 0


def _state(row: dict[str, Any]) -> str:
    """What a drain waits for."""
    who = f"{row['server']} of {row['service']}"
    if row["drain"]["done"]:
        return f"{who}: drained and removed; it stays out until its entry is changed, or --cancel"
    left = row["connections"]
    told = f"{left['active']} active, {left['inactive']} inactive connections, {left['templates']} templates"
    deadline = row["drain"]["deadline"]
    if deadline is None:
        return f"{who}: {told}"
    return f"{who}: {told}, removed in {max(0, deadline - time.time()):.0f} s at the latest"
