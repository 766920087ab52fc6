"""The steps of a scenario, done on a stage.

topology nat|dr [wire]       first of all. nat: the servers behind a network of their own; wire: paper can't
ipvsadm ARGUMENTS            what it prints, `[status N]` if that is not 0
sysctl NAME=VALUE            net.ipv4.vs.NAME; `refused` if so
sysctl NAME…                 what each holds
HOST: PACKETS                sent by c, r1 … r3, or d (the director itself); each packet that arrives anywhere
who HOST: PACKETS            for each, where it arrived: a host, `icmp TYPE/CODE`, `rst`, or `-`
together HOST: PACKETS       all sent before what arrives is looked at
quiet HOST: PACKETS          sent, answers not looked at
states NAME: WAY -> EVENTS   each event on a connection of its own that went this way: state and seconds left.
                             `iS oSA`: in or out, TCP flags or SCTP chunk types
wait SECONDS
conns [ARGUMENTS]            ipvsadm -Lcn, sorted, seconds left rounded up to 10
entries [ARGUMENTS]          the same without the time
mark NUMBER PROTOCOL|- ADDRESS[:PORT]       netfilter mark for what comes in
transparent NUMBER           packets of that mark are taken in, whatever their destination
route HOST unreachable|normal|mtu N         as the director sees it, both families; for a tunnel's MTU etc.
local HOST                   the host's addresses become the director's own
neighbour HOST gone|back     its link-layer address is not known
default gone|back|mtu N      the route to the clients
helper ftp|sip               the kernel's module (FTP's needs conntrack); uvs has them always
track                        netfilter's conntrack is on (a rule asks for it)
policy HOST                  what comes from a virtual address goes by that host, by a rule of the routing policy
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Protocol

from support.scenario.script import Step
from support.scenario.tell import tell
from support.scenario.words import Vocabulary, client, client6, sctp, tcp

Arrival = tuple[str, str, bytes]  # sender, receiver, IP packet


class Stage(Protocol):
    """Where a scenario is played."""

    def close(self) -> None:
        """Clear it away."""

    def send(self, host: str, packet: bytes) -> None:
        """Let a host send an IP packet to the director; `d`: the director sends it itself."""

    def arrivals(self, patience: float, count: int | None = None) -> list[Arrival]:
        """What has arrived since the last call; waits for the first `patience` s, or until `count` are there."""

    def ipvsadm(self, words: list[str]) -> tuple[list[str], int]:
        """Output and exit status."""

    def sysctl(self, name: str, value: str) -> bool:
        """Was it accepted?"""

    def show_sysctl(self, name: str) -> str:
        """Its value."""

    def wait(self, seconds: float) -> None:
        """Let time pass."""

    def mark(self, number: int, protocol: str, address: str, port: int) -> None:
        """Mark what comes in for an address; protocol `-`: any; port 0: any."""

    def host(self, verb: str, words: list[str]) -> None:
        """transparent, route, local, neighbour, default: settings of the director's machine."""


PATIENCE_S, GLANCE_S = 1.5, 0.8
LONG_S, SILENT_S = 20.0, 6.0  # where the answers are known: something is to arrive; for some packets nothing
TURN_S = 0.3
# Connections that `states` makes before it lists them: the first must not have ended by then.
TCP_AT_ONCE, SCTP_AT_ONCE = 5, 1


