"""The director's /proc under `uvs exec`, however a program comes to it: directories listed, relative paths."""

from __future__ import annotations

import sys

import pytest

from uvs.control.client import Client

KNOBS = "/proc/sys/net/ipv4/vs"
TEXTS = ["ip_vs", "ip_vs_app", "ip_vs_conn", "ip_vs_conn_sync", "ip_vs_stats", "ip_vs_stats_percpu"]
PYTHON = """
import json, os
net, vs = (os.open(name, os.O_RDONLY | os.O_DIRECTORY) for name in ("/proc/net", "/proc/sys/net/ipv4/vs"))
copy = os.dup(vs)
def read(name, dir):
    return os.read(os.open(name, os.O_RDONLY, dir_fd=dir), 100).decode()
def refused(call, *args, **options):
    try: call(*args, **options)
    except OSError as e: return e.errno
print(json.dumps([
    read("ip_vs", net)[:10], read("./ip_vs", net)[:10], oct(os.stat("ip_vs", dir_fd=net).st_mode),
    read("conntrack", vs), read("conntrack", copy), read("vs//conntrack", os.open("/proc/sys/net/ipv4", os.O_RDONLY)),
    os.path.isdir("/proc/sys/net/ipv4/vs/"), os.path.isfile("/proc/sys/net/ipv4/vs/conntrack"),
    os.listdir(vs) == os.listdir("/proc/sys/net/ipv4/vs") != [],
    refused(os.open, "nosuch", os.O_RDONLY, dir_fd=vs), refused(os.open, "/proc/sys/net/ipv4/vs", os.O_RDWR),
    refused(os.open, "conntrack", os.O_RDONLY | os.O_DIRECTORY, dir_fd=vs),
    sorted(e.name for e in os.scandir("/proc/net") if e.name.startswith("ip_vs") and e.is_file()),
    "lo" in os.listdir("/proc/sys/net/ipv4/conf"), "conntrack" in os.listdir("/proc/sys/net/ipv4/conf"),
]))
"""


def knobs(director):
    with Client(str(director.socket)) as client:
        return sorted(client.sysctls())


LISTERS = {
    "ls": ["ls", KNOBS],
    "ls, with a slash": ["ls", KNOBS + "/"],
    "a shell": ["sh", "-c", f"for f in {KNOBS}/*; do echo ${{f##*/}}; done"],
    "bash": ["bash", "-c", "cd /proc/sys/net/ipv4; for f in vs/*; do [[ -f $f ]] && echo ${f#vs/}; done"],
    "find": ["find", KNOBS, "-type", "f", "-printf", "%f\\n"],
    "perl": ["perl", "-e", f'print map {{ s,.*/,,r . "\\n" }} glob "{KNOBS}/*"'],
    "sysctl": ["sh", "-c", r"sysctl -aN --pattern '^net\.ipv4\.vs\.' | cut -d. -f4"],
    "python": [sys.executable, "-c", f"import os; print(*os.listdir('{KNOBS}'), sep='\\n')"],
}


@pytest.mark.parametrize("how", LISTERS)
def test_the_directory_of_sysctls_is_listed(how, under, director):
    ran = under(*LISTERS[how])
    assert (sorted(ran.stdout.split()), ran.stderr) == (knobs(director), "")


def test_values_of_all(under, director):
    """As people look at them."""
    ran = under("sysctl", "-a", "--pattern", r"^net\.ipv4\.vs\.")
    assert len(ran.stdout.splitlines()) == len(knobs(director))
    assert "net.ipv4.vs.sync_threshold = 3\t50\n" in ran.stdout
    assert f"{KNOBS}/conn_reuse_mode:1\n" in under("grep", "-r", ".", KNOBS).stdout


@pytest.mark.parametrize(
    "directory", ["/proc/net", "/proc/self/net", "/proc/thread-self/net", "/proc/1/net/."]
)
def test_texts_are_listed(directory, under):
    names = under("ls", directory).stdout.split()
    assert [name for name in names if name.startswith("ip_vs")] == TEXTS
    assert "dev" in names


def test_long_listings(under):
    """ls -l asks for more: of each file, of the directory."""
    ran = under("ls", "-lL", f"{KNOBS}/conntrack", "/proc/net/ip_vs")
    assert [line[:10] for line in ran.stdout.splitlines()] == ["-r--r--r--", "-rw-r--r--"]
    assert ran.stderr == ""
    ran = under("ls", "-ld", KNOBS)
    assert (ran.stdout[:10], ran.stderr) == ("dr-xr-xr-x", "")
    assert "vs" in under("ls", "/proc/sys/net/ipv4").stdout.split()


def test_relative_paths(under):
    told = under(
        "sh", "-c", "cd /proc/net && head -n 1 ip_vs && test -r ./ip_vs_conn && stat -c %A ip_vs_app"
    )
    assert (told.stdout, told.stderr) == ("IP Virtual Server version 1.2.1 (size=4096)\n-r--r--r--\n", "")
    told = under("sh", "-c", "cd /proc/sys/net/ipv4 && echo 1 >vs/conntrack && cat vs/conntrack")
    assert (told.stdout, told.stderr) == ("1\n", "")
    assert "No such file" in under("cat", "ip_vs", cwd="/proc/sys").stderr


def test_relative_to_a_descriptor(under, json_of):
    told = json_of(PYTHON)
    assert told == [
        *("IP Virtual", "IP Virtual", "0o100444", "0\n", "0\n", "0\n"),
        *(True, True, True, 2, 21, 20, TEXTS, True, False),
    ]


def test_without_a_director(director, under):
    """The directory is there; it cannot be listed, and nothing hangs."""
    gone = f"kill -9 {director.process.pid}; sleep 0.1; ls {KNOBS}; ls /proc/net"
    ran = under("sh", "-c", gone, restart_s="0.1")
    assert ran.stderr.startswith("ls: cannot open directory")
    assert "ip_vs" in ran.stdout.split()
