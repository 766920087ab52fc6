"""`uvs lab`: its command line; what stands already, and running commands in it."""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from uvs.lab import arp, capture, halt, modes, processes, registry, send, shaping
from uvs.lab.enter import LabError, Member
from uvs.lab.making import interruptible, make
from uvs.lab.namespaces import Lab
from uvs.lab.topology import METHOD_NAMES, MODES, TUN_TYPES, topology, url

DEFAULT_NAME = "lab"

_EPILOG = """\
examples:
  uvs lab demo                                all of it: nat, dr and tun, IPv4 and IPv6
  uvs lab up --mode dr                        a lab that stays
  uvs lab exec director -- uvsadm -Ln         run a command on a host of it
  uvs lab exec client -- bash                 a shell on a host
  uvs lab stop rs2                            a real server fails
  uvs lab send client 'IP(src="192.0.2.2", dst="192.0.2.100")/TCP(sport=1024, dport=80, flags="S")'
                                              a packet of your own, and its walk
  uvs lab mode dr                             another method, and what is different then
  uvs lab down                                remove it
no root needed; nothing outside the lab's own namespaces is touched
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs lab`'s subcommands."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    sub = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    def action(name: str, text: str) -> argparse.ArgumentParser:
        return sub.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")

    demo = action("demo", "show LVS at work: topology, commands, who answered, connections, walks")
    demo.add_argument("--mode", choices=MODES, help="one forwarding method (default: all three)")
    family = demo.add_mutually_exclusive_group()
    family.add_argument("-4", dest="family", action="store_const", const=4, help="IPv4 only")
    family.add_argument("-6", dest="family", action="store_const", const=6, help="IPv6 only")

    up = action("up", "make a lab that stays: client, director, real servers")
    up.add_argument("--mode", choices=MODES, default="nat", help="its forwarding method (default nat)")
    up.add_argument("--servers", type=int, default=3, metavar="N", help="how many real servers (default 3)")
    up.add_argument("--empty", action="store_true", help="no services: set them with uvsadm yourself")
    up.add_argument(
        "--no-offload", action="store_true", help="checksum and segmentation offload off, for packet captures"
    )
    for each in (demo, up):
        each.add_argument("--tun-type", choices=TUN_TYPES, default="ipip", help="kind of tunnel, in mode tun")
    down = action("down", "remove a lab")
    down.add_argument("--all", action="store_true", help="every lab of yours")
    status = action("status", "which labs are up: hosts, addresses, processes")
    run = action("exec", "run a command on a host of a lab")
    craft = action("send", "send crafted packets from a host, and show what the director did with them")
    send.arguments(craft)
    stop = action("stop", "stop a real server, or the director")
    start = action("start", "start what was stopped")
    halt.arguments(stop, start)
    mode = action("mode", "move a lab to nat, dr or tun, and show the difference")
    modes.arguments(mode)
    vip = action("arp", "who answers ARP for the VIP, in mode dr; its ARP problem made and mended")
    arp.arguments(vip)
    listen = action("capture", "show what a host sends and gets")
    capture.arguments(listen)
    link = action("link", "have a host's links lose or delay packets")
    shaping.arguments(link)
    for each in (up, down, status, run, craft, stop, start, mode, vip, listen, link):
        each.add_argument(
            "--name", metavar="NAME", help="the lab's name" + (" (default lab)" if each is up else "")
        )
    run.add_argument("host", metavar="HOST", help="client, director, rs1, ... (and router in mode tun)")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- CMD", help="the command and its arguments")


def main(args: argparse.Namespace) -> int:
    """Run a subcommand; LabError tells what went wrong."""
    if getattr(args, "name", None) is not None:
        registry.checked(args.name)
    if args.action == "demo":
        from uvs.lab import demo

        return demo.main(args)
    if args.action == "up":
        return up(args)
    if args.action == "down":
        return down(args)
    if args.action == "status":
        return status(args)
    if args.action == "exec":
        return run(args)
    if args.action == "mode":
        return modes.main(args)
    lab = registry.find(args.name).lab()
    return _TOOLS[args.action](args, lab_with(lab, args.host) if "host" in args else lab)


_TOOLS: dict[str, Callable[[argparse.Namespace, Lab], int]] = {
    "arp": arp.main,
    "capture": capture.main,
    "link": shaping.main,
    "send": send.main,
    "start": halt.main,
    "stop": halt.main,
}


def lab_with(lab: Lab, host: str) -> Lab:
    """The lab, which has a host of that name. LabError: it has not."""
    if host not in {h.name for h in lab.topology.hosts}:
        raise LabError(f"no host {host!r}: one of {', '.join(h.name for h in lab.topology.hosts)}", 2)
    return lab


def up(args: argparse.Namespace) -> int:
    """Make a lab with servers and a director, and leave it."""
    name = registry.checked(args.name or DEFAULT_NAME)
    try:
        plan = topology(args.mode, args.servers, args.tun_type)
    except ValueError as e:
        raise LabError(f"--mode, --servers, --tun-type: {e}", 2) from None
    with registry.locked() as path:
        if any(e.name == name and e.stands for e in registry.entries()):
            raise LabError(f"lab {name!r} is up already: uvs lab down --name {name}, or another --name")
        with interruptible(), Lab.create(plan) as lab:
            if args.no_offload:
                lab.offload(False)
            make(lab, services=not args.empty)
            registry.record(path, name, lab)
            lab.keep()
    print(plan.draw())
    print()
    print(_next_steps(lab, "" if name == DEFAULT_NAME else f" --name {name}", args.empty))
    return 0


def _next_steps(lab: Lab, option: str, empty: bool) -> str:
    commands = []
    if empty:
        for argv in processes.service_commands(lab, 4):
            commands.append(f"uvs lab exec{option} director -- uvsadm {shlex.join(argv)}")
    commands += [
        f"uvs lab exec{option} client -- curl -s {url(4)}",
        f"uvs lab exec{option} director -- uvsadm -Ln",
        f"uvs lab down{option}",
    ]
    return "It stays until `uvs lab down`. Try:\n" + "\n".join(f"  {c}" for c in commands)


def down(args: argparse.Namespace) -> int:
    """Remove a lab, or all of them."""
    if args.all and args.name:
        raise LabError("--all and --name: say one of them", 2)
    with registry.locked() as path:
        found = registry.entries()
        if args.all:
            chosen = found
        elif args.name:
            chosen = [e for e in found if e.name == args.name]
        else:
            chosen = [registry.find(None)] if len(found) != 1 else found
        if not chosen and not args.all:
            raise LabError(f"no lab named {args.name!r}: uvs lab status")
        for entry in chosen:
            if entry.stands:
                entry.lab().destroy()
            Path(path, f"{entry.name}.json").unlink(missing_ok=True)
            print(f"lab {entry.name} is gone")
    return 0


def status(args: argparse.Namespace) -> int:
    """Hosts, addresses and processes of the labs that are up."""
    found = [e for e in registry.entries() if args.name in (None, e.name)]
    if not found:
        print("no lab is up: uvs lab up" if args.name is None else f"no lab named {args.name!r} is up")
        return 0 if args.name is None else 1
    bad = 0
    for entry in found:
        if not entry.stands:
            print(f"lab {entry.name}: gone (a crash, or a restart): uvs lab down --name {entry.name}")
            bad = 1
            continue
        lab = entry.lab()
        print(f"lab {entry.name}: {lab.topology.title} ({METHOD_NAMES[entry.mode]})")
        members = lab.processes()
        for host in lab.topology.hosts:
            addresses = [f"{a} dev {i.name}" for i in host.interfaces for a in i.addresses]
            print(f"  {host.name:10}{', '.join(addresses)}")
            for member in members:
                if member.host == host.name:
                    print(f"  {'':10}pid {member.pid}: {_title(member)}")
    return bad


def _title(member: Member) -> str:
    """A process's command line; our own programs as one would type them."""
    text = shlex.join(member.argv)
    for program, name in (("-m uvs.cli ", "uvs "), ("lab/servers.py ", "HTTP and echo server ")):
        if program in text:
            return name + text.partition(program)[2]
    return text


def run(args: argparse.Namespace) -> int:
    """Run a command on a host, with this terminal; its exit status (128 + N if signal N ended it)."""
    argv = args.argv[1:] if args.argv[:1] == ["--"] else args.argv
    if not argv:
        raise LabError("no command: uvs lab exec HOST -- CMD...", 2)
    lab = lab_with(registry.find(args.name).lab(), args.host)
    sys.stdout.flush()
    try:
        process = lab.popen(args.host, argv)
    except FileNotFoundError:
        print(f"uvs lab exec: no such command: {argv[0]}", file=sys.stderr)
        return 127
    except PermissionError:
        print(f"uvs lab exec: {argv[0]}: not a program that may be run", file=sys.stderr)
        return 126
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal sends it to the program as well
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda n, _: process.send_signal(n))
    code = process.wait()
    return 128 - code if code < 0 else code
