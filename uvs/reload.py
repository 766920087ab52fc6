"""`uvs reload`: the director reads its configuration again, and the table becomes what it says."""

from __future__ import annotations

import argparse
import errno
import json
import sys
from collections.abc import Callable
from typing import Any

from uvs.control.client import Client, Unreachable
from uvs.errors import UserError
from uvs.ipvs.spec import IpvsError

_EPILOG = """\
All of it or nothing: a file that is wrong changes nothing. Findings of health checks, drains and connections
stay. `uvs diff` shows what a reload would do; SIGHUP does the same as this.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs reload`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="tell it as JSON")


def main(args: argparse.Namespace) -> int:
    """Reload; 1 if the file is wrong or was refused."""
    rows = ask(Client.reload)
    if not tell(rows, args.json):
        print("uvs reload: the table stays as it is", file=sys.stderr)
        return 1
    if not rows and not args.json:
        print("the table is as the configuration says")
    return 0


def ask(what: Callable[[Client], list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The director's rows: changes, or faults. UserError: why it did not answer."""
    try:
        with Client() as client:
            return what(client)
    except OSError as error:
        raise refused(error) from None


def tell(rows: list[dict[str, Any]], as_json: bool) -> bool:
    """Show changes, or the faults that hinder them; are there none of these?"""
    faults = [row["fault"] for row in rows if "fault" in row]
    if as_json:
        print(json.dumps({"faults": faults, "changes": [] if faults else rows}, indent=2))
        return not faults
    for fault in faults:
        print(fault, file=sys.stderr)
    for row in rows if not faults else ():
        print(f"{row['sign']} {row['line']}" + (f"  # {row['was']}" if row["was"] else ""))
    return not faults


def refused(error: OSError) -> UserError:
    """Why the director did not do it."""
    if isinstance(error, Unreachable):
        return UserError(str(error.strerror))
    if not isinstance(error, IpvsError):
        raise error
    if error.errno == errno.ENOENT:
        return UserError("the director has no configuration: start it with `uvs run --config FILE`")
    if error.errno == errno.EPERM:
        return UserError("permission denied: not a user who may control the director")
    return UserError(f"the director refused it: {error.strerror}")
