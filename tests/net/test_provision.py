"""The Vagrantfile's provisioners, word by word, in clean Debian roots joined by namespaces: `vagrant up` without machines.

One Debian is made for the module, with what they install; each host lives in a copy of it, with its
addresses, as a box that has just booted. systemd does not run there.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.debianroot import Roots, debootstrap, inside, put_checkout
from support.hostscripts import bare, difference
from support.vagrantfile import Machine, machines

from uvs.lab.namespaces import Lab
from uvs.lab.topology import MODES, topology

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes Debian roots"),
]


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A Debian with the packages of every role, and uvs: what the first step, `common`, installs."""
    root = tmp_path_factory.mktemp("debian")
    debootstrap(root)
    put_checkout(root)
    for role in ("director", "realserver", "client", "router"):
        inside(root, ["/vagrant/scripts/provision/common", role], {})
    yield root
    shutil.rmtree(root)  # half a gigabyte


@pytest.fixture(params=MODES)
def site(request: pytest.FixtureRequest, debian: Path) -> Iterator[tuple[str, Roots]]:
    with Lab.create(bare(topology(request.param))) as lab:
        yield request.param, Roots(lab, debian)


def up(roots: Roots, made: list[Machine]) -> dict[str, str]:
    """Every step of every machine, in Vagrant's order; what the last step of each said."""
    said = {}
    for machine in made:
        for _, command in machine.provisioners:
            said[machine.name] = roots.check(machine.name, command)
    return said


SETTINGS = (
    "ip -o address; ip route; cd /proc/sys/net/ipv4; grep . ip_forward conf/*/arp_* conf/*/rp_filter"
    " conf/*/*_redirects conf/*/accept_local"
)


def settings(roots: Roots, host: str) -> dict[str, str]:
    return dict.fromkeys(roots.check(host, SETTINGS).splitlines(), "")


def test_up_gives_a_working_lvs(site: tuple[str, Roots]) -> None:
    """Requests are answered and spread; again does no harm; stop puts a server and the director back."""
    mode, roots = site
    made = machines(mode)
    names = [m.name for m in made if m.name not in ("client", "router")]
    before = {name: settings(roots, name) for name in names}
    for _ in range(2):  # as `vagrant up` and, later, `vagrant provision`
        said = up(roots, made)
        assert sorted(said["client"].splitlines()[1:]) in (
            sorted(["rs1", "rs2", "rs3", again]) for again in ("rs1", "rs2", "rs3")
        )
        ask = "for i in 1 2 3 4 5 6 7 8 9; do curl -sf -m 20 http://vip/; done"
        assert Counter(roots.check("client", ask).split()) == {"rs1": 3, "rs2": 3, "rs3": 3}
    method = {"nat": "Masq", "dr": "Route", "tun": "Tunnel"}[mode]
    assert said["director"].count(f" {method} ") == 3
    assert "director: running: " in said["director"]
    assert f"realserver: running: --mode {mode} " in said["rs1"]
    if mode == "tun":
        assert "uvs decap runs" in said["rs1"] or "tunl0 is up" in said["rs1"]

    scripts = {"director": "director", **dict.fromkeys(("rs1", "rs2", "rs3"), "realserver")}
    for name in names:
        script = f"/vagrant/scripts/{scripts[name]}"
        assert roots.check(name, f"{script} stop; {script} status || echo $?").endswith(" stopped\n3\n")
        left = difference(before[name], settings(roots, name))
        routes = {line for line in left if line.startswith(("192.0.2.0/24 via", "198.51.100.0/24 via"))}
        assert left.keys() == routes  # of `common`, which has no stop: the machine's way to the other network
        assert bool(routes) == (mode == "tun")
