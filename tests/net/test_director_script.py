"""scripts/director under dash and busybox ash, with a director and its table."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.l2 import ARP
from support.hostscripts import SHELLS, Script, difference, settings
from support.neighbour import VIPS, Neighbour
from support.sandbox import ip, sandboxed, sysctl

from uvs.lab.enter import running
from uvs.takeover import announce

TABLE = """\
-A -t 192.0.2.100:80 -s rr
-a -t 192.0.2.100:80 -r 198.51.100.11:80 -m -w 1
-A -t [2001:db8:a::100]:80 -s wlc
"""
INTERFACE = ("--interface", "eth0")


@pytest.mark.parametrize("shell", SHELLS)
@sandboxed
def test_start_status_stop(shell: str, tmp_path: Path) -> None:
    neighbour = Neighbour()
    sysctl("ipv4/conf/eth0/rp_filter", 1)
    sysctl("ipv4/conf/all/accept_redirects", 0)
    sysctl("ipv6/conf/eth0/forwarding", 1)
    (tmp_path / "table").write_text(TABLE)
    options = (*INTERFACE, "--vip", VIPS[0], "--vip", VIPS[1], "--table", str(tmp_path / "table"))
    before = settings()
    script = Script("director", shell, tmp_path)

    def saved() -> str:
        argv = [sys.executable, "-c", "from uvs.adm.cli import save_main; save_main()", "-n"]
        return subprocess.run(argv, env=script.env, capture_output=True, text=True).stdout

    assert script.run("status") == (3, "director: stopped\n", "")
    assert script.run("stop") == (0, "", "")
    assert script.run("start", *options) == (0, "", "")
    during, pid = settings(), (script.state / "run.pid").read_text()
    assert saved() == TABLE
    frames = neighbour.heard(3 * announce.TIMES)
    assert [frame[ARP].op if ARP in frame else "NA" for frame in frames] == [1, 2, "NA"] * announce.TIMES
    kinds = [line.split()[0] for line in script.undone()]
    assert kinds[-4:] == ["program", "table", "address", "address"]  # no VIP without a director
    status, said, wrong = script.run("status")
    assert (status, wrong, "NO" in said) == (0, "", False)
    assert "  yes  net/ipv4/ip_forward = 1\n" in said
    assert "  yes  uvs run runs\n" in said

    ip(f"address delete {VIPS[0]}/32 dev eth0")
    assert script.run("status")[0] == 1
    assert script.run("start", *options) == (0, "", "")
    assert difference(during, settings()) == {}
    assert (script.state / "run.pid").read_text() == pid, "a director that runs goes on"
    for _ in range(2):
        assert script.run("stop") == (0, "", "")
        assert difference(before, settings()) == {}
    assert script.run("status") == (3, "director: stopped\n", "")
    assert not running(int(pid.split()[0]))


@pytest.mark.parametrize("shell", SHELLS)
@sandboxed
def test_half_a_start_is_none(shell: str, tmp_path: Path) -> None:
    """A table that is refused: no director, no VIP, forwarding as it was."""
    Neighbour()
    before = settings()
    script = Script("director", shell, tmp_path)
    (tmp_path / "table").write_text("-A -t 192.0.2.100:80 -s fastest\n")
    options = (*INTERFACE, "--vip", VIPS[0], "--table", str(tmp_path / "table"))
    status, said, wrong = script.run("start", *options)
    assert (status, said) == (1, "")
    assert wrong.startswith(f"director: the services of {tmp_path}/table: "), wrong
    assert wrong.endswith(": all is undone\n")
    assert wrong.count("\n") == 1
    assert difference(before, settings()) == {}

    cut = subprocess.Popen(script.argv("start", *options[:4]), env=script.env)  # killed: stop undoes
    while not (script.state / "run.pid").exists():
        assert cut.poll() is None
    cut.send_signal(signal.SIGKILL)
    cut.wait()
    assert script.run("stop")[0] == 0
    assert difference(before, settings()) == {}


CONFIGURED = """\
[[service]]
address = "192.0.2.100:80"
protocol = "tcp"
[[service.server]]
address = "192.0.2.2:80"
"""


@sandboxed
def test_with_a_configuration(tmp_path: Path) -> None:
    """By a path from here, found from elsewhere; a configuration with a fault starts nothing."""
    Neighbour()
    before = settings()
    os.chdir(tmp_path)
    script = Script("director", "dash", tmp_path)
    options = (*INTERFACE, "--vip", VIPS[0], "--config", "uvs.toml")
    Path("uvs.toml").write_text(CONFIGURED.replace("tcp", "tpc"))
    status, _, wrong = script.run("start", *options)
    assert status == 1
    assert wrong.startswith(f"director: uvs run --config {tmp_path}/uvs.toml: ")
    assert difference(before, settings()) == {}
    Path("uvs.toml").write_text(CONFIGURED)
    assert script.run("start", *options) == (0, "", "")
    os.chdir("/")
    assert f"  yes  uvs run --config {tmp_path}/uvs.toml runs\n" in script.run("status")[1]
    assert script.run("stop") == (0, "", "")
    assert difference(before, settings()) == {}


SYSTEMCTL = """\
echo "$*" >>{folder}/asked
case $* in
"-q cat uvs.service") ;;
"-q is-active uvs.service") [ -e {folder}/active ] ;;
"start uvs.service") touch {folder}/active ;;
"stop uvs.service") rm {folder}/active ;;
*) exit 1 ;;
esac
"""


@pytest.mark.parametrize("shell", SHELLS)
@sandboxed
def test_systemd_is_told_where_it_has_the_unit(shell: str, tmp_path: Path) -> None:
    """A stand-in for systemctl: the unit is started, asked for, and stopped unless it ran before."""
    Neighbour()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/run"], check=True)
    Path("/run/systemd/system").mkdir(parents=True)
    systemctl = tmp_path / "bin/systemctl"
    systemctl.parent.mkdir()
    systemctl.write_text("#!/bin/sh\n" + SYSTEMCTL.format(folder=tmp_path))
    systemctl.chmod(0o755)
    script = Script("director", shell, tmp_path)
    script.env["PATH"] = f"{systemctl.parent}:{script.env['PATH']}"
    before = settings()
    active = tmp_path / "active"
    for runs_before in (False, True):
        active.touch() if runs_before else active.unlink(missing_ok=True)
        (tmp_path / "asked").write_text("")
        assert script.run("start", *INTERFACE, "--vip", VIPS[0]) == (0, "", "")
        assert active.exists()
        assert "  yes  uvs.service runs\n" in script.run("status")[1]
        active.unlink()
        assert script.run("status")[0] == 1
        active.touch()
        assert script.run("stop") == (0, "", "")
        assert active.exists() == runs_before
        changes = [
            line for line in (tmp_path / "asked").read_text().splitlines() if not line.startswith("-q")
        ]
        assert changes == ([] if runs_before else ["start uvs.service", "stop uvs.service"])
        assert difference(before, settings()) == {}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ("", 2, "start, stop or status, not ''"),
        ("start --interface lo", 2, "--vip is missing"),
        ("start --vip 192.0.2.100", 2, "--interface is missing"),
        ("start --vip 192.0.2.100 --interface eth9", 1, "no device eth9"),
        ("start --vip 192.0.2.100 --interface lo --mode fnat", 2, "--mode is nat, dr or tun, not 'fnat'"),
        ("start --vip 192.0.2.100 --interface lo --table /nonexistent", 1, "cannot read /nonexistent"),
        ("start --vip 192.0.2.100 --interface lo --table", 2, "--table takes a value"),
        ("start --vip 192.0.2.100 --interface lo --config none", 1, "cannot read /"),
    ],
)
def test_wrong_uses(shell: str, words: str, status: int, told: str) -> None:
    script = Script("director", shell, Path("/nonexistent"))
    done = subprocess.run(
        [*script.argv("x")[:-3], *words.split()], env=script.env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(f"director: {told}")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("shell", SHELLS)
def test_a_path_with_a_blank_is_refused(shell: str) -> None:
    script = Script("director", shell, Path("/nonexistent"))
    status, said, wrong = script.run("start", "--table", "a table")
    assert (status, said) == (2, "")
    assert wrong.startswith("director: --table takes a path without blanks, not 'a table'")