class Play:
    """One scenario under way. `open_stage` gets the topology."""

    def __init__(self, open_stage: Callable[[str], Stage]) -> None:
        self.open_stage = open_stage
        self.stage: Stage  # this and the words: from the step `topology` on
        self.words: Vocabulary
        self.patience, self.glance = PATIENCE_S, GLANCE_S
        self._port = 20000
        self._verbs: dict[str, Callable[[str], list[str]]] = {
            "topology": self._topology,
            "ipvsadm": self._ipvsadm,
            "sysctl": self._sysctl,
            "who": self._who,
            "quiet": self._quiet,
            "together": self._together,
            "states": self._states,
            "wait": self._wait,
            "conns": self._conns,
            "entries": self._entries,
            "mark": self._mark,
        }

    def close(self) -> None:
        """Close the stage, if it came to that."""
        if hasattr(self, "stage"):
            self.stage.close()

    def expecting(self, step: Step) -> list[str]:
        """Do a step whose answers are known: something that is to arrive is waited for on any machine."""
        answers = step.expected(kernel=False)
        silent = "nothing" in answers or any("-" in line.split() for line in answers)
        self.patience = self.glance = SILENT_S if silent else LONG_S
        try:
            return self.perform(step.words)
        finally:
            self.patience, self.glance = PATIENCE_S, GLANCE_S

    def perform(self, step: str) -> list[str]:
        """Do a step; what it led to, line by line."""
        if re.match(r"(c|d|r[123]): ", step):
            return self._shown(step)
        verb, _, rest = step.partition(" ")
        if verb in self._verbs:
            return self._verbs[verb](rest)
        self.stage.host(verb, self.words.expand(rest).split())
        return []

    def _topology(self, rest: str) -> list[str]:
        topology = rest.split()[0]
        self.words = Vocabulary(topology)
        self.stage = self.open_stage(topology)
        return []

    # ---- packets

    def _sent(self, step: str) -> Iterator[str]:
        """Sends the packets of `HOST: PACKETS` one by one; after each, who sent it."""
        host, _, expression = step.partition(": ")
        for packet in self.words.packets(expression):
            self.stage.send(host, bytes(packet))
            yield host

    def _arrived(self) -> list[str]:
        seen = self.stage.arrivals(self.patience)
        return [f"{sender}>{to} {tell(data)}" for sender, to, data in seen] or ["nothing"]

    def _shown(self, step: str) -> list[str]:
        return [line for _ in self._sent(step) for line in self._arrived()]

    def _together(self, step: str) -> list[str]:
        for _ in self._sent(step):
            pass
        return self._arrived()

    def _quiet(self, step: str) -> list[str]:
        for _ in self._sent(step):
            self.stage.arrivals(self.glance, 1)
        return []

    def _who(self, step: str) -> list[str]:
        return [" ".join(self._whose(host) for host in self._sent(step))]

    def _whose(self, sender: str) -> str:
        """Where the sender's packet went, or what the sender was told."""
        for _, to, data in self.stage.arrivals(self.glance, 1):
            if to != sender:
                return to
            protocol, body = (data[9], data[20:]) if data[0] >> 4 == 4 else (data[6], data[40:])
            if protocol in (1, 58):
                return f"icmp {body[0]}/{body[1]}"
            return "rst" if protocol == 6 and body[13] & 4 else to
        return "-"

    # ---- state tables

    def _states(self, rest: str) -> list[str]:
        """Name: way -> events; name may be followed by `sctp`, `6`, and a server r1."""
        head, _, walk = rest.partition(": ")
        way, _, events = walk.partition("->")
        options, todo = head.split()[1:], events.split()
        at_once = SCTP_AT_ONCE if "sctp" in options else TCP_AT_ONCE
        cells: list[str] = []
        for start in range(0, len(todo), at_once):
            ports: dict[int, str] = {}
            for event in todo[start : start + at_once]:
                self._port += 1
                ports[self._port] = event
                for turn in [*way.split(), event]:
                    self._turn(turn, options)
            seen = self._states_by_port()
            cells += [f"{event}:{seen.get(port, '-')}" for port, event in ports.items()]
        return [" ".join(cells)]

    def _turn(self, turn: str, options: list[str]) -> None:
        """One packet of the present connection: `iS`, `oSA`, of SCTP `i1`, `o2,14`."""
        inward, what = turn[0] == "i", turn[1:]
        six = "6" in options
        host = next((option for option in options if re.fullmatch(r"r[123]", option)), "r1")
        source, server = (client6 if six else client)(1), self.words["RIP6" if six else "RIP"][int(host[1])]
        addresses = (source, self._port, 80) if inward else (server, 80, self._port)
        more = {} if inward else {"dst": source}
        if "sctp" in options:
            packet = sctp(*addresses, *map(int, what.split(",")), **more)
        else:
            packet = tcp(*addresses, what, **more)
        self.stage.send("c" if inward else host, bytes(packet))
        self.stage.arrivals(TURN_S, 1)

    def _states_by_port(self) -> dict[int, str]:
        """State and seconds left of each connection, by the client's port."""
        rows = [line.split() for line in self._listed([])]
        return {int(row[3].rpartition(":")[2]): f"{row[2]}/{_seconds(row[1])}" for row in rows}

    # ---- commands

    def _ipvsadm(self, rest: str) -> list[str]:
        lines, status = self.stage.ipvsadm(self.words.expand(rest).split())
        return lines + ([f"[status {status}]"] if status else [])

    def _sysctl(self, rest: str) -> list[str]:
        name, given, value = rest.partition("=")
        if not given:
            return [f"{each} {self.stage.show_sysctl(each)}" for each in rest.split()]
        return [] if self.stage.sysctl(name, value) else ["refused"]

    def _wait(self, rest: str) -> list[str]:
        self.stage.wait(float(rest))
        return []

    def _mark(self, rest: str) -> list[str]:
        number, protocol, where = self.words.expand(rest).split()
        address, _, port = where.rpartition(":") if re.search(r"(\]|\.\d+):\d+$", where) else (where, "", "0")
        self.stage.mark(int(number), protocol, address.strip("[]"), int(port))
        return []

    def _listed(self, arguments: list[str]) -> list[str]:
        lines, _ = self.stage.ipvsadm(["-L", "-c", "-n", *arguments])
        return lines[2:]

    def _conns(self, rest: str, times: bool = True) -> list[str]:
        out = []
        for line in self._listed(rest.split()):
            fields = line.split()
            fields[1:2] = [f"<={_seconds(fields[1])}s"] if times else []
            out.append(" ".join(fields))
        return sorted(out, key=lambda line: re.sub(r"<=\d+s", "", line)) or ["none"]

    def _entries(self, rest: str) -> list[str]:
        return self._conns(rest, times=False)


def _seconds(left: str) -> int:
    """mm:ss in seconds, rounded up to 10: what a slow machine takes is not looked at."""
    minutes, seconds = left.split(":")
    return (int(minutes) * 60 + int(seconds) + 9) // 10 * 10
