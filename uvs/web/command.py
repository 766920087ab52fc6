"""The command line of `uvs web`."""

from __future__ import annotations

import argparse
import ipaddress
import secrets
import socket
from importlib.util import find_spec
from typing import TYPE_CHECKING

from uvs.control.client import Unreachable
from uvs.errors import UserError
from uvs.ipvs.spec import IpvsError
from uvs.listen import bound, endpoint, url
from uvs.top.command import explain
from uvs.web import recorded
from uvs.web.live import Director, Live

if TYPE_CHECKING:
    from uvs.web.app import Events

ADDRESS, PORT = "127.0.0.1", 8780

_EPILOG = """\
example:
  uvs web                                 what the running director does
  uvs walk --services F --json EXPR | uvs web -
                                          walks on paper
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add(
        "walks",
        nargs="?",
        metavar="FILE",
        help="walks of `uvs walk --json`; -: stdin (default: the director)",
    )
    add(
        "--listen",
        default=f"{ADDRESS}:{PORT}",
        metavar="ADDR:PORT",
        help=f"where browsers reach it (default {ADDRESS}:{PORT}); port 0: any that is free",
    )
    add("--no-key", action="store_true", help="whoever reaches the port may look: the address has no key")


def main(args: argparse.Namespace) -> int:
    """Serve the page until told to stop. UserError: no director, bad walks, a port that is taken."""
    address, port = endpoint(args.listen, f"{ADDRESS}:{PORT}")
    check_extra()
    source = source_of(args.walks)
    sock = bound(address, port)
    key = "" if args.no_key else secrets.token_urlsafe(12)
    print(f"{url(sock, key and f'{key}/')}\nCtrl-C ends it", flush=True)
    serve(source, sock, key, names=not ipaddress.ip_address(address).is_loopback)
    return 0


def check_extra() -> None:
    """UserError unless what serves the page is installed."""
    missing = [name for name in ("starlette", "uvicorn") if find_spec(name) is None]
    if missing:
        raise UserError(f"the page needs {' and '.join(missing)}: pip install 'uvs[web]'")


def source_of(walks: str | None) -> Events:
    """Recorded walks, or the director, if it answers. UserError."""
    if walks is not None:
        return recorded.Recorded(recorded.read(walks))
    director = Director()
    try:
        director.state()
    except (Unreachable, IpvsError) as error:
        raise UserError(explain(error)) from None
    finally:
        director.close()
    return Live(director)


def serve(source: Events, sock: socket.socket, key: str, names: bool) -> None:
    """Until SIGINT or SIGTERM."""
    import uvicorn

    from uvs.web.app import application

    class Server(uvicorn.Server):
        """Ends the streams of open pages, which would otherwise be waited for."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            source.close()
            await super().shutdown(sockets)
            await source.ended()

    config = uvicorn.Config(
        application(source, key, names),
        log_level="warning",
        access_log=False,
        lifespan="off",
        server_header=False,
        ws="none",
        timeout_graceful_shutdown=5,
    )
    Server(config).run(sockets=[sock])
