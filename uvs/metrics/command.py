"""The command line of `uvs metrics`."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import tempfile
from typing import NoReturn

from uvs import logs
from uvs.control.client import Unreachable
from uvs.errors import UserError
from uvs.ipvs.spec import IpvsError
from uvs.listen import bound, endpoint, url
from uvs.metrics.ask import ask
from uvs.metrics.serve import Exporter, Server, encoded
from uvs.systemd import notify
from uvs.top.command import explain

DEFAULT = "127.0.0.1:9781"

_EPILOG = """\
example:
  uvs metrics                                       until SIGTERM or Ctrl-C; scraped at :9781/metrics
  uvs metrics --textfile -                          what there is now, on standard output
"""

log = logging.getLogger("uvs.metrics")


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--listen",
        default=DEFAULT,
        metavar="ADDR:PORT",
        help=f"where Prometheus reaches it (default {DEFAULT}); port 0: any that is free",
    )
    how.add_argument(
        "--textfile",
        default=None,
        metavar="FILE",
        help="write them once, for node_exporter's textfile collector, and end; -: standard output",
    )
    logs.arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT, or write a file; 1: no director answered. UserError."""
    address, port = endpoint(args.listen, DEFAULT)
    if args.textfile is not None:
        return write(args.textfile)
    logs.set_up(args.log_format)
    sock = bound(address, port)
    signal.signal(signal.SIGTERM, _ended)
    try:
        with Server(sock, Exporter()) as server:
            log.info("metrics at %s", url(sock, "metrics"), extra={"event": "ready"})
            notify("READY=1")
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    return 0


def _ended(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def write(path: str) -> int:
    """Write the metrics to a file, all at once as the textfile collector wants it; exit status. UserError."""
    answers, absent = None, ""
    try:
        answers = ask()
    except (Unreachable, IpvsError) as error:
        absent = explain(error)
    text, _ = encoded(answers)
    if path == "-":
        sys.stdout.write(text.decode())
    else:
        try:
            _replace(path, text)
        except OSError as error:
            raise UserError(f"cannot write {path}: {error.strerror or error}") from None
    if absent:
        print(f"uvs metrics: {absent}", file=sys.stderr)
    return 1 if absent else 0


def _replace(path: str, text: bytes) -> None:
    directory, name = os.path.split(os.path.abspath(path))
    # Not *.prom, which the collector would read; its mode lets node_exporter's user do so afterwards.
    fd, fresh = tempfile.mkstemp(prefix=f".{name}.", dir=directory)
    try:
        with open(fd, "wb") as file:
            file.write(text)
            os.fchmod(fd, 0o644)
        os.replace(fresh, path)
    except BaseException:
        os.unlink(fresh)
        raise
