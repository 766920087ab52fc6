"""The Vagrantfile: Vagrant accepts it, and its machines are those of the labs (uvs/lab/topology.py)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support.vagrantfile import ROOT, Machine, machines

from uvs.lab.topology import MODES, VIP, Topology, topology

PROVIDERS = ("libvirt", "virtualbox")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("provider", PROVIDERS)
def test_vagrant_accepts_it(mode: str, provider: str, tmp_path: Path) -> None:
    """`vagrant validate`; of VirtualBox, which Debian has not, a stub says its version."""
    stub = tmp_path / "VBoxManage"
    stub.write_text("#!/bin/sh\necho 7.0.14r161095\n")
    stub.chmod(0o755)
    own = {
        "HOME": str(tmp_path),
        "VAGRANT_HOME": str(tmp_path / "home"),
        "VAGRANT_DOTFILE_PATH": str(tmp_path / "dot"),
        "VAGRANT_CHECKPOINT_DISABLE": "1",
        "VAGRANT_DEFAULT_PROVIDER": provider,
        "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
        "MODE": mode,
    }
    done = subprocess.run(
        ["vagrant", "validate"], cwd=ROOT, env=os.environ | own, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("Vagrantfile validated successfully.\n")


def test_another_mode_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        ["ruby", "-c", "Vagrantfile"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "Syntax OK\n"
    with pytest.raises(AssertionError, match="MODE=fnat: it is nat, dr or tun"):
        machines("fnat")
    with pytest.raises(AssertionError, match="SERVERS=12: from 1 to 9"):
        machines("nat", SERVERS="12")


def v4(lab: Topology, name: str) -> list[tuple[str, str]]:
    """Segment and address with prefix length, the VIP left out."""
    return [
        (i.segment, a)
        for i in lab[name].interfaces
        if i.segment
        for a in i.addresses
        if ":" not in a and VIP[4] not in a
    ]


@pytest.mark.parametrize("servers", [3, 9])
@pytest.mark.parametrize("mode", MODES)
def test_its_machines_are_those_of_the_lab(mode: str, servers: int) -> None:
    lab, made = topology(mode, servers), machines(mode, SERVERS=str(servers))
    assert sorted(m.name for m in made) == sorted(h.name for h in lab.hosts)
    assert [m.name for m in made][-2:] == ["director", "client"]  # then all of it answers
    for machine in made:
        assert machine.told["hostname"] == machine.name
        assert set(machine.providers) == set(PROVIDERS)
        networks = [(n["virtualbox__intnet"], f"{n['ip']}/24") for n in machine.networks]
        assert networks == [(f"uvs-{segment}", address) for segment, address in v4(lab, machine.name)]
        for network in machine.networks:
            assert network["type"] == "private_network"
            assert network["libvirt__network_name"] == network["virtualbox__intnet"]
            assert network["netmask"] == "255.255.255.0"


def options(machine: Machine, step: str) -> list[str]:
    """A provisioner's words after the script's name."""
    (command,) = [command for name, command in machine.provisioners if name == step]
    script, *words = command.split()
    assert script == f"/vagrant/scripts/provision/{step}"
    assert os.access(ROOT / "scripts/provision" / step, os.X_OK)
    return words


@pytest.mark.parametrize("mode", MODES)
def test_its_provisioners_are_told_what_the_lab_says(mode: str) -> None:
    """Gateways, the way back of NAT, names: again from uvs/lab/topology.py."""
    lab = topology(mode)
    networks = {"A": "192.0.2.0/24", "B": "198.51.100.0/24"}
    for machine in machines(mode):
        host = lab[machine.name]
        role = "realserver" if host in lab.servers else machine.name
        assert [name for name, _ in machine.provisioners] == ["common", role]
        assert {p["run"] for p in machine.told["provisioners"]} == {"always"}
        first, *common = options(machine, "common")
        assert first == role
        names = [f"{h.name}={h.address(4)}" for h in lab.hosts] + [f"vip={VIP[4]}"]
        gateways = [g for g in host.gateways if ":" not in g]
        own = options(machine, role)
        if mode == "nat" and role == "realserver":
            assert own[own.index("--dip") :] == ["--dip", *gateways, "--clients", networks["A"]]
            gateways = []
        routes = [
            word
            for gateway in gateways
            for segment, network in networks.items()
            if segment not in host.segments
            for word in ("--route", f"{network}={gateway}")
        ]
        assert common == [*routes, *names]
        if role == "director":
            servers = [word for rs in lab.servers for word in ("--server", rs.address(4))]
            assert own == ["--mode", mode, "--vip", VIP[4], "--address", host.address(4), *servers]
