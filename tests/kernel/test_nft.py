"""nftables really exercised: the namespace tests, on Debian's kernel, with the nft back end forced.

The kernel of a developer's machine may lack nft's `queue` statement (or iptables); the virtual machine of
`tests/kernel/vm` has it, and is made to have nothing else.
"""

from __future__ import annotations

from pathlib import Path

from support.elsewhere import passes
from support.vm import MACHINE, environment

# A test of the cost of twenty thousand elements says nothing under emulation.
DIVERSION = ["tests/net/test_netfilter.py", "tests/net/test_netfilter_classes.py", "-k", "nft and not twenty"]
LIMIT_S = 1500  # emulation on a busy machine
# The machine's view of the disk is its own: make it one that has nothing but nft.
ONLY_NFT = 'rm -f /usr/sbin/xtables-*-multi /usr/sbin/ipset; exec "$@"'


def run_inside(folder: Path, *selection: str) -> None:
    """Run tests in the machine; none may be left out there."""
    variables = {"UVS_BACKEND": "nft", **environment(folder)}
    enter = [
        *(MACHINE, "--timeout", str(LIMIT_S), "--"),
        *("env", *(f"{name}={value}" for name, value in variables.items())),
        *("sh", "-c", ONLY_NFT, "sh"),
    ]
    said = passes(enter, *selection, flags=("-S", "-P"))
    assert " skipped" not in said, "the machine lacks what it is there for"


def test_diversion_by_nft(tmp_path: Path) -> None:
    """Rules, sets and real packets at every hook; put back, removed, nothing of the user's touched."""
    run_inside(tmp_path, *DIVERSION)


def test_director_by_nft(tmp_path: Path) -> None:
    """NAT, direct routing and tunnelling, IPv4 and IPv6, through a director that diverts by nft."""
    run_inside(tmp_path, "tests/kernel/guest_modes.py")
