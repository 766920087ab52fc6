"""`uvs reload`: the director reads its configuration again, and the table becomes what it says."""

from __future__ import annotations

import argparse
import errno
import json
import sys

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
    try:
        with Client() as client:
            answer = client.reload()
    except OSError as error:
        raise refused(error) from None
    if args.json:
        print(json.dumps(answer, indent=2))
        return 1 if answer["faults"] else 0
    for fault in answer["faults"]:
        print(fault, file=sys.stderr)
    for text in answer["lines"]:
        print(text)
    if more := answer["changes"] - len(answer["lines"]):
        print(f"and {more} changes more")
    if answer["faults"]:
        print("uvs reload: the table stays as it is", file=sys.stderr)
        return 1
    if not answer["changes"]:
        print("the table is as the configuration says")
    return 0


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
