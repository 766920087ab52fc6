"""`uvs director`: makes this host the director and undoes that; `uvs run` is the program that balances."""

from __future__ import annotations

import argparse
import errno
import ipaddress
import os
from contextlib import suppress
from pathlib import Path

from uvs.config.load import load
from uvs.control.paths import private_directory, state_directories, usual_socket
from uvs.errors import UserError
from uvs.takeover import announce, changes, plan, remembered
from uvs.takeover.remembered import Remembered

# Root's own: /run/uvs may belong to the user whom the unit runs as, and what is read here is done as root.
ROOTS_FOLDER = Path("/run/uvs-takeover")
STOPPED = 3  # LSB's status of what does not run


def arguments(parser: argparse.ArgumentParser) -> None:
    """Subcommands and options of `uvs director`."""
    sub = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    texts = {
        "up": "take the VIPs over: sysctls, addresses, announcing",
        "down": "undo exactly what `up` changed",
        "status": "what holds: exit status 0 up, 3 down, 1 half",
        "announce": "tell the neighbours again",
    }
    for name, text in texts.items():
        action = sub.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        if name in ("up", "announce"):
            action.add_argument("--interface", metavar="NAME", help="where the VIPs are to be")
            action.add_argument(
                "--vip", metavar="ADDRESS", action="append", help="a virtual address; again for more"
            )
        if name == "up":
            action.add_argument(
                "--config",
                metavar="FILE",
                help="interface and VIPs from uvs.toml's [director]; NAT from its services",
            )
            action.add_argument(
                "--no-forward", action="store_true", help="no server is behind NAT: forwarding stays as it is"
            )


def main(args: argparse.Namespace) -> int:
    """Run one of them."""
    if args.action == "announce":
        return _announce(args)
    folder = _folder()
    if args.action == "up":
        return _up(_request(args), folder)
    before = remembered.load(folder)
    return _status(before) if args.action == "status" else _down(before, folder)


def _folder() -> Path:
    """Where is kept what was there before."""
    folder, _ = state_directories(None)
    return ROOTS_FOLDER if folder == Path(usual_socket()).parent and os.geteuid() == 0 else folder


def _request(args: argparse.Namespace) -> plan.Request:
    interface, vips, forwards = args.interface, args.vip or [], not args.no_forward
    if args.config:
        if interface or vips:
            raise UserError("--config, or --interface and --vip, but not both", 2)
        interface, vips, nat = _configured(args.config)
        forwards = forwards and nat
    if not interface or not vips:
        raise UserError("say --interface and --vip, or --config", 2)
    return plan.Request(interface, _addresses(vips), forwards)


def _configured(path: str) -> tuple[str, list[str], bool]:
    """Interface, VIPs, and may there be servers behind NAT?"""
    config = load(path)
    if not config.director.interface or not config.director.vips:
        missing = " and ".join(k for k in ("interface", "vips") if not getattr(config.director, k))
        raise UserError(f"{path}: no {missing} in [director]: add it, or say --interface and --vip")
    methods = {server.method or service.method for service in config.service for server in service.server}
    return config.director.interface, list(config.director.vips), "nat" in methods or not methods


def _addresses(vips: list[str]) -> tuple[str, ...]:
    found = []
    for vip in vips:
        try:
            address = ipaddress.ip_address(vip)
        except ValueError:
            raise UserError(f"{vip} is no address (without a prefix length)", 2) from None
        if address.is_multicast or address.is_unspecified:
            raise UserError(f"{vip} is no address that a host can have", 2)
        found.append(str(address))
    return tuple(dict.fromkeys(found))


def _host(interface: str) -> plan.Host:
    def devices(conf: str) -> list[str]:
        try:
            return sorted(os.listdir(changes.PROC_SYS / conf))
        except FileNotFoundError:  # a kernel without IPv6
            return []

    return plan.Host(changes.read, devices, lambda vip: changes.present(vip, interface))


def _up(asked: plan.Request, folder: Path) -> int:
    changes.index(asked.interface)
    private_directory(str(folder), "UVS_STATE_DIR")
    if (old := remembered.load(folder)) and not (old.asked == asked and all(c.holds() for c in old.changes)):
        _down(old, folder)  # half undone by others, or another request: from the beginning
        old = None
    if old is None:
        _make(asked, folder)
    with suppress(UserError):  # a link without a cable; whoever comes later asks
        announce.announce(asked.interface, asked.vips, asked.forwards)
    print(f"up: {', '.join(asked.vips)} on {asked.interface}, announced")
    return 0


def _make(asked: plan.Request, folder: Path) -> None:
    now = remembered.save(folder, asked, plan.plan(asked, _host(asked.interface)))
    try:
        for change in now.changes:
            try:
                change.make()
            except OSError as e:
                root = ": run it as root" if e.errno == errno.EPERM else ""
                raise UserError(f"{change}: {e.strerror}{root}: nothing is changed") from None
    except BaseException:
        _down(now, folder)
        raise


def _down(before: Remembered | None, folder: Path) -> int:
    if before:
        before.undo()
        remembered.forget(folder)
    return 0


def _status(before: Remembered | None) -> int:
    if before is None:
        print("down")
        return STOPPED
    rows = [*before.changes]
    rows += [a for v in before.asked.vips if (a := changes.Address(v, before.asked.interface)) not in rows]
    told = [(row.holds(), row) for row in rows if not (isinstance(row, changes.Sysctl) and row.value is None)]
    whole = all(holds for holds, _ in told)
    print(f"{'up' if whole else 'half'}: {', '.join(before.asked.vips)} on {before.asked.interface}")
    for holds, row in told:
        print(f"  {'yes' if holds else 'NO '}  {row}")
    return 0 if whole else 1


def _announce(args: argparse.Namespace) -> int:
    if not args.interface or not args.vip:
        raise UserError("say --interface and --vip", 2)
    changes.index(args.interface)
    router = changes.read("net/ipv6/conf/all/forwarding") == "1"
    if not announce.announce(args.interface, _addresses(args.vip), router):
        print(f"{args.interface} has no neighbours that could be told")
    return 0
