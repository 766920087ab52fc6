"""The `uvs` command: finds the subcommand's module and runs it."""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from typing import NoReturn

from uvs import __version__
from uvs.errors import UserError
from uvs.stdio import let_go, make_whole

# subcommand: its module (which has `arguments(parser)` and `main(args)`), and what `uvs --help` says of it
COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("uvs.run", "run the director in the foreground"),
    "director": (
        "uvs.takeover.command",
        "make this host the director, and undo it: VIPs, forwarding, announcing",
    ),
    "lab": ("uvs.lab.command", "an LVS in network namespaces: demo, up, down, exec, send, stop..."),
    "walk": ("uvs.walk.command", "a packet's walk on paper: what IPVS does with it, and why; no network"),
    "trace": (
        "uvs.trace.command",
        "live packets' walks through a running director; what was dropped, and why",
    ),
    "decap": ("uvs.decap", "the real server's end of a tunnel, without kernel modules"),
    "sysctl": ("uvs.control.sysctl_command", "show and set IPVS's knobs (net.ipv4.vs.*)"),
    "exec": ("uvs.exec", "run ipvsadm, keepalived, ldirectord... unmodified against the director"),
    "top": ("uvs.top.command", "rates and connections of services and servers, drops and why, live"),
    "web": ("uvs.web.command", "a page that shows the hook path: packets on their way, why, and the tables"),
    "metrics": (
        "uvs.metrics.command",
        "what the director counts, for Prometheus: node_exporter's ipvs names and more",
    ),
    "install-units": ("uvs.units.command", "systemd units of the director, the monitor and the metrics"),
    "flush": ("uvs.flush", "drop chosen connections: of a service, a real server, a client"),
    "monitor": ("uvs.health.command", "check real servers and tell the director; what the checks have found"),
    "reload": ("uvs.reload", "read the configuration again: the table becomes what it says"),
    "diff": ("uvs.diff", "what `uvs reload` would change"),
    "drain": ("uvs.drain", "take a real server out gently, or cancel that; those that are drained"),
    "doctor": ("uvs.doctor.command", "what this machine lacks or has set wrongly, and what mends it"),
}

_EPILOG = """\
new here?  `uvs lab demo` shows NAT, direct routing and tunnelling at work, without root.
`uvsadm` sets services and real servers of a running director, as ipvsadm does.
exit status: 0 done, 1 something is wrong, 2 wrong use
"""


class Parser(argparse.ArgumentParser):
    """Says what is wrong with a command line in one line; subcommands' parsers are of this class too."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}: see `{self.prog} --help`\n")

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Words of a list with options between them are its words too: argparse takes the first ones only."""
        found, rest = super().parse_known_args(args, namespace)
        lists = [action.dest for action in self._actions if action.nargs in ("*", "+")]
        if lists and not any(word.startswith("-") for word in rest):
            setattr(found, lists[-1], [*(getattr(found, lists[-1]) or []), *rest])
            rest = []
        return found, rest


def parser() -> argparse.ArgumentParser:
    """The parser of `uvs` itself; a subcommand's own arguments are added when it is chosen."""
    top = Parser(
        prog="uvs",
        description="LVS in userspace: a director that needs no ip_vs module.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"uvs {__version__}")
    return top


def command_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole parser; with `only`, just that subcommand is loaded (start-up stays quick)."""
    top = parser()
    sub = top.add_subparsers(dest="command", metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        chosen = sub.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".", add_help=True)
        if only in (None, name):
            import_module(module).arguments(chosen)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand; returns the exit status."""
    make_whole()
    argv = sys.argv[1:] if argv is None else argv
    name = next((a for a in argv if not a.startswith("-")), None)
    try:
        return _run(argv, name if name in COMMANDS else "")
    except UserError as error:
        print(f"uvs {name}: {error}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `uvs … | head`
        let_go(sys.stdout)
        return 0
    except OSError as error:  # a full disk behind standard output; a program that is not there
        let_go(sys.stdout)
        what = f"{error.filename}: " if error.filename else ""
        print(f"uvs {name}: {what}{error.strerror or error}", file=sys.stderr)
        return 1


def _run(argv: list[str], name: str) -> int:
    top = command_parser(name)
    args = top.parse_args(argv)
    if args.command is None:
        top.print_help()
        return 0
    status: int = import_module(COMMANDS[args.command][0]).main(args)
    sys.stdout.flush()
    return status


if __name__ == "__main__":
    sys.exit(main())
