"""A run: which works with which peers, interleaved, round after round."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench import amounts, bulk, connections, flood, latency, packets, web
from bench.peers import HAPROXY, ROUTING, Peer, peers, uvs_name
from bench.results import Figure, Results, WorkResult
from bench.stand import Stand
from bench.work import Pace, Work
from uvs.errors import UserError

OF_PEERS = (bulk.WORK, packets.WORK, packets.PACED, web.CLOSE, web.KEEP, latency.WORK)
SIZES = {
    "connections": "UDP packets among so many connections, NAT, native",
    "services": "UDP among so many services of a server each, NAT, native",
    "servers": "UDP to a service of so many servers (wlc), NAT, native",
}
FLOOD = "flood"
INTERRUPTED = "interrupted: the rest was not measured"
NAMES = (*(work.name for work in OF_PEERS), *SIZES, FLOOD)
# What goes wrong with one peer must not end the run.
FAULTS = (
    UserError,
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    ZeroDivisionError,
    subprocess.SubprocessError,
)


@dataclass
class Run:
    """What is done, and what came of it."""

    pace: Pace
    programs: dict[str, str]
    results: Results
    uvs_options: tuple[str, ...] = ()
    begin: float = field(default_factory=time.monotonic)

    def say(self, *words: str) -> None:
        """A line of progress, with the seconds since the beginning."""
        print(f"[{time.monotonic() - self.begin:6.1f} s]", *words, file=sys.stderr, flush=True)

    def open(
        self, name: str, title: str, figures: Sequence[Figure], order: list[str], count: str | None = None
    ) -> WorkResult:
        """A place for a work's figures."""
        made = self.results.works[name] = WorkResult(title, {f.name: f for f in figures}, count, order)
        return made

    @contextmanager
    def guarded(self, works: Sequence[str], subject: str) -> Iterator[None]:
        """What fails inside is told, and noted for those works."""
        try:
            yield
        except FAULTS as error:
            told = f"{', '.join(works)}: {subject}: {error or type(error).__name__}"
            self.say("FAILED", told)
            self.results.failures.append(told)
            for name in works:
                self.results.works[name].missing[subject] = f"failed: {error}"

    def once(self, work: str, subject: str, measure: Callable[[], dict[str, float]]) -> None:
        """One round of one subject; a subject that failed once is left alone."""
        result = self.results.works[work]
        if subject in result.missing:
            return
        with self.guarded([work], subject):
            values = measure()
            result.add(subject, values)
            figures = (f"{name} {v:,.{result.figures[name].digits}f}" for name, v in values.items())
            self.say(f"{work}: {subject}:", "  ".join(figures))

    # ---- the parts

    def of_peers(self, works: Sequence[Work], chosen: Sequence[Peer]) -> None:
        """Each work by each peer in turn, in labs that stand side by side."""
        for work in works:
            result = self.open(work.name, work.title, work.figures(self.pace), [p.name for p in chosen])
            for peer in chosen:
                if excuse := work.excuse(peer) or self._left_out(work, peer):
                    result.missing[peer.name] = excuse
        needed = [p for p in chosen if any(p.name not in self.results.works[w.name].missing for w in works)]
        with ExitStack() as stack:
            stands = self._stands(stack, [w.name for w in works], [(p.name, lambda p=p: p) for p in needed])
            for number in range(self.pace.rounds):
                for work in works:
                    self.say(f"round {number + 1} of {self.pace.rounds}: {work.title}")
                    for name, stand in stands.items():
                        self.once(work.name, name, lambda w=work, s=stand: w.measure(s, self.pace))

    def _left_out(self, work: Work, peer: Peer) -> str:
        rare = peer.driver == "netfilterqueue" and peer.mode != "nat"
        return "only in a full run" if self.pace.sparing and (rare or not work.sparing(peer)) else ""

    def _stands(
        self, stack: ExitStack, works: list[str], wanted: Sequence[tuple[str, Callable[[], Peer]]]
    ) -> dict[str, Stand]:
        """Labs by subject; those that cannot be made are told."""
        made: dict[str, Stand] = {}
        for subject, peer in wanted:
            with self.guarded(works, subject):
                if lacks := peer().lacks():
                    raise RuntimeError(f"not here: {', '.join(lacks)}")
                made[subject] = stack.enter_context(peer().stand(self.programs))
                self.say(f"lab: {subject}")
        return made

    def _uvs(self, *options: str) -> Peer:
        """uvs by NAT, native."""
        return next(p for p in peers((*self.uvs_options, *options)) if p.name == uvs_name("nat", "native"))

    def of_connections(self) -> None:
        """Directors with so many connections each, side by side."""
        name = "connections"
        counts = [str(n) for n in self.pace.connections]
        self.open(name, SIZES[name], connections.FIGURES, counts, name)
        with ExitStack() as stack:
            wanted = [(n, lambda n=n: self._uvs(*connections.options((), int(n)))) for n in counts]
            stands = self._stands(stack, [name], wanted)
            for count, stand in stands.items():
                with self.guarded([name], count):
                    words = ("--driver", "native", *self.uvs_options)
                    connections.fill_stand(stand, int(count), words)
                    self.say(f"{name}: {count} in the table")
            idle = connections.idle(stands, self.pace.idle)
            for count in stands:
                self.once(name, count, lambda c=count: {"idle": idle[c]})
            for _ in range(self.pace.rounds):
                for count, stand in stands.items():
                    self.once(name, count, lambda c=count, s=stand: connections.measure(s, int(c), self.pace))

    def of_numbers(self, name: str) -> None:
        """Directors with so many services, or servers, side by side."""
        counts = [str(n) for n in (self.pace.services if name == "services" else self.pace.servers)]
        self.open(name, SIZES[name], amounts.FIGURES, counts, name)
        with ExitStack() as stack:
            conn_max = ("--conn-max", str(amounts.CONN_MAX))
            stands = self._stands(stack, [name], [(n, lambda: self._uvs(*conn_max)) for n in counts])
            services = {count: int(count) if name == "services" else 1 for count in stands}
            for count, stand in stands.items():
                with self.guarded([name], count):
                    amounts.set_up(stand, services[count], 1 if name == "services" else int(count))
                    self.say(f"{name}: {count} set up")
            for _ in range(self.pace.rounds):
                for count, stand in stands.items():
                    self.once(
                        name, count, lambda c=count, s=stand: amounts.measure(s, services[c], self.pace)
                    )

    def of_flood(self, chosen: Sequence[Peer]) -> None:
        """One lab after another: a flood leaves its traces."""
        plan = [p for p in chosen if p.name in (ROUTING, HAPROXY, uvs_name("nat", "native"))]
        title = f"SYN flood for {self.pace.flood:g} s, drop_entry=3"
        result = self.open(FLOOD, title, flood.FIGURES, [p.name for p in plan])
        if self.pace.sparing:
            result.missing[HAPROXY] = "only in a full run"
            plan = [p for p in plan if p.name != HAPROXY]
        for _ in range(self.pace.flood_rounds):
            for peer in plan:
                with ExitStack() as stack:
                    for name, stand in self._stands(stack, [FLOOD], [(peer.name, lambda p=peer: p)]).items():
                        self.once(
                            FLOOD, name, lambda s=stand, p=peer: flood.measure(s, self.pace, bool(p.driver))
                        )

    def everything(self, only: Sequence[str], chosen: Sequence[Peer]) -> None:
        """The works that `only` names; what there is after an interruption is kept."""
        try:
            self._everything(only, chosen)
        except KeyboardInterrupt:
            self.results.failures.append(INTERRUPTED)
        self.results.about["seconds"] = round(time.monotonic() - self.begin)

    def _everything(self, only: Sequence[str], chosen: Sequence[Peer]) -> None:
        if works := [work for work in OF_PEERS if work.name in only]:
            self.of_peers(works, chosen)
        if "connections" in only:
            self.of_connections()
        for name in ("services", "servers"):
            if name in only:
                self.of_numbers(name)
        if FLOOD in only:
            self.of_flood(chosen)


def commands(pace: Pace) -> dict[str, Any]:
    """What is run at the client, for whoever wants to repeat it by hand."""
    return {
        "bulk": f"iperf3 -c ADDRESS -p 5201 -t {pace.bulk} -P STREAMS -J [-R]",
        "close": f"wrk -t2 -c64 -d{pace.web} --latency -H 'Connection: close' http://ADDRESS:80/",
        "keep": f"wrk -t2 -c64 -d{pace.web} --latency http://ADDRESS:80/",
        "latency": f"latency ADDRESS 80 keep|new {pace.latency}",
        "packets": f"sender udp eth0 MAC ADDRESS 7000 1 {packets.FLOWS} 0 {pace.packets}",
        "flood": f"sender syn eth0 MAC ADDRESS 80 1 0 0 {pace.flood:g}",
    }
