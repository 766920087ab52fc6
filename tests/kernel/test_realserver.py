"""scripts/realserver with a kernel's own tunnels, in the virtual machine: a developer's kernel may lack them."""

from __future__ import annotations

from pathlib import Path

from support.elsewhere import passes
from support.vm import MACHINE, environment

LIMIT_S = 600  # emulation on a busy machine


def test_tunnels_by_the_kernel(tmp_path: Path) -> None:
    """dash and busybox ash; ipip and ip6_tunnel loaded, set up, and put back."""
    variables = (f"{name}={value}" for name, value in environment(tmp_path).items())
    enter = [*(MACHINE, "--timeout", str(LIMIT_S), "--"), *("env", *variables)]
    said = passes(enter, "tests/kernel/guest_realserver.py", flags=("-S", "-P"))
    assert " skipped" not in said, "the machine lacks what it is there for"
