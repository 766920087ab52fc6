"""`uvs diff`: what `uvs reload` would change."""

from __future__ import annotations

import argparse

from uvs.control.client import Client
from uvs.reload import ask, tell

_EPILOG = """\
+ would be added, - deleted, ~ changed; what follows is how uvsadm or uvs sysctl would do it.
exit status: 0 the table is as the configuration says, 1 it is not, 2 the configuration is wrong
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs diff`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument("--json", action="store_true", help="tell it as JSON")


def main(args: argparse.Namespace) -> int:
    """Show it."""
    found = ask(Client.diff)
    if not tell(found, args.json):
        return 2
    return 1 if found else 0
