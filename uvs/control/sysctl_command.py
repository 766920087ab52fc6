"""`uvs sysctl`: IPVS's knobs by the kernel's names, as sysctl(8) shows and sets them."""

from __future__ import annotations

import argparse
import errno
import sys
import textwrap

from uvs.control.client import Client, Unreachable
from uvs.errors import UserError
from uvs.ipvs.knobs import KNOBS
from uvs.ipvs.spec import IpvsError

PREFIX = "net.ipv4.vs."
LENGTH_MAX = 200  # a request holds no more than 64 KiB
_WIDTH = 100


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs sysctl`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _epilog()
    parser.add_argument("-a", "--all", action="store_true", help="show all knobs")
    parser.add_argument("-n", "--values", action="store_true", help="show values without names")
    parser.add_argument("-N", "--names", action="store_true", help="show names without values")
    parser.add_argument("-q", "--quiet", action="store_true", help="do not show what is set")
    parser.add_argument("-e", "--ignore", action="store_true", help="pass over names that do not exist")
    parser.add_argument("-w", "--write", action="store_true", help="everything named is to be set")
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show range, default and meaning with each knob"
    )
    parser.add_argument("settings", nargs="*", metavar="NAME[=VALUE]", help="a knob to show or to set")


def _epilog() -> str:
    lines = [
        "examples:",
        "  uvs sysctl -a                       all of them",
        "  uvs sysctl expire_nodest_conn       one",
        "  uvs sysctl expire_nodest_conn=1     set it; net.ipv4.vs.expire_nodest_conn=1 is the same",
        "  uvs sysctl -v drop_entry            what it takes and does",
        "",
        "knobs (default):",
    ]
    for name, knob in KNOBS.items():
        default = " ".join(map(str, knob.default)) if isinstance(knob.default, tuple) else knob.default
        shown = f"  {name} ({default})" if default != "" else f"  {name}"
        text = knob.doc + (f"; no meaning here: {knob.inert}" if knob.inert else "")
        lines += textwrap.wrap(text, _WIDTH, initial_indent=f"{shown:34}", subsequent_indent=" " * 34)
    return "\n".join(lines) + "\n"


def main(args: argparse.Namespace) -> int:
    """Show or set knobs of the running director. Goes on after one that fails, as sysctl(8) does."""
    if not args.all and not args.settings:
        raise UserError("name a knob, or -a for all of them", 2)
    status = 0
    try:
        with Client() as client:
            if args.all:
                for name, value in client.sysctls().items():
                    _show(args, name, value)
            for setting in args.settings:
                try:
                    _one(client, args, setting)
                except UserError as e:
                    print(f"uvs sysctl: {e}", file=sys.stderr)
                    status = 1
    except Unreachable as e:
        raise UserError(str(e.strerror)) from None
    return status


def _one(client: Client, args: argparse.Namespace, setting: str) -> None:
    name, given, value = setting.partition("=")
    name = name.strip().replace("/", ".").removeprefix(PREFIX)
    value = value.strip()
    if max(len(name), len(value)) > LENGTH_MAX:
        raise UserError(f"{setting[:40]}...: no knob and no value is that long")
    if args.write and not given:
        raise UserError(f"{setting}: -w takes NAME=VALUE")
    try:
        if given:
            client.set_sysctl(name, value)
        if name == PREFIX.rstrip("."):
            for each, its in client.sysctls().items():
                _show(args, each, its)
        elif not (given and args.quiet):
            _show(args, name, client.sysctl(name))
    except IpvsError as e:
        if e.errno != errno.ENOENT or not args.ignore:
            raise UserError(_explain(e, name, value)) from None


def _explain(e: IpvsError, name: str, value: str) -> str:
    if e.errno == errno.ENOENT:
        return f"there is no {PREFIX}{name}: `uvs sysctl -a` lists them"
    if e.errno in (errno.EINVAL, errno.ERANGE, errno.EOVERFLOW):
        takes = f": it takes {KNOBS[name].range}" if name in KNOBS else ""
        return f"{PREFIX}{name} does not take {value!r}{takes}"
    if e.errno == errno.EPERM:
        return "permission denied: only root and the director's own user may do this"
    return f"{PREFIX}{name}: {e.strerror}"


def _show(args: argparse.Namespace, name: str, value: str) -> None:
    if args.names:
        print(PREFIX + name)
    else:
        print(value if args.values else f"{PREFIX}{name} = {value}")
    if args.verbose and name in KNOBS:
        knob = KNOBS[name]
        text = f"{knob.range}: {knob.doc}" + (f"; no meaning here: {knob.inert}" if knob.inert else "")
        print(textwrap.fill(text, _WIDTH, initial_indent="    ", subsequent_indent="    "))
