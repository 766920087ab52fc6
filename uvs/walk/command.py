"""`uvs walk`: packets through a director on paper."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, NamedTuple

from uvs.errors import UserError
from uvs.ipvs.skb import Hook
from uvs.ipvs.sysctl import SysctlError
from uvs.walk import capture, expressions, services, text
from uvs.walk.jsontext import complete
from uvs.walk.paper import SECOND, START, Director, Settings

_EPILOG = """\
EXPR is one of
  IP(src="192.0.2.2", dst="192.0.2.100")/TCP(sport=1024, dport=80, flags="S")
                                  a packet, as scapy writes it: layers, literals, lists, / and *
  FORWARD: EXPR, mark 3: EXPR     the same at this hook, with this mark
  wait 30                         30 seconds pass
  uvsadm -e ...                   a change of the table; also uvsadm -d, -a, -A, -D, --set
  sysctl expire_nodest_conn=1     a knob is set
they come one after another into the same table.

example:
  uvsadm-save -n | uvs walk --services - 'IP(src="192.0.2.2", dst="192.0.2.100")/TCP(sport=1024, dport=80)'
"""
_PREFIX = re.compile(r"\s*(?:(LOCAL_IN|FORWARD|LOCAL_OUT)\b)?\s*(?:mark\s+(\w+))?\s*:(?=\s*\S)")
_WORD = re.compile(r"\s*(wait|uvsadm|ipvsadm|sysctl)\s+(.*)", re.DOTALL)


class Event(NamedTuple):
    """What the command has to tell: a walk, or words between two."""

    walk: dict[str, Any] | None
    said: str = ""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `uvs walk`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("expr", nargs="*", metavar="EXPR", help="a packet, or what happens between two: see below")
    add(
        "--services",
        required=True,
        metavar="F",
        help="services and servers as uvsadm-save writes them; -: stdin",
    )
    add("--pcap", metavar="F", help="packets of a capture (pcap, pcapng), at its times")
    add(
        "--hook",
        choices=[hook.name for hook in Hook],
        help="where packets come in (default: as a router's would)",
    )
    add("--mark", default="0", metavar="N", help="their mark, for services by mark")
    add("--local", action="append", default=[], metavar="ADDR", help="an address of the director's own")
    add("--mtu", action="append", default=[], metavar="[ADDR=]N", help="of all ways, or of the way to ADDR")
    add("--mac", action="append", default=[], metavar="ADDR=MAC", help="the MAC address behind an address")
    add("--no-route", action="append", default=[], metavar="ADDR", help="there is no route to ADDR")
    add("--no-neighbour", action="append", default=[], metavar="ADDR", help="ADDR does not answer ARP")
    add("--sysctl", action="append", default=[], metavar="NAME=VALUE", help="set a knob of IPVS")
    add("--interval", type=float, default=0.0, metavar="S", help="seconds after each packet (default 0)")
    add("--json", action="store_true", help="a JSON object a packet and line")
    add("--write", metavar="F", help="what leaves the director, as a pcap")


def main(args: argparse.Namespace) -> int:
    """Walk each packet and tell of it. UserError: what is wrong with the input."""
    director = director_for(args)
    try:
        teller = _Teller(args.json)
        for event in events(director, args):
            teller.tell(event)
        teller.finish()
        if args.write:
            capture.write(args.write, [(time - START, data) for time, data in director.leaves])
    finally:
        director.close()
    return 0


def director_for(args: argparse.Namespace) -> Director:
    """The director on paper that the options describe."""
    if bool(args.expr) == bool(args.pcap):
        raise UserError("give either packets (EXPR...) or --pcap FILE: see `uvs walk --help`", 2)
    if not 0 <= args.interval <= 10**9:
        raise UserError("--interval: seconds, 0 or more", 2)
    settings = Settings(
        Hook[args.hook] if args.hook else None,
        _mark(args.mark, "--mark"),
        [_address(a, "--local") for a in args.local],
        {_address(a, "--no-neighbour") for a in args.no_neighbour},
    )
    lines = _lines(args.services)
    director = Director(settings)
    try:
        for given in args.sysctl:
            _sysctl(director, given)
        _ways(director, args)
        services.load(director.ipvs.services, lines, "<stdin>" if args.services == "-" else args.services)
    except BaseException:
        director.close()
        raise
    return director


def _ways(director: Director, args: argparse.Namespace) -> None:
    routes = director.routes
    routes.unreachable = {_address(a, "--no-route") for a in args.no_route}
    for given in args.mtu:
        address, _, size = given.rpartition("=")
        if not size.isascii() or not size.isdigit() or not 68 <= int(size) <= 65535:
            raise UserError(f"--mtu {given}: bytes, 68..65535", 2)
        if address:
            routes.mtus[_address(address, "--mtu")] = int(size)
        else:
            routes.mtu = int(size)
    for given in args.mac:
        address, _, mac = given.partition("=")
        if not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", mac):
            raise UserError(f"--mac {given}: ADDR=02:00:00:00:00:11, for instance", 2)
        routes.macs[_address(address, "--mac")] = mac


def _lines(path: str) -> list[str]:
    """UserError: it cannot be read."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        return data.decode().splitlines()
    except OSError as e:
        raise UserError(f"{path}: {e.strerror or e}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: no text: services are read as uvsadm-save writes them") from None


