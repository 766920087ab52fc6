"""Sessions in the documents: every command in a `console` block is typed in a lab, and its output compared.

    $ uvs lab up --empty                        a lab; the blocks that follow in the page use it
    director$ uvsadm -A -t 192.0.2.100:80       a command on a host of it, and beneath it what it prints
    $ uvs lab stop rs2                          any other `uvs lab` is of that lab too
    $ uvs walk ...                              needs no lab: typed in a folder that the page's commands share
    rs1$ tcpdump -c 1 ... &                     runs while the next ones do; its output stands beneath it, too
    rs1$ uvs decap ... &                        the same; ended by Ctrl-C at the end of the block

A line `...` stands for any lines. Times, ephemeral ports, MAC addresses and the like differ from run to run and are
compared by their shape only. Without root tcpdump is left out: it changes its groups, which an ordinary user's
namespace does not allow. `python -m support.session PAGE...` (in tests/) writes what the commands print into the pages.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.forked import Forked
from uvs.adm import cli as uvsadm
from uvs.cli import command_parser
from uvs.cli import main as uvs
from uvs.lab import processes, registry
from uvs.lab.namespaces import Lab
from uvs.lab.topology import topology

PROMPT = re.compile(r"((?:client|director|router|rs\d)?\$) (.*)")
HERE = re.compile(r"<<'(\w+)'$")  # a text that follows, up to this word
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.M | re.S)
# Only looks: what it shows may come a moment later.
LISTING = re.compile(r"(sleep \d+; )?(uvsadm -L|uvs sysctl \w+$|ip )")
PATIENCE_S = 60  # for what must come
PLAIN = re.compile(r"[^|;&<>$`*?\\]+")  # no work for a shell
ENDLESS = re.compile(r"uvs (decap|monitor|run --config)\b")  # says that it is ready, and runs until Ctrl-C
QUOTED = re.compile(r"'[^']*'")

# What differs from run to run, or with a program's version: a pattern, and what it is compared as.
SHAPES = (
    (re.compile(r"\b\d\d:\d\d:\d\d\.\d{6}\b"), "CLOCK"),
    (re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"), "MAC"),
    (re.compile(r"\b\d\d:\d\d\b"), "MM:SS"),
    (re.compile(r"(?:(?<=[:.])|(?<=port ))(?:3[2-9]\d{3}|[45]\d{4}|6[0-5]\d{3})\b"), "PORT"),
    (re.compile(r"\bid [1-9]\d*"), "id N"),
    (re.compile(r"\bflowlabel 0x[0-9a-f]+"), "flowlabel N"),
    (re.compile(r"\b(seq|ack|ecr|val) \d+"), r"\1 N"),
    (re.compile(r"\b\d+\.\d+ ?ms\b"), "T ms"),
    (re.compile(r"\bat 0\.(?!000)\d{3} s\b"), "at T s"),  # of a live walk
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r" \d+s "), " T "),  # since when, in `uvs monitor status`
    (re.compile(r"\bin \d+ s at the latest"), "in T at the latest"),
    (re.compile(r"\b\d+ inactive connections"), "N inactive connections"),
    (re.compile(r"@if\d+\b"), "@ifN"),
    (re.compile(r"\bafter \d+ (ms|milliseconds)"), "after T"),
    (re.compile(r"Couldn't connect"), "Could not connect"),  # curl before 8.9
    (re.compile(r"\bexpires \d+sec"), "expires T"),
    (re.compile(r"\bsum 0x[0-9a-f]+"), "sum N"),
    (
        re.compile(r"\bchecksum( +)0x[0-9a-f]{4} → 0x[0-9a-f]{4}"),
        r"checksum\1N → N",
    ),  # of what a kernel numbered
)


@dataclass
class Step:
    """A command: where it is typed (`director$`), its text, and the lines that the page prints beneath it."""

    prompt: str
    command: str
    lines: list[str]
    printed: list[str] = field(default_factory=list)


def blocks(page: str) -> list[list[Step]]:
    """The sessions of a page. ValueError: a block does not begin with a prompt."""
    found = []
    for body in BLOCK.findall(page):
        steps: list[Step] = []
        lines = iter(body.splitlines())
        for line in lines:
            if match := PROMPT.fullmatch(line):
                written = [line]
                while written[-1].endswith("\\"):
                    written.append(next(lines))
                if end := HERE.search(line):
                    while written[-1] != end[1]:
                        written.append(next(lines))
                command = "\n".join([match[2], *written[1:]])
                steps.append(Step(match[1], command, []))
            elif steps:
                steps[-1].lines.append(line)
            else:
                raise ValueError(f"output before any command: {line!r}")
        found.append(steps)
    return found


def of_the_lab(step: Step) -> bool:
    """`uvs lab up` and `down`: what they print is left out of the pages."""
    return step.prompt == "$" and bool(re.match(r"uvs lab (up|down)\b", step.command))


def plain(command: str) -> list[str]:
    """The words of a command that has no work for a shell; none: it has."""
    command = command.replace("\\\n", " ")
    return shlex.split(command) if PLAIN.fullmatch(QUOTED.sub("x", command)) else []


def piped(command: str) -> tuple[str, str]:
    """The first program of a pipe, and what stands behind its `|`."""
    at = QUOTED.sub(lambda quoted: "x" * len(quoted[0]), command).find("|")
    return (command, "") if at < 0 else (command[:at], command[at + 1 :])


def filtered(lines: list[str], program: str, folder: str) -> list[str]:
    """The lines, through what stands behind a `|`."""
    if not program:
        return lines
    text = "".join(f"{line}\n" for line in lines)
    done = subprocess.run(
        ["sh", "-c", program], input=text, capture_output=True, text=True, timeout=PATIENCE_S, cwd=folder
    )
    return (done.stdout + done.stderr).splitlines()


def shape(line: str) -> str:
    """The line without what differs from run to run."""
    for pattern, instead in SHAPES:
        line = pattern.sub(instead, line)
    return " ".join(line.split())


def agrees(expected: list[str], printed: list[str]) -> bool:
    """Is that the output, but for what `...` leaves out and what differs each time?"""
    pattern = "".join(r"(?:.*\n)*?" if e.strip() == "..." else re.escape(shape(e)) + r"\n" for e in expected)
    return re.fullmatch(pattern, "".join(f"{shape(p)}\n" for p in printed)) is not None


class Session:
    """A page's lab, and typing in it."""

    def __init__(self) -> None:
        self._lab: Lab | None = None
        self._running: list[tuple[Step, subprocess.Popen[Any] | Forked]] = []
        self._folder = tempfile.TemporaryDirectory()
        self._records = tempfile.TemporaryDirectory()
        self._labs = Path(self._records.name, "lab")  # recorded apart from this machine's own
        self._labs.mkdir()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        for _step, process in self._running:
            process.kill()
        if self._lab:
            self._lab.destroy()
        self._folder.cleanup()
        self._records.cleanup()

    def play(self, steps: list[Step], patience: float = 0) -> None:
        """Type a block; each step's `printed` is filled. A listing that disagrees is typed again for `patience` s."""
        for step in steps:
            if of_the_lab(step):
                self._own(step)
            elif step.prompt == "$" and step.command.startswith("uvs lab "):
                self._tool(step)
            elif step.prompt == "$":
                step.printed = self._here(step.command)
            elif "tcpdump" in step.command and os.geteuid():
                step.printed = step.lines
            elif step.command.endswith("&"):
                self._begin(step)
            else:
                end = time.monotonic() + (patience if LISTING.match(step.command) else 0)
                step.printed = self._type(step.prompt[:-1], step.command)
                while not agrees(step.lines, step.printed) and time.monotonic() < end:
                    step.printed = self._type(step.prompt[:-1], step.command)
        for step, process in self._running:
            if ENDLESS.match(step.command):
                process.send_signal(signal.SIGINT)
            try:
                out, _ = process.communicate(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                out = f"(no end within {PATIENCE_S} s)\n{process.communicate(timeout=PATIENCE_S)[0]}"
            step.printed += out.splitlines()
        self._running = []

    def _own(self, step: Step) -> None:
        """`uvs lab up` and `uvs lab down`, outside any host."""
        args = command_parser("lab").parse_args(shlex.split(step.command)[1:])
        if self._lab:
            self._lab.destroy()
            self._lab = None
        if args.action == "up":
            self._lab = Lab.create(topology(args.mode, args.servers, args.tun_type))
            processes.start_servers(self._lab)
            processes.start_director(self._lab)
            if not args.empty:
                processes.add_services(self._lab)
            registry.record(self._labs, "lab", self._lab)

    def _tool(self, step: Step) -> None:
        """Any other `uvs lab`: `exec` as a command on that host, `mode` leaves another lab, `… &` goes on."""
        words = plain(step.command.removesuffix("&"))
        assert words, f"{step.command}: no work for a shell, please"
        if words[2] == "exec":
            step.printed = self._type(words[3], shlex.join(words[words.index("--") + 1 :]))
        elif step.command.endswith("&"):
            forked = self._forked(words, together=False)
            self._running.append((step, forked))
            assert forked.said("capturing on", PATIENCE_S), f"{step.command}: it ended at once"
        else:
            step.printed = self._ended(self._forked(words))
        if words[2] == "mode":
            (entry,) = (json.loads(file.read_text()) for file in self._labs.iterdir())
            made = registry.Entry(**entry).lab()
            if self._lab and made.pid != self._lab.pid:
                self._lab.destroy()
                self._lab = made

    def _forked(self, words: list[str], together: bool = True) -> Forked:
        return Forked(words[1:], Path(self._folder.name), self._labs, together)

    def _ended(self, forked: Forked) -> list[str]:
        try:
            return forked.communicate(PATIENCE_S)[0].splitlines()
        except subprocess.TimeoutExpired:
            forked.kill()
            return [*forked.communicate(PATIENCE_S)[0].splitlines(), f"(no end within {PATIENCE_S} s)"]

    def _here(self, command: str) -> list[str]:
        first, behind = piped(command)
        if (words := plain(first))[:2] == ["uvs", "walk"]:
            return filtered(self._ended(self._forked(words)), behind, self._folder.name)
        done = subprocess.run(
            ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, cwd=self._folder.name, timeout=PATIENCE_S,
        )  # fmt: skip
        return done.stdout.splitlines()

    def _type(self, host: str, command: str) -> list[str]:
        assert self._lab, "a page's first command is `uvs lab up`"
        first, behind = piped(command)
        if first.startswith(("uvsadm ", "uvs sysctl ")) and (words := plain(first)):
            out: str = self._lab.call(host, _at_once, words)  # saves Python's start
            return filtered(out.splitlines(), behind, self._folder.name)
        both = subprocess.STDOUT
        with self._lab.popen(
            host,
            ["sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=both,
            text=True,
            cwd=self._folder.name,
        ) as process:
            try:
                out = process.communicate(timeout=PATIENCE_S)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                out = process.communicate()[0] + f"(no end within {PATIENCE_S} s)"
        return out.splitlines()

    def _begin(self, step: Step) -> None:
        assert self._lab
        pipe = subprocess.PIPE
        first = "exec " if ENDLESS.match(step.command) else ""  # that it gets the signal, not the shell
        argv = ["sh", "-c", first + step.command[:-1]]
        err = subprocess.STDOUT if first else pipe
        process = self._lab.popen(
            step.prompt[:-1], argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=err, text=True,
            cwd=self._folder.name,
        )  # fmt: skip
        if "tcpdump" in step.command:
            while "listening on" not in (line := process.stderr.readline()):
                assert line, f"{step.command}: it ended at once"
        elif ENDLESS.match(step.command):
            while "ready" not in (line := process.stdout.readline()):
                assert line, f"{step.command}: it ended at once"
            step.printed = [line.rstrip()]
        elif step.command.startswith("uvs trace"):
            said = b""
            while b"tracing " not in said or not said.endswith(b"\n"):
                said += (more := os.read(process.stdout.fileno(), 65536))
                assert more, f"{step.command}: it ended at once: {process.stderr.read()}"
            step.printed = said.decode().splitlines()
        self._running.append((step, process))


def _at_once(words: list[str]) -> str:
    """uvsadm or `uvs sysctl` in this (forked) process."""
    os.environ |= {"UVS_SOCKET": "/run/uvs/control.sock", "UVS_STATE_DIR": "/run/uvs"}
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), contextlib.suppress(SystemExit):
        uvsadm.main(words[1:]) if words[0] == "uvsadm" else uvs(words[1:])
    return out.getvalue()


def differences(page: str) -> Iterator[str]:
    """What the page says otherwise than the lab."""
    with Session() as session:
        for steps in blocks(page):
            session.play(steps, patience=15)
            for step in steps:
                if not of_the_lab(step) and not agrees(step.lines, step.printed):
                    yield "\n".join([f"{step.prompt} {step.command}", *(f"- {x}" for x in step.lines),
                                     *(f"+ {x}" for x in step.printed)])  # fmt: skip


def written(page: str) -> str:
    """The page with what the commands print now; where it agrees with `...` lines, it is left."""
    with Session() as session:

        def fill(block: re.Match[str]) -> str:
            (steps,) = blocks(block[0])
            session.play(steps)
            lines = []
            for step in steps:
                keep = of_the_lab(step) or agrees(step.lines, step.printed)
                lines += [f"{step.prompt} {step.command}", *(step.lines if keep else step.printed)]
            return "\n".join(["```console", *(line.rstrip() for line in lines), "```"])

        return BLOCK.sub(fill, page)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        began = time.monotonic()
        path = Path(name)
        path.write_text(written(path.read_text()))
        print(f"{name}: {time.monotonic() - began:.1f} s")
