"""scripts/realserver under dash and busybox ash:   director 10.0.0.1 v0 ─── eth0 10.0.0.2 real server   (fd00::1, fd00::2)"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.hostscripts import SHELLS, Script, difference, settings
from support.sandbox import Host, addressed, ip, sandboxed, sysctl, wait_for

from uvs.lab.enter import running

VIPS = ("192.0.2.100", "2001:db8:a::100")
WITH_VIPS = tuple(word for vip in VIPS for word in ("--vip", vip))
DR = ("--mode", "dr", *WITH_VIPS)
TUN = ("--mode", "tun", *WITH_VIPS, "--decap")
NAT = ("--mode", "nat", "--dip", "10.0.0.1", "--dip", "fd00::1", "--clients", "192.0.2.0/24",
       "--clients", "2001:db8:a::/64")  # fmt: skip

shells = pytest.mark.parametrize("shell", SHELLS)


def real_server() -> Host:
    """The test itself is the real server; its link's other end."""
    other = Host()
    ip(f"link add eth0 type veth peer name v0 netns {other.netns}")
    addressed("eth0", {4: "10.0.0.2", 6: "fd00::2"})
    with other:
        addressed("v0", {4: "10.0.0.1", 6: "fd00::1"})
    return other


@shells
@pytest.mark.parametrize("options", [DR, TUN, NAT], ids=["dr", "tun", "nat"])
@sandboxed
def test_start_status_stop(shell: str, options: Sequence[str], tmp_path: Path) -> None:
    """Twice is as good as once; a half is seen and mended; stop leaves what start found."""
    real_server()
    sysctl("ipv4/conf/all/rp_filter", 1)
    ip("route add default via 10.0.0.1 metric 100 proto dhcp", "route add 192.0.2.0/24 via 10.0.0.9")
    before = settings()
    script = Script("realserver", shell, tmp_path)
    assert script.run("status") == (3, "realserver: stopped\n", "")
    assert script.run("stop") == (0, "", "")
    for _ in range(2):
        assert script.run("start", *options) == (0, "", "")
        during = settings()
        assert difference(before, during)
    undo = script.undone()
    status, said, wrong = script.run("status")
    assert (status, wrong) == (0, "")
    assert said.startswith(f"realserver: running: --state {script.state} {' '.join(options)}\n")
    assert "NO" not in said
    if options is NAT:
        assert "  yes  192.0.2.0/24 by way of 10.0.0.1\n" in said
        broken = "ip route delete 192.0.2.0/24 via 10.0.0.1"
    else:
        assert "  yes  net/ipv4/conf/all/arp_ignore = 1\n  yes  net/ipv4/conf/all/arp_announce = 2\n" in said
        assert "  yes  192.0.2.100/32 on lo\n  yes  2001:db8:a::100/128 on lo\n" in said
        kinds = [line.split()[0] for line in undo]  # before the VIP is up
        assert kinds.index("address") == len(kinds) - 2
        broken = "ip address delete 192.0.2.100/32 dev lo"
    subprocess.run(broken.split(), check=True)
    status, said, wrong = script.run("status")
    assert (status, wrong, said.count("  NO ")) == (1, "", 1)
    assert said.startswith("realserver: half: ")
    assert script.run("start", *options) == (0, "", "")
    assert difference(during, settings()) == {}
    for _ in range(2):
        assert script.run("stop") == (0, "", "")
        assert difference(before, settings()) == {}
    assert script.run("status") == (3, "realserver: stopped\n", "")


@shells
@sandboxed
def test_the_default_route_only_when_asked(shell: str, tmp_path: Path) -> None:
    """It is Vagrant's or DHCP's; and the network that the clients share with the servers comes back as it was."""
    real_server()
    ip("route add default via 10.0.0.7", "route add default via fd00::7 metric 5")
    before = settings()
    script = Script("realserver", shell, tmp_path)
    assert script.run("start", "--mode", "nat", "--dip", "10.0.0.1", "--clients", "10.0.0.0/24")[0] == 0
    told = subprocess.check_output(["ip", "route"], text=True)
    assert told.startswith("default via 10.0.0.7 ")
    assert "10.0.0.0/24 via 10.0.0.1 dev eth0" in told
    assert script.run("start", *NAT, "--default-route")[0] == 0  # other arguments: from the beginning
    told = subprocess.check_output(["ip", "route"], text=True)
    assert told.startswith("default via 10.0.0.1 ")
    assert "10.0.0.0/24 dev eth0" in told
    assert script.run("stop")[0] == 0
    assert difference(before, settings()) == {}


