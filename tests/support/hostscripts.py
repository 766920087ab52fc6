"""scripts/director and scripts/realserver, by each of the shells that they are written for; and what a host's settings are."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from uvs.lab.topology import VIP, Topology

SCRIPTS = Path(__file__).parents[2] / "scripts"
SHELLS = {"dash": ("dash",), "ash": ("busybox", "ash")}
FILES = ("ipv4/ip_forward", "ipv4/conf/*/*", "ipv6/conf/*/*")
# Of an interface's own life, not settings: who sends an advertisement when.
FLEETING = {"stable_secret", "ra_honor_pio_life"}


def settings() -> dict[str, str]:
    """Addresses, routes, links and sysctls of the present network namespace."""
    found = {}
    for what in ("-o address", "-4 route show table all", "-6 route show table all", "-o link"):
        said = subprocess.run(["ip", *what.split()], capture_output=True, text=True, check=True).stdout
        found |= {f"{what}: {line}": "" for line in said.splitlines() if "fe80::" not in line}
    net = Path("/proc/sys/net")
    for pattern in FILES:
        for path in net.glob(pattern):
            if path.name not in FLEETING:
                try:
                    found[str(path.relative_to(net))] = path.read_text().strip()
                except OSError:  # only written to
                    continue
    return found


def difference(
    before: Mapping[str, str], after: Mapping[str, str]
) -> dict[str, tuple[str | None, str | None]]:
    """What is not the same: before and after."""
    keys = sorted({*before, *after})
    return {k: (before.get(k), after.get(k)) for k in keys if before.get(k) != after.get(k)}


class Script:
    """One of the scripts, under one shell, with its state in a folder of the test's."""

    def __init__(self, name: str, shell: str, folder: Path) -> None:
        self.state = folder / f"{name}.state"
        self._argv = [*SHELLS[shell], str(SCRIPTS / name)]
        own = os.path.dirname(sys.executable)
        self.env = {
            **os.environ,
            "PATH": os.pathsep.join([own, os.environ["PATH"], "/usr/sbin", "/sbin"]),
            "UVS_SOCKET": str(folder / "control.sock"),
            "UVS_STATE_DIR": str(folder / "state"),
        }

    def argv(self, action: str, *options: str) -> list[str]:
        return [*self._argv, action, "--state", str(self.state), *options]

    def run(self, action: str, *options: str) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        done = subprocess.run(
            self.argv(action, *options), env=self.env, capture_output=True, text=True, timeout=170
        )
        return done.returncode, done.stdout, done.stderr

    def undone(self) -> list[str]:
        """The way back, as it is written down: one line for each change, the first change first."""
        return (self.state / "undo").read_text().splitlines()


def bare(lab: Topology) -> Topology:
    """Hosts as their box boots: addresses, but neither VIPs nor routes nor a director's or server's sysctls."""
    hosts = []
    for host in lab.hosts:
        cables = [i for i in host.interfaces if i.segment]
        own = tuple(
            replace(i, addresses=tuple(a for a in i.addresses if a.partition("/")[0] not in VIP.values()))
            for i in cables
        )
        hosts.append(replace(host, interfaces=own, gateways=(), sysctls=lab["client"].sysctls))
    return replace(lab, hosts=tuple(hosts))
