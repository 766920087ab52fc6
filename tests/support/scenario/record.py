"""Plays scenarios on this machine and prints what came of each: `python -m support.scenario.record kernel|uvs FILE…`.

A line of JSON per scenario: its file and the answers, or the error. Each is played in a network namespace of its own.
Needs root; `kernel` needs ip_vs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from contextlib import closing
from pathlib import Path

from support.sandbox import enter
from support.scenario.play import Play
from support.scenario.script import load
from support.scenario.wire import Kernel, Uvs

LIMIT_S = 900


STAGES = {"kernel": Kernel, "uvs": Uvs}


def played(kind: str, file: str) -> dict[str, object]:
    """What came of a scenario, in this process's namespace."""
    steps = [step for step in load(Path(file)).steps if step.text]
    try:
        with closing(Play(STAGES[kind])) as play:
            answers = [[line.rstrip() for line in play.perform(step.words)] for step in steps]
    except Exception:
        return {"file": file, "error": traceback.format_exc()}
    return {"file": file, "answers": answers}


def main() -> None:
    """Each file in a process of its own."""
    kind, *files = sys.argv[1:]
    for file in files:
        pid = os.fork()
        if not pid:
            signal.alarm(LIMIT_S)
            enter()
            print(json.dumps(played(kind, file)), flush=True)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            print(json.dumps({"file": file, "error": f"ended with status {status:#x}"}), flush=True)


if __name__ == "__main__":
    main()
