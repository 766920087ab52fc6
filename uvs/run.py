"""`uvs run`: its options, and what is said of what it cannot do."""

from __future__ import annotations

import argparse
import asyncio
import errno
import os
import signal
import sys

from uvs import host, logs
from uvs.control import credentials
from uvs.control.paths import default_socket, state_directories
from uvs.director import DRIVERS, Director
from uvs.errors import UserError
from uvs.netfilter.plan import Class
from uvs.netfilter.tool import NetfilterError

CONN_MAX = 1 << 28  # RECORDS_MAX, csrc/table.h
WORKERS_MAX = 64
BUSY_POLL_US, BUSY_POLL_MAX = 50, 1000

_EXAMPLES = """\
example, as root, with the virtual address on this host:
  uvs run &                                             until SIGTERM or Ctrl-C
  uvsadm -A -t 192.0.2.100:80 -s rr                     a virtual service, servers in turn
  uvsadm -a -t 192.0.2.100:80 -r 198.51.100.11 -m       a real server, by NAT
  uvsadm -Ln                                            what there is
no root, or just curious? `uvs lab demo`.  Something missing? `uvs doctor`.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs run`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "--driver",
        choices=DRIVERS,
        default=os.environ.get("UVS_DRIVER") or DRIVERS[0],
        help="native: known connections without Python; netfilterqueue: every packet through it "
        f"(default $UVS_DRIVER or {DRIVERS[0]})",
    )
    parser.add_argument(
        "--queue-num",
        type=int,
        default=0,
        metavar="N",
        help="first NFQUEUE number; the native driver takes four for each of --queues (default 0)",
    )
    parser.add_argument(
        "--queues",
        type=int,
        default=1,
        metavar="N",
        help="threads of the native driver that take packets, each from queues of its own (default 1)",
    )
    parser.add_argument(
        "--busy-poll",
        type=int,
        default=BUSY_POLL_US,
        metavar="MICROSECONDS",
        help="so long such a thread looks for the next packet, after a lone one, before it sleeps "
        f"(default {BUSY_POLL_US}; 0: it sleeps at once)",
    )
    parser.add_argument(
        "--conn-max", type=int, default=1 << 20, metavar="N", help="connections at most (default 1048576)"
    )
    parser.add_argument(
        "--socket",
        default=None,
        metavar="PATH",
        help="control socket (default $UVS_SOCKET or /run/uvs/control.sock)",
    )
    parser.add_argument(
        "--state-dir",
        default=None,
        metavar="DIR",
        help="for connections and the table (default $UVS_STATE_DIR, or /run/uvs and /var/lib/uvs)",
    )
    parser.add_argument(
        "--restore-at-boot",
        action="store_true",
        help="bring the table back after a reboot too, not only after a restart",
    )
    for kind in ("user", "group"):
        parser.add_argument(
            f"--control-{kind}",
            default=None,
            metavar=kind.upper(),
            help=f"{kind}, by name or number, that may control the director besides root",
        )
    parser.add_argument(
        "--config",
        default=None,
        metavar="FILE",
        help="converge the table to this configuration, now and at each reload (uvs.toml(5))",
    )
    parser.add_argument(
        "--check", action="store_true", help="with --config: only say what is wrong in the file, all of it"
    )
    logs.arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Run until SIGTERM or SIGINT."""
    if args.check:
        return _check(args.config)
    logs.set_up(args.log_format)
    if args.driver not in DRIVERS:  # a default is not checked
        raise UserError(f"UVS_DRIVER is {' or '.join(DRIVERS)}, not {args.driver}", 2)
    if not 1 <= args.queues <= WORKERS_MAX:
        raise UserError(f"--queues takes 1..{WORKERS_MAX}, not {args.queues}", 2)
    most = 65536 - (len(Class) * args.queues if args.driver == "native" else 1)
    if not 0 <= args.queue_num <= most:
        raise UserError(f"--queue-num takes 0..{most}, not {args.queue_num}", 2)
    if not 0 <= args.busy_poll <= BUSY_POLL_MAX:
        raise UserError(f"--busy-poll takes 0..{BUSY_POLL_MAX}, not {args.busy_poll}", 2)
    if not 1 <= args.conn_max <= CONN_MAX:
        raise UserError(f"--conn-max takes 1..{CONN_MAX}, not {args.conn_max}", 2)
    for option, value in (("--socket", args.socket), ("--state-dir", args.state_dir)):
        if value == "":
            raise UserError(f"{option} takes a path, not an empty one", 2)
    try:
        access = credentials.access(args.control_user, args.control_group)
    except ValueError as error:
        raise UserError(str(error), 2) from None
    # What is asked for by signals while it starts waits for the director, instead of killing it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP, signal.SIGUSR2])
    rule = None
    if args.config is not None:
        from uvs.config.load import ConfigError  # what only a configuration needs
        from uvs.rule import Rule

        try:
            rule = Rule(os.path.abspath(args.config))
        except ConfigError as error:
            print(error, file=sys.stderr)  # a line for each fault
            return 1
    state_dir, saved_dir = state_directories(args.state_dir)
    director = Director(
        driver=args.driver,
        queue=args.queue_num,
        workers=args.queues,
        busy_poll=args.busy_poll,
        socket_path=args.socket or default_socket(),
        state_dir=state_dir,
        saved_dir=saved_dir,
        conn_max=args.conn_max,
        access=access,
        restore_at_boot=args.restore_at_boot,
        clock_rate=host.clock_rate(),
        rule=rule,
    )
    try:
        asyncio.run(director.run())
    except NetfilterError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(_explain(error)) from error
    return 0


def _check(path: str | None) -> int:
    """`--check`: the configuration's faults, or what is in it."""
    if path is None:
        raise UserError("--check goes with --config FILE", 2)
    from uvs.config.load import ConfigError, load

    try:
        config = load(path)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return 1
    servers = [server for service in config.service for server in service.server]
    checks = [check for service in config.service for check in service.check]
    checks += [check for server in servers for check in server.check]
    parts = (
        ("service", len(config.service)),
        ("server", len(servers)),
        ("check", len(checks)),
        ("sysctl", len(config.sysctl)),
    )
    counted = (f"{number} {name}{'' if number == 1 else 's'}" for name, number in parts)
    print(f"{path}: ok: {', '.join(counted)}")
    return 0


def _explain(error: OSError) -> str:
    """What was refused, of which file, and what to do; errors of our own say all of it themselves."""
    text, file = error.strerror or str(error), error.filename
    if error.errno in (errno.EPERM, errno.EACCES):
        what = f" ({file})" if file and str(file) not in text else ""
        return f"{text}{what}: run it as root, or in a namespace of your own (uvs lab)"
    if error.errno == errno.EMFILE:
        return f"{text}: allow it more (ulimit -n, LimitNOFILE=), or fewer --queues"
    return text if file is None or str(file) in text else f"{text}: {file}"
