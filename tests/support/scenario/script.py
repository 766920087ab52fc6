"""The text of a scenario: steps at the margin, what they led to indented below them.

# what it shows                        a comment
topology nat                           steps: see `play`
ipvsadm -A -t $VIP:80 -s rr
c: tcp(client(1), 1024, 80)
    d>r1 10.9.0.1>198.19.0.11 …        recorded from a kernel
  ~ tunnels and ECN                    where uvs differs on purpose: the row of docs/differences.md …
    d>r1 …                             … and what uvs does instead
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

INDENT, DECIDED = "    ", "  ~ "
TIME, SLOW_S = re.compile(r"(?<=<=)\d+(?=s )|(?<=[A-Z]/)\d+"), 10  # of conns, of states


@dataclass
class Step:
    """One step: its text, the kernel's answer, and uvs's own with the reason where that is decided."""

    text: str  # as written, continuation lines included; empty: comments and blank lines only
    before: list[str] = field(default_factory=list)  # comments and blank lines above it
    recorded: list[str] = field(default_factory=list)
    reason: str = ""
    own: list[str] = field(default_factory=list)

    @property
    def words(self) -> str:
        """The step on one line."""
        return " ".join(line.removesuffix("\\").strip() for line in self.text.splitlines())

    def expected(self, kernel: bool) -> list[str]:
        """What it leads to on the kernel, or on uvs."""
        return self.own if self.reason and not kernel else self.recorded


class Malformed(ValueError):
    """A scenario that cannot be read; the text says where."""


@dataclass
class Script:
    """A scenario."""

    name: str
    steps: list[Step]

    @property
    def title(self) -> str:
        """Its first comment."""
        return self.steps[0].before[0].removeprefix("#").strip()

    @property
    def reasons(self) -> list[str]:
        """The differences that it names."""
        return [step.reason for step in self.steps if step.reason]

    def text(self, answers: Iterable[list[str]] | None = None) -> str:
        """The file's text, with other answers of the kernel if they are given."""
        lines: list[str] = []
        new = iter(answers) if answers is not None else None
        for step in self.steps:
            lines += step.before
            lines += step.text.splitlines()
            said = step.recorded if new is None or not step.text else next(new)
            lines += [(INDENT + line).rstrip() for line in said]
            if step.reason:
                lines.append(DECIDED + step.reason)
                lines += [(INDENT + line).rstrip() for line in step.own]
        return "\n".join(lines) + "\n"


def parse(name: str, text: str) -> Script:
    """Read a scenario. Malformed: an answer without a step, or no heading."""
    steps: list[Step] = []
    before: list[str] = []
    take: list[str] | None = None  # where answers go
    continued = False
    for number, line in enumerate(text.splitlines(), 1):
        if continued:
            steps[-1].text += "\n" + line
            continued = line.endswith("\\")
        elif line.startswith((INDENT, DECIDED)) and take is None:
            raise Malformed(f"{name}:{number}: an answer without a step")
        elif line.startswith(INDENT):
            assert take is not None
            take.append(line[len(INDENT) :])
        elif line.startswith(DECIDED):
            steps[-1].reason, take = line[len(DECIDED) :], steps[-1].own
        elif not line.strip() or line.startswith("#"):
            before.append(line)
            take = None
        else:
            steps.append(Step(line, before))
            before, take = [], steps[-1].recorded
            continued = line.endswith("\\")
    if before:
        steps.append(Step("", before))
    if not steps or not steps[0].before or not steps[0].before[0].startswith("#"):
        raise Malformed(f"{name}: the first line says what it shows")
    return Script(name, steps)


def load(path: Path) -> Script:
    """Read a file."""
    return parse(path.stem, path.read_text())


def _same(want: list[str], got: list[str]) -> bool:
    """The same, but for what a slow machine took: a time left may be SLOW_S longer than it was there."""
    if want == got:
        return True
    masked = [TIME.sub("", line) for line in want] == [TIME.sub("", line) for line in got]
    pairs = zip(TIME.findall("\n".join(want)), TIME.findall("\n".join(got)), strict=False)
    return masked and all(0 <= int(now) - int(then) <= SLOW_S for then, now in pairs)


def differences(script: Script, perform: Callable[[Step], list[str]], kernel: bool = False) -> list[str]:
    """Do all steps; what came otherwise than expected, as lines of a diff. Empty: all the same."""
    out: list[str] = []
    for step in script.steps:
        if not step.text:
            continue
        want, got = step.expected(kernel), [line.rstrip() for line in perform(step)]
        if not _same(want, got):
            out.append(f"@ {step.words}")
            out += [line for line in difflib.ndiff(want, got) if not line.startswith("?")]
    return out
