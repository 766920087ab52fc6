"""Figures of all rounds, by work, figure and subject (a peer, or a number of things); to and from JSON."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from uvs import __version__


@dataclass(frozen=True)
class Figure:
    """What is measured: its name, its unit, digits behind the point, whether more of it is better."""

    name: str
    unit: str
    digits: int = 2
    more: bool = True


@dataclass
class WorkResult:
    """What one kind of work gave. `count`: what its subjects are numbers of; None: they are peers."""

    title: str
    figures: dict[str, Figure]
    count: str | None = None
    order: list[str] = field(default_factory=list)  # of the subjects
    rounds: dict[str, dict[str, list[float]]] = field(default_factory=dict)  # figure, subject: one a round
    missing: dict[str, str] = field(default_factory=dict)  # subject: why there is nothing

    def add(self, subject: str, values: Mapping[str, float]) -> None:
        """A round's."""
        for name, value in values.items():
            self.rounds.setdefault(name, {}).setdefault(subject, []).append(value)

    def subjects(self) -> list[str]:
        """Those of which there is something or a reason why not, in their order."""
        return [s for s in self.order if s in self.missing or any(s in of for of in self.rounds.values())]

    def median(self, figure: str, subject: str) -> float | None:
        """Of the rounds; None if there is none."""
        found = self.rounds.get(figure, {}).get(subject)
        return statistics.median(found) if found else None

    def spread(self, figure: str, subject: str) -> float | None:
        """Largest less smallest round, as a share of the median; None without two rounds."""
        found = self.rounds.get(figure, {}).get(subject, [])
        middle = statistics.median(found) if len(found) > 1 else 0
        return (max(found) - min(found)) / middle if middle else None


@dataclass
class Results:
    """A run's."""

    about: dict[str, Any]
    works: dict[str, WorkResult] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def median(self, work: str, figure: str, subject: str) -> float | None:
        """None: not measured."""
        return self.works[work].median(figure, subject) if work in self.works else None

    def to_json(self) -> dict[str, Any]:
        """As `from_json` takes it."""
        return {
            "about": self.about,
            "works": {
                name: {
                    "title": work.title,
                    "count": work.count,
                    "order": work.order,
                    "figures": {
                        f.name: {
                            "unit": f.unit,
                            "digits": f.digits,
                            "more": f.more,
                            "rounds": work.rounds.get(f.name, {}),
                        }
                        for f in work.figures.values()
                    },
                    "missing": work.missing,
                }
                for name, work in self.works.items()
            },
            "failures": self.failures,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Results:
        """What `to_json` gave."""
        made = cls(data["about"], failures=data["failures"])
        for name, work in data["works"].items():
            figures = {n: Figure(n, f["unit"], f["digits"], f["more"]) for n, f in work["figures"].items()}
            rounds = {n: f["rounds"] for n, f in work["figures"].items()}
            made.works[name] = WorkResult(
                work["title"], figures, work["count"], work["order"], rounds, work["missing"]
            )
        return made


ALL_USERS = "4294967295"  # uid_map's length outside of user namespaces
TOOLS = {
    "iperf3": ("iperf3", "--version"), "wrk": ("wrk", "-v"), "HAProxy": ("haproxy", "-v"), "nginx": ("nginx", "-v"),
    "iptables": ("iptables", "--version"), "compiler": (os.environ.get("CC", "cc"), "--version"),
}  # fmt: skip


def about(command: Sequence[str], **more: Any) -> dict[str, Any]:
    """When, where and with what it was measured."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
        "command": " ".join(command),
        "uvs": __version__,
        "commit": _first_line("git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"),
        "kernel": platform.release(),
        "processor": processor(Path("/proc/cpuinfo").read_text()) or platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "root": os.getuid() == 0 and Path("/proc/self/uid_map").read_text().split()[-1] == ALL_USERS,
        "load at the beginning": os.getloadavg()[0],
        "tools": {name: _first_line(*argv) for name, argv in TOOLS.items()},
        **more,
    }


def processor(text: str) -> str:
    """The model that /proc/cpuinfo names; empty where it names none."""
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else ""


def _first_line(*argv: str) -> str:
    path = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, env={**os.environ, "PATH": path}, timeout=20
        )
    except OSError:
        return "not there"
    return next(iter((done.stdout or done.stderr).strip().splitlines()), "")