def _address(given: str, option: str) -> bytes:
    try:
        return ip_address(given).packed
    except ValueError:
        raise UserError(f"{option} {given}: no address", 2) from None


def _mark(given: str, where: str) -> int:
    try:
        mark = int(given, 0)
        if 0 <= mark < 1 << 32:
            return mark
    except ValueError:
        pass
    raise UserError(f"{where} {given}: a mark is a number, 0..0xffffffff", 2)


def _sysctl(director: Director, given: str) -> None:
    name, equals, value = (part.strip() for part in given.partition("="))
    try:
        if not equals:
            raise UserError(f"sysctl {given}: NAME=VALUE", 2)
        director.ipvs.sysctl.set(name.removeprefix("net.ipv4.vs."), value)
    except SysctlError as e:
        raise UserError(f"sysctl {given}: {e.strerror or e}", 2) from None


# ------------------------------------------------------------------------------- what happens


def events(director: Director, args: argparse.Namespace) -> Iterator[Event]:
    """Everything in its order."""
    if args.pcap:
        some = False
        for captured in capture.read(args.pcap):
            behind = captured.since - (director.now - START)
            if behind > 0:
                director.wait(behind / SECOND)
            yield Event(complete(director.take(captured.packet)))
            some = True
        if not some:
            raise UserError(f"{args.pcap}: no IP packet in it")
        return
    for item in args.expr:
        yield from happen(director, item, args.interval)


def happen(director: Director, item: str, interval: float = 0.0) -> Iterator[Event]:
    """One EXPR of the command line. UserError: what is wrong with it."""
    if found := _WORD.fullmatch(item):
        yield Event(None, _between(director, found[1], found[2].strip()))
        return
    hook = mark = None
    if (prefix := _PREFIX.match(item)) and any(prefix.groups()):
        hook = Hook[prefix[1]] if prefix[1] else None
        mark = _mark(prefix[2], "mark") if prefix[2] else None
        item = item[prefix.end() :]
    for packet in expressions.packets(item.strip()):
        yield Event(complete(director.take(packet, hook, mark)))
        if interval:
            director.wait(interval)


def _between(director: Director, word: str, rest: str) -> str:
    match word:
        case "wait":
            try:
                seconds = float(rest)
                if not 0 <= seconds <= 10**9:
                    raise ValueError
            except ValueError:
                raise UserError(f"wait {rest}: seconds, 0 or more", 2) from None
            ended = director.wait(seconds)
            more = "" if not ended else f": {ended} connection{'s' if ended > 1 else ''} ended"
            return f"{seconds:g} s later{more}"
        case "sysctl":
            _sysctl(director, rest)
        case _:
            services.change(director.ipvs.services, rest, word)
    return f"{word} {rest}"


# ------------------------------------------------------------------------------- telling


class _Teller:
    """To standard output, as text or as JSON."""

    def __init__(self, as_json: bool) -> None:
        self.json = as_json
        out = sys.stdout
        self.colour = out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.width = shutil.get_terminal_size((text.WIDTH, 0)).columns if out.isatty() else text.WIDTH
        self.width = max(self.width, 60)
        self.why: Counter[str] = Counter()
        self.first = True

    def tell(self, event: Event) -> None:
        if event.walk:
            self.why[event.walk["why"]] += 1
        if self.json:
            if event.walk:
                print(json.dumps(event.walk))
            return
        if not self.first:
            self._print("")
        self.first = False
        if event.walk:
            self._print(text.render(event.walk, self.colour, self.width, START))
        else:
            self._print(text.aside(event.said, self.colour))

    def finish(self) -> None:
        count = sum(self.why.values())
        if not self.json and count > 1:
            told = ", ".join(f"{why} {n}" for why, n in self.why.most_common())
            self._print(f"\n{count} packets: {told}")

    def _print(self, what: str) -> None:
        print(text.fitting(what, sys.stdout.encoding))
