"""`uvs lab` as a user without any privilege types it, and what is left when something is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.ordinary import UVS, Command

from uvs.lab import processes


def holders(pids: set[int] | None = None) -> set[int]:
    """PIDs of processes that hold a lab (of those in `pids`)."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (pids is None or int(entry.name) in pids):
            try:
                if b"uvs/lab/holder.py" in (entry / "cmdline").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def gone(pids: set[int], timeout: float = 30) -> bool:
    """Have they all ended?"""
    deadline = time.monotonic() + timeout
    while left := {p for p in pids if Path(f"/proc/{p}/stat").exists() and _alive(p)}:
        if time.monotonic() > deadline:
            print("left:", left)
            return False
        time.sleep(0.02)
    return True


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_demo(uvs: Command) -> None:
    """The whole story, all modes and families, without root and plain in a pipe."""
    done = uvs("lab", "demo")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\033" not in done.stdout
    results = done.stdout.partition("== All together")[2]
    for mode in ("nat", "dr", "tun"):
        for family in (4, 6):
            assert f"{mode} IPv{family}: 12 of 12 answered, rs1 4, rs2 4, rs3 4\n" in results
        assert f"({mode})" in done.stdout
    assert done.stdout.count("IPVS connection entries") == 3
    assert done.stdout.count("the walk of the first packet:\n1  LOCAL_IN") == 3


@pytest.mark.parametrize(("tun_type", "options"), [("gue", "--gue-port 6080"), ("gre", "--proto 47")])
def test_other_tunnels(uvs: Command, tun_type: str, options: str) -> None:
    """Requests of both families through gue and gre, and the lab that stays remembers its kind."""
    done = uvs("lab", "demo", "--mode", "tun", "--tun-type", tun_type)
    assert done.returncode == 0, done.stdout + done.stderr
    results = done.stdout.partition("== All together")[2]
    for family in (4, 6):
        assert f"tun by {tun_type} IPv{family}: 12 of 12 answered, rs1 4, rs2 4, rs3 4\n" in results
    assert uvs("lab", "up", "--mode", "tun", "--tun-type", tun_type, "--servers", "1").returncode == 0
    status = uvs("lab", "status").stdout
    assert f"lab lab: tun by {tun_type} (tunnelling)\n" in status
    assert f": uvs decap {options}\n" in status
    listed = uvs("lab", "exec", "director", "--", "uvsadm", "-Ln", "--tun-info").stdout
    assert listed.count({"gue": "gue:6080:-c", "gre": "gre:-c"}[tun_type]) == 4


def test_a_tunnel_without_mode_tun(uvs: Command) -> None:
    done = uvs("lab", "up", "--tun-type", "gre")
    assert (done.returncode, done.stderr) == (
        2,
        "uvs lab: --mode, --servers, --tun-type: no tunnel 'gre' in mode nat: mode tun has ipip, gue, gre\n",
    )


def test_a_lab_that_stays(uvs: Command, tmp_path: Path) -> None:
    """up, exec, status, down: two labs at once; nothing is left."""
    up = uvs("lab", "up")
    assert up.returncode == 0, up.stderr
    assert "uvs lab exec client -- curl -s http://192.0.2.100/" in up.stdout
    again = uvs("lab", "up")
    assert (again.returncode, again.stderr) == (
        1,
        "uvs lab: lab 'lab' is up already: uvs lab down --name lab, or another --name\n",
    )
    assert uvs("lab", "up", "--name", "second", "--mode", "dr", "--servers", "1", "--empty").returncode == 0

    answers = uvs(
        "lab",
        "exec",
        "--name",
        "lab",
        "client",
        "--",
        "python3",
        "-m",
        "uvs.lab.fetch",
        "-n",
        "3",
        "http://vip/",
    )
    assert sorted(answers.stdout.split()) == ["rs1", "rs2", "rs3"], answers.stderr
    table = uvs("lab", "exec", "--name", "second", "director", "--", "uvsadm", "-Sn")
    assert (table.returncode, table.stdout) == (0, "")
    status = uvs("lab", "status")
    assert status.returncode == 0
    assert "lab lab: nat (NAT)\n" in status.stdout
    assert "lab second: dr (direct routing)\n" in status.stdout
    assert status.stdout.count(f": uvs {' '.join(processes.RUN)}\n") == 2

    pids = {int(p) for p in re.findall(r"pid (\d+):", status.stdout)}
    assert len(pids) == 3 + 1 + 1 + 1
    assert uvs("lab", "down", "--all").stdout == "lab lab is gone\nlab second is gone\n"
    assert gone(pids)
    assert list(tmp_path.iterdir()) == []
    assert uvs("lab", "status").stdout == "no lab is up: uvs lab up\n"


