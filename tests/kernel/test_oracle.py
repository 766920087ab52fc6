"""`scripts/kernel-oracle` asks a kernel: a few scenarios played there again agree with what is recorded."""

from __future__ import annotations

import os
import subprocess
import sys

from support.vm import ROOT


def oracle(*words: str) -> subprocess.CompletedProcess[str]:
    """Run it as the script does."""
    return subprocess.run(
        [sys.executable, "tests/kernel/oracle.py", *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(["tests", *filter(None, sys.path)])},
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip


def test_the_kernel_says_it_again() -> None:
    """In the virtual machine, or here if this kernel has ip_vs."""
    done = oracle("--limit", "500", "sched-rr", "packet-nat")
    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "2 of 2 as the kernel"


def test_list() -> None:
    """Names, and what each shows."""
    lines = oracle("--list").stdout.splitlines()
    assert len(lines) >= 50
    assert next(line for line in lines if line.startswith("sched-rr ")).split(None, 1)[1].startswith("rr: ")


def test_unknown() -> None:
    """A name that there is not."""
    done = oracle("nosuch")
    assert done.returncode == 2
    assert "no scenario nosuch" in done.stdout
