"""`uvs director`: the host's settings before, between and after; what a neighbour hears."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.l2 import ARP
from support.hostscripts import difference, settings
from support.neighbour import VIPS, Neighbour
from support.sandbox import ip, sandboxed, sysctl

from uvs.takeover import announce, changes, plan, remembered

UP = ("up", "--interface", "eth0", "--vip", VIPS[0], "--vip", VIPS[1])


def uvs(folder: Path, *words: str) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "uvs.cli", "director", *words],
        env={**os.environ, "UVS_STATE_DIR": str(folder / "state")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr


@sandboxed
def test_up_status_down(tmp_path: Path) -> None:
    neighbour = Neighbour()
    sysctl("ipv4/conf/all/rp_filter", 1)
    sysctl("ipv4/conf/all/accept_redirects", 0)
    sysctl("ipv6/conf/eth0/forwarding", 1)
    before = settings()
    assert uvs(tmp_path, "status") == (3, "down\n", "")
    assert uvs(tmp_path, "down") == (0, "", "")
    for _ in range(2):
        assert uvs(tmp_path, *UP) == (0, f"up: {VIPS[0]}, {VIPS[1]} on eth0, announced\n", "")
    during = settings()
    assert difference(before, during).keys() >= {
        "ipv4/ip_forward", "ipv4/conf/eth0/rp_filter", "ipv4/conf/all/send_redirects",
        "ipv4/conf/eth0/send_redirects", "ipv6/conf/all/forwarding", "ipv6/conf/eth0/accept_ra",
    }  # fmt: skip
    frames = neighbour.heard(3 * announce.TIMES)
    operations = [frame[ARP].op if ARP in frame else "NA" for frame in frames]
    assert operations == [1, 2, "NA"] * announce.TIMES
    own = subprocess.check_output(["ip", "-o", "link", "show", "dev", "eth0"], text=True)
    assert {frame.src for frame in frames} == {own.partition("link/ether ")[2].split()[0]}

    status, said, _ = uvs(tmp_path, "status")
    assert (status, said.splitlines()[0]) == (0, f"up: {VIPS[0]}, {VIPS[1]} on eth0")
    sysctl("ipv4/conf/eth0/send_redirects", 1)
    ip(f"address delete {VIPS[0]}/32 dev eth0")
    status, said, _ = uvs(tmp_path, "status")
    assert (status, said.splitlines()[0]) == (1, f"half: {VIPS[0]}, {VIPS[1]} on eth0")
    assert said.count("  NO   ") == 2
    assert uvs(tmp_path, *UP)[0] == 0
    assert difference(during, settings()) == {}
    for _ in range(2):
        assert uvs(tmp_path, "down") == (0, "", "")
        assert difference(before, settings()) == {}
    assert uvs(tmp_path, "status") == (3, "down\n", "")


@sandboxed
def test_another_request_begins_from_what_was_there(tmp_path: Path) -> None:
    """And what was there already, or was changed by others since, is not undone."""
    neighbour = Neighbour()
    ip(f"address add {VIPS[0]}/32 dev eth0")
    before = settings()
    assert uvs(tmp_path, *UP)[0] == 0
    assert uvs(tmp_path, *UP[:-2], "--no-forward")[0] == 0
    assert difference(before, settings()).keys() == {"ipv4/conf/all/accept_local"}
    assert len(neighbour.heard(5 * announce.TIMES)) == 5 * announce.TIMES
    sysctl("ipv4/ip_forward", 1)
    assert uvs(tmp_path, "down")[0] == 0
    assert settings()["ipv4/ip_forward"] == "1"
    assert any(f"{VIPS[0]}/32" in key for key in settings())


@sandboxed
def test_half_an_up_is_none(tmp_path: Path) -> None:
    """A VIP that the kernel refuses: what was done before is undone. Killed in the middle, `down` undoes."""
    Neighbour()
    sysctl("ipv6/conf/eth0/disable_ipv6", 1)
    before = settings()
    status, said, wrong = uvs(tmp_path, *UP)
    assert (status, said) == (1, "")
    assert wrong.startswith(f"uvs director: {VIPS[1]} on eth0: Permission denied: "), wrong
    assert wrong.endswith(": nothing is changed\n"), wrong
    assert difference(before, settings()) == {}
    assert uvs(tmp_path, "status")[0] == 3

    asked = plan.Request("eth0", VIPS)
    host = plan.Host(changes.read, lambda conf: os.listdir(f"/proc/sys/{conf}"), lambda _: False)
    half = remembered.save(tmp_path / "state", asked, plan.plan(asked, host))
    for change in half.changes[: len(half.changes) // 2 + 4]:
        change.make()
    assert difference(before, settings())
    assert uvs(tmp_path, "status")[0] == 1
    assert uvs(tmp_path, "down")[0] == 0
    assert difference(before, settings()) == {}


@sandboxed
def test_what_the_configuration_says(tmp_path: Path) -> None:
    """Interface and VIPs; forwarding only where a server is behind NAT, or nothing is said of servers."""
    Neighbour()
    file = tmp_path / "uvs.toml"
    director = f'[director]\ninterface = "eth0"\nvips = ["{VIPS[0]}"]\n'
    service = f"""
