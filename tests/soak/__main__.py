"""`scripts/soak`: a director under traffic and changes for some minutes; exit status 1 if something is off.

Clients open, use, abort and forget connections (TCP, UDP, FTP, half-open SYNs; IPv4 and IPv6; NAT, direct routing and
tunnels) of services that are left alone, where nothing may fail, and of services that an operator changes all the
time, where anything may be cut but no byte may be another. The director's clock runs --rate times as fast, so that
time-outs of minutes run out in seconds. Every period, and when all traffic has ended and all time-outs have run out:

  memory       anonymous memory of the second half within 4 MiB of the first's (from a third of the time on); the
               arena no larger than twice its entries at most, and two segments
  table        no entry, no deleted server and no packet without a verdict is left; descriptors and threads are flat
  counters     each server's connections are what the table holds; a service's counters are its servers' sum, its
               connections those that were made; no more than the total; as many reasons as packets
  log          the director says nothing
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable

from support import sanitized
from support.clients import Progress
from support.running import Running

from soak import place, traffic, watch
from soak.changes import Operator
from uvs.lab.enter import Call
from uvs.lab.topology import ECHO_PORT, HTTP_PORT

CHANGES_S = 0.1  # between two changes
ESTABLISHED_S = 400  # by the director's clock; as it is by default, the wait at the end would be 45 s
PATIENCE_S = 180.0  # for what must come, at the end


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=15, help="of traffic (default 15)")
    parser.add_argument("--rate", type=int, default=20, help="of the director's clock (default 20)")
    parser.add_argument("--driver", default="native", help="queue driver (default native)")
    parser.add_argument("--load", type=float, default=1.0, help="times as many connections (default 1)")
    parser.add_argument("--seed", type=int, default=1, help="of all that is random (default 1)")
    parser.add_argument("--period", type=float, default=5, help="seconds between lines (default 5)")
    parser.add_argument("--sanitize", choices=sanitized.KINDS, help="over such a build")
    parser.add_argument("run_options", nargs="*", metavar="-- OPTION", help="further options of `uvs run`")
    return parser.parse_args()


class Soak:
    """One lab, its traffic and changes."""

    def __init__(self, running: Running, args: argparse.Namespace) -> None:
        self.running, self.args = running, args
        self.watch = watch.Watch(running)
        self.stop = Progress()
        self.calls: list[Call] = []
        self.tally: traffic.Tally = Counter()

    def begin(self, function: Callable[..., traffic.Tally], *words: object) -> None:
        """A process of clients."""
        self.calls.append(self.running.lab.begin("client", function, *words))

    def traffic(self) -> None:
        """All clients begin."""
        seed, load = self.args.seed * 100, self.args.load
        left_alone = list(place.STABLE)
        for family in place.FAMILIES:
            stable = [place.vip(family, last) for last in left_alone]
            changed = [place.vip(family, last) for last in place.CHANGED]
            first = 10_000 if family == 4 else 32_000
            ports = [range(at, at + 5000) for at in range(first, first + 20_000, 5000)]  # of kinds of clients
            self.begin(traffic.tcp, family, stable, False, self.stop, seed + family, ports[0], 10 * load)
            self.begin(traffic.tcp, family, changed, True, self.stop, seed + family + 10, ports[1], 15 * load)
            self.begin(traffic.udp, family, stable, False, self.stop, seed + family + 20, ports[2], 10 * load)
            self.begin(traffic.udp, family, changed, True, self.stop, seed + family + 30, ports[3], 15 * load)
            self.begin(
                traffic.syns, family, place.NET[family], changed, self.stop, seed + family + 40, 20 * load
            )
        self.begin(
            traffic.ftp,
            [place.vip(f, place.FTP_VIP) for f in place.FAMILIES],
            self.stop,
            seed + 50,
            place.FTP_FILE,
        )

    def turn(self, operator: Operator, seconds: float) -> None:
        """Changes and lines, for so long."""
        end = time.monotonic() + seconds
        line = time.monotonic() + self.args.period
        while time.monotonic() < end:
            operator.change()
            if time.monotonic() >= line:
                print(self.watch.look(), flush=True)
                line += self.args.period
            time.sleep(CHANGES_S)

    def gather(self) -> None:
        """Clients end, and tell."""
        self.stop.value = 1
        for call in self.calls:
            self.tally.update(call.result(PATIENCE_S))

    def wait(self, what: str, true: Callable[[], bool]) -> None:
        """Until it is true; it is looked at closely afterwards, whatever came."""
        end = time.monotonic() + PATIENCE_S
        while not true() and time.monotonic() < end:
            time.sleep(0.2)
        print(f"{what}: {PATIENCE_S - (end - time.monotonic()):.0f} s", flush=True)

    def run(self) -> None:
        """All of it; what was wrong is in the watch's faults."""
        w, seconds = self.watch, self.args.minutes * 60
        with self.running.client() as client:
            client.set_timeouts(ESTABLISHED_S, 0, 0)
            operator = Operator(client, self.args.seed)
            self.traffic()
            self.turn(operator, seconds)
            w.flat(seconds / 3)
            self.gather()
            operator.clear()
            self.wait("all time-outs", lambda: not w.table()["conns"] + w.table()["templates"])
            listed = sum(len(dests) for _, dests in place.stable())
            self.wait("deleted servers", lambda: w.table()["dests"] == listed)
            print(w.look())
            w.empty()
            w.totals(self.made())
            w.verdicts()
            client.flush()
            self.wait("an empty table", lambda: not w.table()["dests"] + w.table()["services"])
            w.empty()
        print(f"changes: {dict(operator.done)}")
        for line in self.summary():
            print(line)
        w.expect(w.figures().lost == 0, f"the kernel dropped {w.figures().lost} packets before the queues")
        self.end()

    def summary(self) -> list[str]:
        """How often what was done, and came to an end, or was cut; anything wrong is a fault."""
        rows: Counter[tuple[str, str]] = Counter()
        wrong: Counter[str] = Counter()
        changed = tuple(place.vip(family, last) for family in place.FAMILIES for last in place.CHANGED)
        for what, count in self.tally.items():
            how, rest = what.split(" ", 1)
            if how == "wrong":
                wrong[what] += count
            elif how != "made":
                act, _, address = rest.rpartition(" ")
                rows[f"{act or rest}, {'changed' if address in changed else 'left alone'}", how] += count
        for what, count in wrong.most_common(20):
            self.watch.expect(False, f"{count} times {what}")
        return [
            f"{what:28} {rows[what, 'done']:8} done {rows[what, 'cut']:8} cut"
            for what in sorted({w for w, _ in rows})
        ]

    def made(self) -> dict[tuple[int, int, bytes, int], int]:
        """Connections of the services that were left alone."""
        found = {}
        for spec, _ in place.stable():
            of = spec.key
            if of.port in (HTTP_PORT, ECHO_PORT):
                name = f"made {socket.inet_ntop(of.af, of.addr)} {of.port}"
                found[of.af, of.protocol, of.addr, of.port] = self.tally[name]
        return found

    def end(self) -> None:
        """The director is told to end, and leaves nothing."""
        said = len(self.watch.log)
        self.watch.client.close()
        self.watch.expect(self.running.director.kill(15), "the director does not end by SIGTERM")
        rest = self.running.log()[said:].strip()
        self.watch.expect(not rest, f"its last words: {rest[:4000]}")


def main() -> int:
    """Run it; the exit status."""
    args = arguments()
    if args.sanitize:
        words = [
            word
            for word in sys.argv[1:]
            if word not in ("--sanitize", args.sanitize, f"--sanitize={args.sanitize}")
        ]
        return sanitized.run(args.sanitize, ["-P", "-m", "soak", *words])
    with contextlib.ExitStack() as stack:
        lab = stack.enter_context(place.create())
        soak = Soak(place.start(lab, args.driver, args.rate, args.run_options), args)
        stack.callback(lambda: [call.close() for call in soak.calls])  # before the lab, which they hold open
        try:
            soak.run()
        except Exception as error:
            if soak.running.director.running:
                raise
            soak.watch.faults.append(f"the director ended: {soak.running.log()[-4000:]} ({error!r})")
    for fault in soak.watch.faults:
        print(f"OFF {fault}")
    print("something is off" if soak.watch.faults else "all is well")
    return bool(soak.watch.faults)


if __name__ == "__main__":
    os.environ.pop("UVS_DRIVER", None)
    sys.exit(main())
