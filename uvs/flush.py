"""`uvs flush`: drop chosen connections of a running director, or show which those are."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import json
import socket

from uvs.adm.address import Endpoint, parse_endpoint
from uvs.control.client import Client, Unreachable
from uvs.control.connfilter import ConnFilter
from uvs.errors import UserError
from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP
from uvs.ipvs.spec import IpvsError, ServiceKey

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
PROTOCOLS = {"tcp_service": IPPROTO_TCP, "udp_service": IPPROTO_UDP, "sctp_service": IPPROTO_SCTP}

_EPILOG = """\
examples:
  uvs flush --server 198.51.100.11            every connection to a real server
  uvs flush --server 198.51.100.11:80 -t 192.0.2.100:80
  uvs flush --client 203.0.113.0/24           every connection from a network
  uvs flush -n --client 203.0.113.9           only show them
  uvs flush --all
Of several options, all must fit. Persistence templates go with their connections, so that a client is
scheduled anew. Only the director's entries go: nobody is told, and a TCP connection's next packet is unknown.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs flush`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    service_options(parser)
    parser.add_argument("-r", "--server", metavar="ADDR[:PORT]", help="to this real server")
    parser.add_argument("-c", "--client", metavar="ADDR[/BITS]", help="from this client or network")
    parser.add_argument("--client-port", type=int, metavar="PORT", help="from this port of the client")
    parser.add_argument("--all", action="store_true", help="every connection")
    parser.add_argument("-n", "--dry-run", action="store_true", help="drop nothing, list what is chosen")
    parser.add_argument("--json", action="store_true", help="tell it as JSON")


def service_options(parser: argparse.ArgumentParser) -> None:
    """What names a service, as uvsadm's options do; `service` reads it."""
    group = parser.add_mutually_exclusive_group()
    for letter, name in (("-t", "tcp"), ("-u", "udp")):
        group.add_argument(letter, f"--{name}-service", metavar="ADDR:PORT", help="of this virtual service")
    group.add_argument("--sctp-service", metavar="ADDR:PORT", help="of this virtual service")
    group.add_argument("-f", "--fwmark-service", type=int, metavar="MARK", help="of this virtual service")
    parser.add_argument("-6", "--ipv6", action="store_true", help="the -f service is IPv6")


def main(args: argparse.Namespace) -> int:
    """Drop, or with --dry-run list, the connections that are meant."""
    wanted = chosen(args)
    if (wanted == ConnFilter()) != args.all:
        raise UserError(
            "--all goes with no other choice" if args.all else "choose connections, or say --all", 2
        )
    try:
        with Client() as client:
            if args.dry_run:
                _show(client, wanted, args.json)
                return 0
            count = client.flush_conns(wanted)
    except Unreachable as e:
        raise UserError(str(e.strerror)) from None
    except IpvsError as e:
        if e.errno == errno.EPERM:
            raise UserError("permission denied: not a user who may control the director") from None
        raise UserError(f"the director refused it: {e.strerror}") from None
    if args.json:
        print(json.dumps({"dropped": count}))
    else:
        print(f"{count} connection{'' if count == 1 else 's'} dropped")
    return 0


def chosen(args: argparse.Namespace) -> ConnFilter:
    """The filter that the options describe. UserError, status 2."""
    named = real_server(args.server) if args.server is not None else None
    server, server_port = (named.addr, named.port) if named else (None, None)
    client, prefix = _network(args.client) if args.client is not None else (None, 128)
    port = args.client_port
    if port is not None and not 0 <= port <= 65535:
        raise UserError(f"--client-port takes 0..65535, not {port}", 2)
    return ConnFilter(service(args), client, prefix, port, server, server_port)


def service(args: argparse.Namespace) -> ServiceKey | None:
    """The service that the options name, if any. UserError, status 2."""
    mark = args.fwmark_service
    if args.ipv6 and mark is None:
        raise UserError("-6 goes with -f", 2)
    if mark is not None:
        if not 1 <= mark <= 0xFFFFFFFF:
            raise UserError(f"-f takes a mark of 1..4294967295, not {mark}", 2)
        af = AF_INET6 if args.ipv6 else AF_INET
        return ServiceKey(af, IPPROTO_TCP, bytes(16 if args.ipv6 else 4), 0, mark)
    for name, protocol in PROTOCOLS.items():
        text = getattr(args, name)
        if text is not None:
            found = parse_endpoint(text, protocol)
            if found is None:
                raise UserError(f"{text}: no virtual service's address[:port]", 2)
            return ServiceKey(found.af, protocol, found.addr, found.port or 0)
    return None


def real_server(text: str) -> Endpoint:
    """A real server, with a port or without. UserError, status 2."""
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text  # as a configuration has it
    found = parse_endpoint(bare, IPPROTO_TCP)
    if found is None:
        raise UserError(f"{text}: no real server's address[:port]", 2)
    return found


def _network(text: str) -> tuple[bytes, int]:
    try:
        network = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise UserError(f"{text}: no client's address or network", 2) from None
    return network.network_address.packed, network.prefixlen


def _show(client: Client, wanted: ConnFilter, as_json: bool) -> None:
    from uvs.adm import listing
    from uvs.adm.names import Names

    conns = client.conns(wanted)
    if as_json:
        print(json.dumps([listing.conn_json(entry) for entry in conns], indent=2))
        return
    for line in listing.connections(conns, False, Names(plain=True)):
        print(line)