[[service]]
address = "{VIPS[0]}:80"
protocol = "tcp"
method = "dr"
[[service.server]]
address = "192.0.2.2:80"
"""
    by_nat = '[[service.server]]\naddress = "192.0.2.3:80"\nmethod = "nat"\n'
    before = settings()
    for text, forwards in ((director, "1"), (director + service, "0"), (director + service + by_nat, "1")):
        file.write_text(text)
        assert uvs(tmp_path, "up", "--config", str(file)) == (0, f"up: {VIPS[0]} on eth0, announced\n", "")
        assert settings()["ipv4/ip_forward"] == forwards
    assert uvs(tmp_path, "down")[0] == 0
    assert difference(before, settings()) == {}


@sandboxed
def test_announce_again(tmp_path: Path) -> None:
    neighbour = Neighbour()
    assert uvs(tmp_path, "announce", "--interface", "eth0", "--vip", VIPS[0]) == (0, "", "")
    assert [frame[ARP].op for frame in neighbour.heard(2 * announce.TIMES)] == [1, 2] * announce.TIMES
    told = "lo has no neighbours that could be told\n"
    assert uvs(tmp_path, "announce", "--interface", "lo", "--vip", VIPS[0]) == (0, told, "")
    ip("link set eth0 down")
    status, _, wrong = uvs(tmp_path, "announce", "--interface", "eth0", "--vip", VIPS[0])
    assert (status, wrong) == (
        1,
        "uvs director: cannot announce on eth0: Network is down: is it up, and are you root?\n",
    )


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("up",), 2, "say --interface and --vip, or --config"),
        (("up", "--interface", "lo"), 2, "say --interface and --vip, or --config"),
        (("up", "--interface", "lo", "--vip", "192.0.2.100/32"), 2, "192.0.2.100/32 is no address"),
        (
            ("up", "--interface", "lo", "--vip", "224.0.0.1"),
            2,
            "224.0.0.1 is no address that a host can have",
        ),
        (("up", "--interface", "lo", "--config", "f"), 2, "--config, or --interface and --vip, but not both"),
        (("up", "--config", "/nonexistent"), 1, "/nonexistent: it cannot be read: No such file or directory"),
        (("up", "--config", "/dev/null"), 1, "/dev/null: it is no regular file"),
        (("up", "--interface", "eth77", "--vip", "192.0.2.100"), 1, "no interface eth77: this host has "),
        (("announce", "--vip", "192.0.2.100"), 2, "say --interface and --vip"),
    ],
)
def test_wrong_uses(words: tuple[str, ...], status: int, told: str, tmp_path: Path) -> None:
    done = uvs(tmp_path, *words)
    assert (done[0], done[1]) == (status, "")
    assert done[2].startswith(f"uvs director: {told}")
    assert done[2].count("\n") == 1


def test_a_configuration_without_the_hosts_part(tmp_path: Path) -> None:
    file = tmp_path / "uvs.toml"
    file.write_text("")
    status, out, said = uvs(tmp_path, "up", "--config", str(file))
    told = "no interface and vips in [director]: add it, or say --interface and --vip"
    assert (status, out, said) == (1, "", f"uvs director: {file}: {told}\n")