def fake(folder: Path, program: str, text: str) -> str:
    """A program before all others in PATH."""
    path = folder / "bin" / program
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path.parent)


@shells
@sandboxed
def test_half_a_start_is_none(shell: str, tmp_path: Path) -> None:
    real_server()
    before = settings()
    script = Script("realserver", shell, tmp_path)
    usual = script.env["PATH"]
    script.env["PATH"] = fake(tmp_path, "uvs", "echo the disk is on fire; exit 1") + ":" + usual
    status, said, wrong = script.run("start", *TUN)
    assert (status, said) == (1, "")
    assert wrong == "realserver: uvs decap: the disk is on fire: all is undone\n"
    assert difference(before, settings()) == {}
    status, _, wrong = script.run("start", *NAT, "--dip", "10.9.9.9")
    assert status == 1
    assert wrong.startswith("realserver: 192.0.2.0/24 by way of 10.9.9.9: ")
    assert difference(before, settings()) == {}
    assert not script.state.exists()

    # Interrupted while it waits, it undoes; killed, the next stop does.
    script.env["PATH"] = fake(tmp_path, "uvs", "exec sleep 1000") + ":" + usual
    for number in (signal.SIGTERM, signal.SIGKILL):
        begun = subprocess.Popen(script.argv("start", *TUN), env=script.env)
        wait_for(lambda: (script.state / "decap.pid").exists(), "it waits for the program")
        pid = int(wait_for(lambda: (script.state / "decap.pid").read_text(), "its number").split()[0])
        begun.send_signal(number)
        assert begun.wait(60) != 0
        if number == signal.SIGKILL:
            assert difference(before, settings())
            assert script.run("status")[0] == 1
            assert script.run("stop")[0] == 0
        assert difference(before, settings()) == {}
        assert not running(pid)


@sandboxed
def test_what_others_did_since_stays(tmp_path: Path) -> None:
    """What was there before start, and what somebody changed after it, are not ours to undo."""
    real_server()
    ip("address add 192.0.2.100/32 dev lo")
    sysctl("ipv4/conf/all/arp_ignore", 1)
    script = Script("realserver", "dash", tmp_path)
    assert script.run("start", *DR)[0] == 0
    sysctl("ipv4/conf/lo/arp_announce", 1)
    assert script.run("stop")[0] == 0
    after = settings()
    assert after["ipv4/conf/all/arp_ignore"] == "1"
    assert after["ipv4/conf/lo/arp_announce"] == "1"
    assert after["ipv4/conf/all/arp_announce"] == "0"
    assert any("192.0.2.100/32" in key for key in after)
    assert not any("2001:db8:a::100" in key for key in after)


@shells
@sandboxed
def test_a_folder_that_others_use_too_keeps_their_files(shell: str, tmp_path: Path) -> None:
    real_server()
    script = Script("realserver", shell, tmp_path)
    script.state.mkdir()
    (script.state / "theirs").write_text("kept")
    for action in (("stop",), ("start", *NAT), ("stop",)):
        assert script.run(*action) == (0, "", "")
    assert [path.name for path in script.state.iterdir()] == ["theirs"]
    assert script.run("status")[0] == 3


@shells
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("", 2, "start, stop or status, not ''"),
        ("dance", 2, "start, stop or status, not 'dance'"),
        ("start", 2, "--mode is nat, dr or tun, not ''"),
        ("start --mode fnat", 2, "--mode is nat, dr or tun, not 'fnat'"),
        ("start --mode dr", 2, "dr needs --vip"),
        ("start --mode nat --vip 192.0.2.100", 2, "nat needs --dip"),
        ("start --mode nat --dip 10.0.0.1", 2, "nat needs --clients NET, or --default-route"),
        ("start --mode dr --vip", 2, "--vip takes a value"),
        ("start --mode dr --vip here", 2, "--vip takes an address, not 'here'"),
        ("start --mode dr --vip 192.0.2.100/24", 2, "--vip takes an address, not '192.0.2.100/24'"),
        ("start --mode dr --vip 192.0.2.100 --dev eth9", 1, "no device eth9"),
        ("start --force", 2, "no option --force"),
    ],
)
def test_wrong_uses(shell: str, words: str, status: int, told: str) -> None:
    script = Script("realserver", shell, Path("/nonexistent"))
    done = subprocess.run(
        [*script.argv("x")[:-3], *words.split()], env=script.env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(f"realserver: {told}")
    assert done.stderr.count("\n") == 1
