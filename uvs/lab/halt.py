"""`uvs lab stop` and `start`: a real server or the director fails, and comes back."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from uvs.lab import links, processes, servers
from uvs.lab.enter import Daemon, LabError, Member
from uvs.lab.namespaces import SWITCH, Lab

DIRECTOR = "director"


def arguments(stop: argparse.ArgumentParser, start: argparse.ArgumentParser) -> None:
    """Options of `uvs lab stop` and `uvs lab start`."""
    for parser in (stop, start):
        parser.add_argument("host", metavar="HOST", help="rs1, rs2, ... or director")
    stop.add_argument("--cable", action="store_true", help="pull its cable: it does not even refuse any more")


def main(args: argparse.Namespace, lab: Lab) -> int:
    """Stop a host or start it. LabError: it is so already."""
    names = [DIRECTOR, *(h.name for h in lab.topology.servers)]
    if args.host not in names:
        raise LabError(f"{args.host} has nothing to {args.action}: one of {', '.join(names)}", 2)
    if args.action == "start":
        print(start(lab, args.host))
    elif args.cable:
        print(cut(lab, args.host))
    else:
        print(stop(lab, args.host))
    return 0


def stop(lab: Lab, host: str) -> str:
    """End what serves there: connections to it are refused from now on. What was done, in words."""
    found = _serving(lab, host)
    if not found:
        raise LabError(f"{host} is stopped already: uvs lab start {host}")
    for member in found:
        number = signal.SIGTERM if host == DIRECTOR else signal.SIGKILL
        if not Daemon(host, "server", member.pid).kill(number):
            raise LabError(f"{host}: pid {member.pid} does not end")
    if host == DIRECTOR:
        return "director: `uvs run` has ended, its rules and queues are gone"
    return f"{host}: its HTTP and echo server has ended; it answers with RST and port unreachable"


def cut(lab: Lab, host: str) -> str:
    """Pull the cable at the switch: nothing comes from there any more."""
    ports = _ports(lab, host)
    if not any(lab.call(SWITCH, links.is_up, port) for port in ports):
        raise LabError(f"the cable of {host} is pulled already: uvs lab start {host}")
    for port in ports:
        lab.check(SWITCH, ["ip", "link", "set", port, "down"])
    return f"{host}: its cable is pulled; nothing comes from there any more"


def start(lab: Lab, host: str) -> str:
    """Plug its cable in, and start what serves there, as far as they are not."""
    done = []
    down = [port for port in _ports(lab, host) if not lab.call(SWITCH, links.is_up, port)]
    for port in down:
        lab.check(SWITCH, ["ip", "link", "set", port, "up"])
    if down:
        lab.settle()
        done.append("its cable is plugged in again")
    if not _serving(lab, host):
        if host == DIRECTOR:
            processes.start_director(lab)
            done.append("`uvs run` runs again, with the services that it had")
        else:
            processes.start_server(lab, host)
            done.append("its HTTP and echo server runs again")
    if not done:
        raise LabError(f"{host} runs already: uvs lab stop {host}")
    return f"{host}: {', '.join(done)}"


def _serving(lab: Lab, host: str) -> Sequence[Member]:
    """The processes by which a host serves."""
    program = ["uvs.cli", "run"] if host == DIRECTOR else [servers.__file__, host]
    found = [m for m in lab.processes() if m.host == host]
    return [m for m in found if any(m.argv[i : i + 2] == program for i in range(len(m.argv)))]


def _ports(lab: Lab, host: str) -> list[str]:
    """Where its cables end at the switch."""
    return [f"{host}-{segment}" for segment in lab.topology[host].segments]
