"""`uvs run`: what it refuses and how it says so, what it leaves behind, what it does after a crash."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess

import pytest
from support.director import UVS, Director, directors
from support.sandbox import sandboxed, sysctl, wait_for

PATIENCE_S = 60.0


def rules() -> str:
    """All netfilter state of this namespace, as text; counters left out."""
    saved = [run("iptables-save"), run("ip6tables-save"), run("ipset", "save")]
    lines = [
        re.sub(r" (initval|hashsize) \S+| \[\d+:\d+\]", "", line)
        for text in saved
        for line in text.splitlines()
    ]
    return "\n".join(line for line in lines if not line.startswith("#"))


def run(*command: str, stdin: str = "") -> str:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def ours() -> list[str]:
    return [line for line in rules().splitlines() if "uvs" in line.lower()]


def one_line(said: str, *words: str) -> None:
    lines = said.splitlines()
    assert len(lines) == 1, said
    for word in words:
        assert word in lines[0], said


# ---------------------------------------------------------------- what it refuses


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--queue-num", "70000"], ["--queue-num", "0..6553"]),
        (["--conn-max", "0"], ["--conn-max"]),
        (["--conn-max", "99999999999"], ["--conn-max", "268435456"]),
    ],
)
def test_wrong_use(arguments, words):
    done = subprocess.run([*UVS, "run", *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    one_line(done.stderr, *words)


@pytest.mark.parametrize("arguments", [["run", "--bogus"], ["nonsense"], ["run", "--queue-num", "x"]])
def test_wrong_command_lines(arguments):
    done = subprocess.run([*UVS, *arguments], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2
    one_line(done.stderr, "--help")


@sandboxed
def test_no_privilege():
    with directors() as where:
        command = [*UVS, "run", "--socket", str(where / "s"), "--state-dir", str(where / "state")]
        without = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", *command]
        done = subprocess.run(without, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 1
        one_line(done.stderr, "uvs run: ", "root", "uvs lab")
        assert not (where / "s").exists()
    assert ours() == []


@sandboxed
def test_taken_queue_socket_and_arena():
    with directors() as where:
        (where / "a").mkdir()
        (where / "b").mkdir()
        first = Director(where / "a").ready()
        before = rules()
        try:
            status, said = Director(where / "b").ended()
            assert status == 1
            one_line(said, "queue 0", "--queue-num")
            status, said = Director(where / "b", "--queue-num", "4", "--socket", str(first.socket)).ended()
            assert status == 1
            one_line(said, "another director listens", "--socket")
            status, said = Director(where / "b", "--queue-num", "4", "--state-dir", str(first.state)).ended()
            assert status == 1
            one_line(said, "in use by another director")
            assert rules() == before
            assert "IP Virtual Server" in first.adm("-Ln")
        finally:
            first.stop()


@sandboxed
@pytest.mark.parametrize("descriptors", [30, 60, 100])
def test_too_few_descriptors(descriptors):
    """One line says what to do, wherever they end; nothing is left behind."""
    before = rules()
    with directors() as where:
        director = Director(
            where, "--driver", "native", "--queues", "16", limits=[(resource.RLIMIT_NOFILE, descriptors)]
        )
        code, said = director.ended()
        assert code == 1
        one_line(said, "Too many open files", "--queues")
    assert rules() == before


@sandboxed
def test_without_ipv6():
    sysctl("ipv6/conf/all/disable_ipv6", 1)
    with directors() as where:
        director = Director(where).ready()
        try:
            director.adm("-A", "-t", "192.0.2.1:80", "-s", "rr")
        finally:
            director.stop()


# ---------------------------------------------------------------- what it leaves behind


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_and_no_rule_of_the_user_is_touched(sig):
    @sandboxed
    def body():
        run("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "ACCEPT")
        run("iptables", "-t", "security", "-A", "INPUT", "-p", "tcp", "--dport", "23", "-j", "ACCEPT")
        run("ipset", "create", "mine", "hash:ip")
        before = rules()
        with directors() as where:
            director = Director(where).ready()
            director.adm("-A", "-t", "192.0.2.1:80", "-s", "rr")
            director.adm("-a", "-t", "192.0.2.1:80", "-r", "192.0.2.2:80", "-m")
            assert ours()
            director.stop(sig)
            assert director.process.returncode == 0
            assert not director.socket.exists()
        # empty builtin tables may stay behind: no rule and no set does
        kept = [line for line in rules().splitlines() if line.startswith(("-A", "create", "add"))]
        assert kept == [line for line in before.splitlines() if line.startswith(("-A", "create", "add"))]
        assert ours() == []

    body()


@sandboxed
def test_rules_that_were_flushed_come_back():
    with directors() as where:
        director = Director(where).ready()
        try:
            director.adm("-A", "-t", "192.0.2.1:80", "-s", "rr")
            before = set(ours())
            assert "put back" not in director.said
            empty = "*security\nCOMMIT\n*raw\nCOMMIT\n"  # all at once: the director looks every second
            run("iptables-restore", "-w", "10", stdin=empty)
            wait_for(lambda: "put back" in director.said, "the log line")
            wait_for(lambda: set(ours()) == before, "the rules are back")
        finally:
            director.stop()


@sandboxed
@pytest.mark.parametrize("vip", ["192.0.2.1", "fd00::1"])
def test_a_client_on_the_director_is_refused_when_there_is_no_server(vip):
    """What it gets is an ICMP error of the director to itself (reference: connect() is refused)."""
    subprocess.run(["ip", "address", "add", vip, "dev", "lo"], check=True)
    with directors() as where:
        director = Director(where).ready()
        try:
            director.adm("-A", "-t", f"[{vip}]:80" if ":" in vip else f"{vip}:80", "-s", "rr")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((vip, 80), timeout=PATIENCE_S)
        finally:
            director.stop()


@sandboxed
def test_after_a_crash_everything_is_taken_over():
    with directors() as where:
        director = Director(where).ready()
        director.adm("-A", "-t", "192.0.2.1:80", "-s", "wlc")
        for server in (2, 3, 4):
            director.adm("-a", "-t", "192.0.2.1:80", "-r", f"192.0.2.{server}:80", "-g", "-w", str(server))
        director.adm("--set", "100", "0", "50")
        listing, timeouts, before = (
            director.adm("-Ln", "--nosort"),
            director.adm("-Ln", "--timeout"),
            set(ours()),
        )
        director.stop(signal.SIGKILL)
        assert set(ours()) == before, "fail closed: the rules stay"
        director = Director(where).ready()
        try:
            assert "1 services" in director.said
            assert director.adm("-Ln", "--nosort") == listing
            assert director.adm("-Ln", "--timeout") == timeouts
            assert set(ours()) == before
        finally:
            director.stop()
        assert ours() == []


@sandboxed
def test_ready_is_told_to_the_service_manager():
    with directors() as where:
        path = where / "notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(path))
            manager.settimeout(PATIENCE_S)
            os.environ["NOTIFY_SOCKET"] = str(path)
            director = Director(where)
            assert manager.recv(100) == b"READY=1"
            director.stop()
            assert manager.recv(100) == b"STOPPING=1"
