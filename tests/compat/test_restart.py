"""A director that goes and comes back under programs that ask: they wait for it, within limits, and are told the truth."""

from __future__ import annotations

import errno
import threading
import time
from pathlib import Path

import pytest
from support.sandbox import wait_for

from uvs.control.client import Client

# IPv6: when netlink fails ipvsadm tries socket options, which know IPv4 alone.
ADD = "ipvsadm -A -t [2001:db8::1]:80 -s rr"
LONG = "100"  # a director on a busy machine takes its time to start
ASK = """
import json, socket, struct, sys, time
def genl(cmd, name=None, type=16, flags=5, seq=7):
    attr = b"" if name is None else struct.pack("HH", 5 + len(name), 2) + name + bytes(4 - len(name) % 4)
    return struct.pack("IHHIIBBH", 20 + len(attr), type, flags, seq, 0, cmd, 1, 0) + attr
def kind(data):
    length, type = struct.unpack_from("IH", data)
    return struct.unpack_from("i", data, 16)[0] if type == 2 else type
s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
s.send(genl(3, b"IPVS")); s.recv(65536); s.recv(65536)
def ask(seq):
    s.send(genl(15, type=1101, seq=seq))
    return kind(s.recv(65536))
"""


def services(director) -> int:
    with Client(str(director.socket)) as client:
        return len(list(client.services()))


def flagged(flag: Path) -> None:
    wait_for(flag.exists, "the program has come so far", 100)


def connections(director) -> int:
    """Sockets of the director: the one that listens, and what is connected to it, taken up or not."""
    lines = Path("/proc/net/unix").read_text().splitlines()
    return sum(line.endswith(f" {director.socket}") for line in lines)


@pytest.mark.parametrize(
    "words",
    [
        ADD,
        f"echo '{ADD.partition(' ')[2]}' | ipvsadm -R",
        f"{ADD} && cat /proc/net/ip_vs",
        f"sysctl -q -w net.ipv4.vs.conntrack=1 && {ADD}",
    ],
)
def test_a_change_in_the_gap_waits(words, under, director):
    """A script's ipvsadm while the director is upgraded."""
    flag = director.directory / "flag"

    def back() -> None:
        flagged(flag)
        director.kill()
        director.start()

    thread = threading.Thread(target=back)
    thread.start()
    ran = under(
        "sh", "-c", f"kill -9 {director.process.pid}; touch {flag}; {words}", timeout_s=LONG, restart_s=LONG
    )
    thread.join()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert services(director) == 1


def test_uvs_exec_waits_as_well(under, director):
    director.kill()
    ran = under("true", restart_s="0.1")
    assert (ran.returncode, "no director listens" in ran.stderr) == (1, True)
    thread = threading.Thread(target=director.start)
    thread.start()
    ran = under("sh", "-c", ADD, timeout_s=LONG, restart_s=LONG)
    thread.join()
    assert (ran.returncode, ran.stderr) == (0, "")


@pytest.mark.parametrize("words", [ADD, f"cat /proc/net/ip_vs && {ADD}"])
def test_what_a_director_left_unread_is_asked_again(words, under, director):
    """It stands still when the request comes, and is killed."""
    flag = director.directory / "flag"

    def back() -> None:
        flagged(flag)
        wait_for(lambda: connections(director) > 1, "the program has asked", 100)
        director.kill()
        director.start()

    thread = threading.Thread(target=back)
    thread.start()
    freeze = f"kill -STOP {director.process.pid}; touch {flag}; {words}"
    # uvs exec's own connection must be gone before it stands still.
    ran = under("sh", "-c", f"ipvsadm -Ln >/dev/null; {freeze}", timeout_s=LONG, restart_s=LONG)
    thread.join()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert services(director) == 1


def test_a_connection_that_stays_is_mended(json_of, director):
    """As keepalived has: one socket for the whole life of the program. It does not notice."""
    flag = director.directory / "flag"
    code = f"""{ASK}
told = [ask(8)] + [kind(s.recv(65536))]
for seq in 10, 20:
    open({str(flag)!r}, "w").close()
    time.sleep(0.2)
    told += [ask(seq), kind(s.recv(65536))]
print(json.dumps(told))
"""

    def back() -> None:
        for _ in range(2):
            flagged(flag)
            director.kill()
            flag.unlink()
            director.start()

    thread = threading.Thread(target=back)
    thread.start()
    told = json_of(code, timeout_s=LONG, restart_s=LONG)
    thread.join()
    assert told == [1101, 0] * 3


def test_one_that_stays_away_is_waited_for_once(json_of, director):
    """Many requests, as of a keepalived that is stopped, do not wait for it again and again."""
    code = f"""{ASK}
import os
os.kill({director.process.pid}, 9)
begin = time.monotonic()
told = [ask(8)]
first = time.monotonic() - begin
told += [ask(seq) for seq in range(9, 109)]
print(json.dumps([first, time.monotonic() - begin, told]))
"""
    first, whole, told = json_of(code, restart_s="1")
    assert told == [-errno.ENODEV] * 101
    assert first >= 1
    assert whole < 50  # of 101


def test_no_wait_if_so_wished(under, director):
    begin = time.monotonic()
    ran = under("sh", "-c", f"kill -9 {director.process.pid}; {ADD}", restart_s="0")
    assert ran.returncode != 0
    assert time.monotonic() - begin < 60
