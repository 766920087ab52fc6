"""`uvs monitor`: the checks as a process of their own, and what they have found."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import time
from typing import TYPE_CHECKING

from uvs import logs
from uvs.control.client import Client, Unreachable
from uvs.control.rows import server_id, service_key
from uvs.errors import UserError
from uvs.health import listing
from uvs.ipvs.spec import IpvsError
from uvs.systemd import Watchdog, notify, watchdog_s

if TYPE_CHECKING:
    from uvs.config.schema import Config

log = logging.getLogger("uvs.health")

_EPILOG = """\
examples:
  uvs monitor --config /etc/uvs/uvs.toml     check the file's servers, tell the director
  uvs monitor status                         what the checks have found, by whomever they are run
  uvs monitor forget                         no monitor runs any more: servers are as configured again
`uvs run --config FILE` checks by itself, unless the file says [monitor] process = "own".
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "action", nargs="?", choices=["status", "forget"], help="show what checks have found; or forget it"
    )
    parser.add_argument(
        "--config", default=None, metavar="FILE", help="check what this file says, until SIGTERM"
    )
    parser.add_argument(
        "--socket",
        default=None,
        metavar="PATH",
        help="the director's control socket (default $UVS_SOCKET or /run/uvs/control.sock)",
    )
    parser.add_argument("--json", action="store_true", help="status: a JSON object a line for each server")
    logs.arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Check until told to stop, or show."""
    if args.action is not None and args.config is not None:
        raise UserError(f"--config does not go with {args.action}", 2)
    if args.action == "status":
        return status(args.socket, args.json)
    if args.config is None and args.action is None:
        raise UserError("which configuration? --config FILE; to see what checks have found: status", 2)
    if args.json:
        raise UserError("--json goes with status", 2)
    if args.action == "forget":
        return forget(args.socket)
    logs.set_up(args.log_format)
    asyncio.run(run(os.path.abspath(args.config), args.socket))
    return 0


def status(socket: str | None, as_json: bool) -> int:
    """Print what is known of each server; 1 if one of them is out of service."""
    try:
        with Client(socket) as client:
            rows = client.get_health()
    except (Unreachable, IpvsError) as error:
        raise UserError(error.strerror or str(error)) from None
    if as_json:
        for row in rows:
            print(json.dumps(row))
    else:
        for line in listing.lines(rows, time.time()):
            print(line)
    return int(any(row["up"] is False for row in rows))


def forget(socket: str | None) -> int:
    """What checks have told of servers counts no more: each has its configured weight, no fallback serves."""
    try:
        with Client(socket) as client:
            rows = client.get_health()
            for row in rows:
                key = service_key(row["service"])
                if row["fallback"]:
                    client.set_fallback(key, None)
                if row["up"] is not None:
                    client.set_health(key, server_id(row["server"]), None)
    except (Unreachable, IpvsError) as error:
        raise UserError(error.strerror or str(error)) from None
    print(f"forgotten: {sum(row['up'] is not None for row in rows)} servers are as they are configured")
    return 0


async def run(path: str, socket: str | None) -> None:
    """Check what the file says until SIGTERM or SIGINT; SIGHUP reads it again. ConfigError."""
    from uvs.config import load  # what `status` does not need
    from uvs.health.monitor import Monitor
    from uvs.health.switch import Remote

    loop = asyncio.get_running_loop()
    done = asyncio.Event()
    monitor = Monitor(load.load(path), Remote(socket))

    def read_again() -> None:
        notify(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")
        try:
            monitor.reload(load.load(path))
        except load.ConfigError as error:
            for fault in error.faults:
                log.error("%s", fault)
            log.error("the checks are as they were: %s is not taken", path)
        else:
            log.info("%s is read again: %s", path, _counted(monitor.config))
        notify("READY=1")

    for sig in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sig, done.set)
    loop.add_signal_handler(signal.SIGHUP, read_again)
    monitor.start()
    log.info("monitor ready: %s", _counted(monitor.config))
    notify("READY=1")
    limit = watchdog_s()
    watchdog = Watchdog(limit, lambda: ()) if limit else None
    try:
        while not done.is_set():
            if watchdog is not None:
                watchdog.feed()
            try:
                async with asyncio.timeout(watchdog.period if watchdog else None):
                    await done.wait()
            except TimeoutError:
                continue
        notify("STOPPING=1")
    finally:
        await monitor.close()


def _counted(config: Config) -> str:
    servers = [(service, server) for service in config.service for server in service.server]
    checks = sum(len(service.check) + len(server.check) for service, server in servers)
    return f"{len(config.service)} services, {len(servers)} servers, {checks} checks"
