"""`uvs sysctl`: IPVS's knobs by the kernel's names, as sysctl(8) shows and sets them."""

from __future__ import annotations

import argparse
import errno

from uvs.control.client import Client, Unreachable
from uvs.errors import UserError
from uvs.ipvs.spec import IpvsError

PREFIX = "net.ipv4.vs."
LENGTH_MAX = 200  # a request holds no more than 64 KiB

_EPILOG = """\
examples:
  uvs sysctl -a                       all of them
  uvs sysctl expire_nodest_conn       one
  uvs sysctl expire_nodest_conn=1     set it; net.ipv4.vs.expire_nodest_conn=1 is the same
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs sysctl`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("-a", "--all", action="store_true", help="show all knobs")
    parser.add_argument("-n", "--values", action="store_true", help="show values without names")
    parser.add_argument("settings", nargs="*", metavar="NAME[=VALUE]", help="a knob to show or to set")


def main(args: argparse.Namespace) -> int:
    """Show or set knobs of the running director."""
    if not args.all and not args.settings:
        raise UserError("name a knob, or -a for all of them", 2)
    try:
        with Client() as client:
            if args.all:
                for name, value in client.sysctls().items():
                    _show(name, value, args.values)
            for setting in args.settings:
                _one(client, setting, args.values)
    except Unreachable as e:
        raise UserError(str(e.strerror)) from None
    return 0


def _one(client: Client, setting: str, bare: bool) -> None:
    name, given, value = setting.partition("=")
    name = name.strip().replace("/", ".").removeprefix(PREFIX)
    value = value.strip()
    if max(len(name), len(value)) > LENGTH_MAX:
        raise UserError(f"{setting[:40]}...: no knob and no value is that long")
    try:
        if given:
            client.set_sysctl(name, value)
        _show(name, client.sysctl(name), bare)
    except IpvsError as e:
        raise UserError(_explain(e, name, value)) from None


def _explain(e: IpvsError, name: str, value: str) -> str:
    if e.errno == errno.ENOENT:
        return f"there is no {PREFIX}{name}: `uvs sysctl -a` lists them"
    if e.errno == errno.EINVAL:
        return f"{PREFIX}{name} does not take {value!r}"
    if e.errno == errno.EPERM:
        return "permission denied: only root and the director's own user may do this"
    return f"{PREFIX}{name}: {e.strerror}"


def _show(name: str, value: str, bare: bool) -> None:
    print(value if bare else f"{PREFIX}{name} = {value}")
