"""`uvs lab demo`: the whole story, told on standard output."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections import Counter
from collections.abc import Sequence

from uvs.control.client import Client
from uvs.lab import processes
from uvs.lab.enter import LabError
from uvs.lab.namespaces import SOCKET, Lab
from uvs.lab.topology import METHOD_NAMES, MODES, TUN_TYPES, topology, url
from uvs.walk import text

REQUESTS = 12


class Story:
    """Writes headings, commands and results; in colour on a terminal."""

    def __init__(self, colour: bool) -> None:
        self.colour = colour

    def _paint(self, style: str, words: str) -> str:
        return f"\033[{style}m{words}\033[0m" if self.colour else words

    def heading(self, words: str) -> None:
        """Begin a chapter."""
        print(f"\n{self._paint('1;36', '== ' + words)}\n", flush=True)

    def tell(self, words: str = "") -> None:
        """Plain words, or a command's output."""
        print(words.rstrip(), flush=True)

    def command(self, host: str, argv: Sequence[str]) -> None:
        """A command that is about to run on a host."""
        print(f"{self._paint('32', host + '$')} {self._paint('1', shlex.join(argv))}", flush=True)

    def result(self, words: str, good: bool) -> None:
        """What came out."""
        print(self._paint("1;32" if good else "1;31", words), flush=True)


def main(args: argparse.Namespace) -> int:
    """All chosen modes and families; 0 only if every request was answered and spread as rr says."""
    modes: tuple[str, ...] = (args.mode,) if args.mode else MODES
    families: tuple[int, ...] = (args.family,) if args.family else (4, 6)
    missing = [f for f in families if f not in processes.families()]
    if missing == list(families):
        raise LabError("this kernel has no IPv6 (ipv6.disable=1?): uvs lab demo -4")
    families = tuple(f for f in families if f not in missing)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    story = Story(colour)
    began = time.monotonic()
    results = [r for mode in modes for r in _mode(story, mode, args.tun_type, families)]
    story.heading(f"All together, in {time.monotonic() - began:.0f} s")
    for words, good in results:
        story.result(words, good)
    if missing:
        story.result("IPv6 is left out: this kernel has none (say -4 to leave it out on purpose)", False)
    return 0 if all(good for _, good in results) and not missing else 1


def _mode(story: Story, mode: str, tun_type: str, families: Sequence[int]) -> list[tuple[str, bool]]:
    plan = topology(mode, tun_type=tun_type if mode == "tun" else TUN_TYPES[0])
    story.heading(f"{METHOD_NAMES[mode]} ({plan.title})")
    story.tell(plan.draw())
    story.tell()
    results = []
    with Lab.create(plan) as lab:
        processes.start_servers(lab)
        story.command("director", ["uvs", *processes.RUN])
        processes.start_director(lab)
        story.tell(lab.last_words("director", "uvs"))
        try:
            for family in families:
                results.append(_family(story, lab, family, in_detail=family == families[0]))
        except LabError:
            story.result(lab.log("director", "uvs"), False)
            raise
        if not all(good for _, good in results):
            story.tell("the director's log:")
            story.tell(lab.log("director", "uvs"))
    return results


def _family(story: Story, lab: Lab, family: int, in_detail: bool) -> tuple[str, bool]:
    story.tell()
    for argv in processes.service_commands(lab, family):
        story.command("director", ["uvsadm", *argv])
        processes.uvsadm(lab, *argv)
    with Client(str(lab.path(SOCKET))) as director:
        director.record(1 if in_detail else 0)
        fetch = ["uvs.lab.fetch", "-n", str(REQUESTS), url(family)]
        story.command("client", ["python3", "-m", *fetch])
        answers = lab.run("client", [*processes.PYTHON, *fetch], timeout=120).stdout.split("\n")[:-1]
        story.tell(" ".join(answers))
        names = [host.name for host in lab.topology.servers]
        words, good = judge(f"{lab.topology.title} IPv{family}", names, answers)
        story.result(words, good)
        if in_detail:
            story.tell()
            story.command("director", ["uvsadm", "-Lcn"])
            story.tell(processes.uvsadm(lab, "-Lcn"))
            story.tell()
            story.tell("the walk of the first packet:")
            for walk in director.walks()[:1]:
                story.tell(text.render(json.loads(walk), story.colour))
    return words, good


def judge(title: str, servers: Sequence[str], answers: Sequence[str]) -> tuple[str, bool]:
    """The summary of who answered, and whether it is what rr does: the same order, round after round."""
    count = Counter(a for a in answers if a in servers)
    answered = sum(count.values())
    words = f"{title}: {answered} of {REQUESTS} answered, "
    words += ", ".join(f"{name} {count[name]}" for name in servers)
    turn = list(answers[: len(servers)])
    rounds = [answers[i] == turn[i % len(turn)] for i in range(len(answers))]
    good = answered == REQUESTS and sorted(turn) == sorted(servers) and all(rounds)
    if answered == REQUESTS and not good:
        words += ": not as rr spreads them"
    return words, good