def test_exec(uvs: Command) -> None:
    """Standard streams, exit status, signals and messages of a command on a host."""
    assert uvs("lab", "up", "--servers", "1").returncode == 0
    try:
        rows = [
            # what, arguments, standard input, exit status, output, error
            ("input and output", ["rs1", "--", "tr", "a-z", "A-Z"], "hello", 0, "HELLO", ""),
            (
                "in the host",
                ["rs1", "--", "sh", "-c", "hostname; ls /sys/class/net"],
                "",
                0,
                "rs1\neth0\nlo\n",
                "",
            ),
            ("exit status", ["client", "--", "sh", "-c", "exit 7"], "", 7, "", ""),
            ("killed", ["client", "--", "sh", "-c", "kill -9 $$"], "", 137, "", ""),
            (
                "no such host",
                ["rs2", "--", "true"],
                "",
                2,
                "",
                "uvs lab: no host 'rs2': one of client, director, rs1\n",
            ),
            (
                "no such command",
                ["rs1", "--", "nosuch"],
                "",
                127,
                "",
                "uvs lab exec: no such command: nosuch\n",
            ),
            ("no command", ["rs1"], "", 2, "", "uvs lab: no command: uvs lab exec HOST -- CMD...\n"),
        ]
        for what, arguments, stdin, status, out, err in rows:
            done = uvs("lab", "exec", *arguments, stdin=stdin)
            assert (done.returncode, done.stdout, done.stderr) == (status, out, err), what
    finally:
        uvs("lab", "down")


def test_holder_killed(uvs: Command, tmp_path: Path) -> None:
    """Somebody kills the lab's first process: everything of it is gone, and `down` tidies up."""
    before = holders()
    assert uvs("lab", "up", "--servers", "2").returncode == 0
    pids = {int(p) for p in re.findall(r"pid (\d+):", uvs("lab", "status").stdout)}
    (file,) = tmp_path.glob("uvs/lab/*.json")
    holder = int(re.search(r'"pid": (\d+)', file.read_text())[1])
    assert holder in holders() - before
    os.kill(holder, signal.SIGKILL)
    assert gone(pids | {holder})
    status = uvs("lab", "status")
    assert (status.returncode, status.stdout) == (
        1,
        "lab lab: gone (a crash, or a restart): uvs lab down --name lab\n",
    )
    assert uvs("lab", "exec", "client", "--", "true").stderr == "uvs lab: no lab is up: uvs lab up\n"
    assert uvs("lab", "down").stdout == "lab lab is gone\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT], ids=lambda n: n.name)
def test_demo_interrupted(ordinary: list[str], number: signal.Signals) -> None:
    """Whatever ends the demo ends the lab: no process of it survives."""
    argv = [*ordinary, *UVS, "lab", "demo", "--mode", "dr"]
    # A shell's background job ignores SIGINT, and whatever it starts does: the tests may be of one.
    with subprocess.Popen(
        argv,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as demo:
        assert demo.stdout
        for line in demo.stdout:
            if line.startswith("client$"):  # of IPv4: all of IPv6 is still to come
                break
        family = _descendants(demo.pid)
        assert holders(family)
        os.killpg(demo.pid, number) if number == signal.SIGINT else demo.send_signal(number)
        demo.stdout.read()
        assert demo.wait(60) == (130 if number == signal.SIGINT else -number)
    assert gone(family)


def _descendants(root: int) -> set[int]:
    """All processes below `root`, itself included, those in a PID namespace too."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
    found = {root}
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    return found
