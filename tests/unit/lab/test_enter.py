"""Entering a lab: what becomes of an interrupt in the middle of it."""

import subprocess
import sys

import pytest

# A lab that is nowhere; and an interrupt while Python forks, which it tells its hooks and then forgets.
SCRIPT = """
import os, signal, sys
from uvs.lab.enter import Call, Process

class Nowhere:
    def join(self, host, pid_namespace=False):
        pass
    def environment(self, extra=None):
        return dict(os.environ)

def interrupt(here=os.getpid()):
    if os.getpid() == here:
        os.kill(here, number)

def raising(number, frame):
    raise KeyboardInterrupt

number = signal.Signals[sys.argv[3]]
signal.signal(number, raising)
os.register_at_fork(**{sys.argv[1]: interrupt})
try:
    if sys.argv[2] == "Call":
        Call(Nowhere(), None, int).result()
    else:
        Process(Nowhere(), None, ["true"]).wait()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize(("when", "number"), [("before", "SIGTERM"), ("after_in_parent", "SIGINT")])
@pytest.mark.parametrize("what", ["Call", "Process"])
def test_an_interrupt_while_it_forks_is_not_lost(what: str, when: str, number: str) -> None:
    command = [sys.executable, "-c", SCRIPT, when, what, number]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


REFUSED = """
import os
from uvs.lab.enter import LabError, Process

class Refused:
    def join(self, host, pid_namespace=False):
        raise {error}
    def environment(self, extra=None):
        return dict(os.environ)

try:
    Process(Refused(), None, ["true"])
except LabError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("error", "why"),
    [("PermissionError(1, '')", "Operation not permitted"), ("KeyboardInterrupt", "it was cut short")],
)
def test_what_cannot_enter_says_so(error: str, why: str) -> None:
    """Whatever ends the child before it has entered: nobody waits for what it would have told."""
    command = [sys.executable, "-c", REFUSED.format(error=error)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"cannot enter the lab: {why}: is it gone, or another user's?\n", done.stderr
