"""nftables really exercised: the namespace tests, on Debian's kernel, with the nft back end forced.

The kernel of a developer's machine may lack nft's `queue` statement (or iptables); the virtual machine of
`tests/kernel/vm` has it, and is made to have nothing else.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.vm import MACHINE, ROOT, environment

# A test of the cost of twenty thousand elements says nothing under emulation.
DIVERSION = ["tests/net/test_netfilter.py", "-k", "nft and not twenty"]
LIMIT_S = 1500  # emulation on a busy machine
# The machine's view of the disk is its own: make it one that has nothing but nft.
ONLY_NFT = 'rm -f /usr/sbin/xtables-*-multi /usr/sbin/ipset; exec "$@"'


def run_inside(folder: Path, *selection: str) -> None:
    """Run pytest in the machine; the test fails with what it said, or with what the machine lacks."""
    variables = {
        "UVS_BACKEND": "nft",
        **environment(folder),
    }
    done = subprocess.run(
        [
            *(MACHINE, "--timeout", str(LIMIT_S), "--"),
            *("env", *(f"{name}={value}" for name, value in variables.items())),
            *("sh", "-c", ONLY_NFT, "sh"),
            *(sys.executable, "-S", "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *selection),
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert " skipped" not in done.stdout, "the machine lacks what it is there for"


def test_diversion_by_nft(tmp_path: Path) -> None:
    """Rules, sets and real packets at every hook; put back, removed, nothing of the user's touched."""
    run_inside(tmp_path, *DIVERSION)


def test_director_by_nft(tmp_path: Path) -> None:
    """NAT, direct routing and tunnelling, IPv4 and IPv6, through a director that diverts by nft."""
    run_inside(tmp_path, "tests/kernel/guest_modes.py")
