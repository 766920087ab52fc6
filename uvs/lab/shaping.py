"""`uvs lab link`: a host's links lose and delay packets, by tc(8) at both ends of each.

netem does both. Where the kernel has none, a filter of classic BPF throws packets away at random, and a
program in user space carries those that are to be delayed (`delay`).
"""

from __future__ import annotations

import argparse
import sys

from uvs.lab import delay as carrier
from uvs.lab.enter import Daemon, LabError
from uvs.lab.namespaces import SWITCH, Lab

DELAY_MAX = 10_000  # ms
# linux/filter.h: A = a random number (SKF_AD_OFF + SKF_AD_RANDOM); below {} TC_ACT_SHOT, else TC_ACT_OK
_DROP = "4,32 0 0 4294963256,53 1 0 {},6 0 0 2,6 0 0 0"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of `uvs lab link`."""
    add = parser.add_argument
    add("host", metavar="HOST", help="client, director, rs1, ...")
    add("--loss", type=float, metavar="PERCENT", help="packets lost, each way")
    add("--delay", type=float, metavar="MS", help="milliseconds that each packet takes, each way")
    add("--clear", action="store_true", help="as before")


def main(args: argparse.Namespace, lab: Lab) -> int:
    """Make a host's links bad, or good again. LabError: what this kernel cannot do."""
    bad = args.loss is not None or args.delay is not None
    if bad == args.clear:
        raise LabError("say --loss PERCENT, --delay MS or both, or --clear", 2)
    loss, delay = args.loss or 0.0, args.delay or 0.0
    if not 0 <= loss <= 100:
        raise LabError("--loss takes 0 to 100 percent", 2)
    if not 0 <= delay <= DELAY_MAX:
        raise LabError(f"--delay takes 0 to {DELAY_MAX} milliseconds", 2)
    if not loss and not delay:
        clear(lab, args.host)
        print(f"{args.host}: its links lose and delay nothing")
        return 0
    how = spoil(lab, args.host, loss, delay)
    words = [f"lose {loss:g} %"] * bool(loss) + [f"take {delay:g} ms"] * bool(delay)
    print(
        f"{args.host}: its links {' and '.join(words)}, each way (by {how}): uvs lab link {args.host} --clear"
    )
    return 0


def spoil(lab: Lab, host: str, loss: float, delay: float) -> str:
    """Have all links of a host lose (percent) and delay (ms) packets; by what."""
    netem = has_netem(lab)
    clear(lab, host)
    for where, device, port in _ends(lab, host):
        if netem:
            options = ["delay", f"{delay:g}ms"] * bool(delay) + ["loss", f"{loss:g}%"] * bool(loss)
            _tc(lab, where, "qdisc", "add", "dev", device, "root", "netem", *options)
        elif port and delay:
            _carry(lab, device, delay, loss)
        elif port:
            program = _DROP.format(min(int(loss / 100 * (1 << 32)), (1 << 32) - 1))
            _tc(lab, where, "qdisc", "add", "dev", device, "clsact")
            for way in ("ingress", "egress"):
                _tc(
                    lab,
                    where,
                    "filter",
                    "add",
                    "dev",
                    device,
                    way,
                    "bpf",
                    "direct-action",
                    "bytecode",
                    program,
                )
    if netem:
        return "netem"
    return "a program in user space: this kernel has no netem" if delay else "tc and BPF"


def _carry(lab: Lab, port: str, delay: float, loss: float) -> None:
    """Put the program between a port and its bridge."""
    tap = f"{port}-d"
    program = (sys.executable, "-I", "-S", carrier.__file__)
    lab.check(SWITCH, ["ip", "link", "set", port, "nomaster"])
    try:
        lab.start(SWITCH, f"delay-{port}", (*program, port, tap, f"{delay:g}", f"{loss:g}"), notify=True)
        lab.check(SWITCH, ["ip", "link", "set", tap, "addrgenmode", "none", "master", _segment(port), "up"])
    except LabError:
        _carry_no_more(lab, port)
        raise
    lab.settle()


def _carry_no_more(lab: Lab, port: str) -> None:
    for member in lab.processes():
        if member.host == SWITCH and carrier.__file__ in member.argv and port in member.argv:
            Daemon(SWITCH, "delay", member.pid).kill()
    lab.check(SWITCH, ["ip", "link", "set", port, "master", _segment(port)])


def _segment(port: str) -> str:
    return port.rpartition("-")[2]


def clear(lab: Lab, host: str) -> None:
    """Take all of it away."""
    for where, device, port in _ends(lab, host):
        if port:
            _carry_no_more(lab, device)
        shown = _tc(lab, where, "qdisc", "show", "dev", device)
        if "qdisc netem" in shown:
            _tc(lab, where, "qdisc", "del", "dev", device, "root")
        if "qdisc clsact" in shown:
            _tc(lab, where, "qdisc", "del", "dev", device, "clsact")


def has_netem(lab: Lab) -> bool:
    """Does the kernel have it? Tried at the switch's `lo`, where nothing passes."""
    try:
        _tc(lab, SWITCH, "qdisc", "add", "dev", "lo", "root", "netem")
    except LabError:
        return False
    _tc(lab, SWITCH, "qdisc", "del", "dev", "lo", "root")
    return True


def _ends(lab: Lab, host: str) -> list[tuple[str, str, bool]]:
    """Both ends of each of its links: namespace, device, is it the switch's."""
    found = []
    for interface in lab.topology[host].interfaces:
        if interface.segment:
            found += [(host, interface.name, False), (SWITCH, f"{host}-{interface.segment}", True)]
    return found


def _tc(lab: Lab, where: str, *arguments: str) -> str:
    try:
        return lab.check(where, ["tc", *arguments])
    except FileNotFoundError:
        raise LabError("no `tc` command: apt-get install iproute2") from None
