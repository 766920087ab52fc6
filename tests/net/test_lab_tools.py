"""What is done with a lab that stands: packets sent, servers stopped, modes changed, links made bad."""

from __future__ import annotations

import json
import subprocess

from support.ordinary import Command

SYN = 'IP(src="192.0.2.2", dst="192.0.2.100")/TCP(sport=1024, dport=80, flags="S")'
DATAGRAM = 'IPv6(src="2001:db8:a::2", dst="2001:db8:a::100")/UDP(sport=1024, dport=7)/b"hello"'
WAIT = ("--wait", "60")  # for what must come: it ends when it is there


def told(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    """Exit status and message of a command that failed."""
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_send(uvs: Command) -> None:
    """Crafted packets of both families take their walk; a server's answer takes its own."""
    assert uvs("lab", "up", "--servers", "1").returncode == 0
    done = uvs("lab", "send", *WAIT, "client", SYN, DATAGRAM)
    assert done.returncode == 0, done.stderr
    assert "1  LOCAL_IN  TCP 192.0.2.2:1024 > 192.0.2.100:80 S  (40 bytes)\n" in done.stdout
    assert "ip_vs_nat_xmit" in done.stdout
    assert "UDP [2001:db8:a::2]:1024 > [2001:db8:a::100]:7  (53 bytes)\n" in done.stdout

    done = uvs("lab", "send", *WAIT, "--json", "client", SYN.replace("1024", "[1025, 1026]"))
    walks = [json.loads(line) for line in done.stdout.splitlines()]
    requests = [w["packet"] for w in walks if w["packet"].endswith(" S")]
    assert requests == [f"TCP 192.0.2.2:{port} > 192.0.2.100:80 S" for port in (1025, 1026)]

    done = uvs("lab", "send", *WAIT, "--json", "director", SYN.replace('192.0.2.2"', '192.0.2.100"'))
    assert [json.loads(line)["hook"] for line in done.stdout.splitlines()][:1] == ["LOCAL_OUT"]


def test_send_that_does_not_come(uvs: Command) -> None:
    """What IPVS does not see, a host cannot send, or no expression is: one line each."""
    assert uvs("lab", "up", "--servers", "1", "--mode", "dr").returncode == 0
    nowhere = SYN.replace("192.0.2.100", "203.0.113.1")
    rows = [
        (("client", SYN.replace("80", "81")), 1, "send: the packet did not come to IPVS: no service or connection "
         "of this director's takes it, or it went another way"),
        (("client", nowhere), 1, ": client cannot send it: it has no route there"),
        (("client", SYN + "/(b'x' * 2000)"), 1,
         ": client cannot send it: 2040 bytes are more than its link takes (no raw packet is fragmented)"),
        (("client", "IP()"), 2, ": IP needs src= and dst= at column 1: IP()"),
        (("rs7", SYN), 2, ": no host 'rs7': one of client, director, rs1"),
        (("client", SYN.replace("1024", "(1, 101)")), 2, ": 101 packets: at most 100 at once"),
        (("--wait", "0", "client", SYN), 2, ": --wait takes more than 0 and at most 60 seconds"),
    ]  # fmt: skip
    for arguments, status, message in rows:
        separator = "" if message.startswith(":") else " "
        assert told(uvs("lab", "send", *arguments)) == (status, f"uvs lab{separator}{message}\n"), arguments


def fetch(uvs: Command, times: int = 2) -> list[str]:
    """Who answers the client, request after request."""
    command = ["python3", "-m", "uvs.lab.fetch", "-n", str(times), "http://192.0.2.100/"]
    return uvs("lab", "exec", "client", "--", *command).stdout.splitlines()


def test_stop_and_start(uvs: Command) -> None:
    """A server that refuses, one without a cable, and a director that went away: all come back."""
    assert uvs("lab", "up", "--servers", "2").returncode == 0
    assert uvs("lab", "stop", "rs2").stdout.startswith("rs2: its HTTP and echo server has ended; ")
    assert sorted(fetch(uvs)) == ["no answer: [Errno 111] Connection refused", "rs1"]
    assert told(uvs("lab", "stop", "rs2")) == (1, "uvs lab: rs2 is stopped already: uvs lab start rs2\n")
    assert uvs("lab", "start", "rs2").stdout == "rs2: its HTTP and echo server runs again\n"
    assert sorted(fetch(uvs)) == ["rs1", "rs2"]
    assert told(uvs("lab", "start", "rs2")) == (1, "uvs lab: rs2 runs already: uvs lab stop rs2\n")

    assert uvs("lab", "stop", "rs2", "--cable").returncode == 0
    ping = ("lab", "exec", "director", "--", "ping", "-c1", "-W1", "198.51.100.12")
    assert uvs(*ping).returncode == 1
    assert told(uvs("lab", "stop", "rs2", "--cable"))[1].startswith(
        "uvs lab: the cable of rs2 is pulled already"
    )
    assert uvs("lab", "start", "rs2").stdout == "rs2: its cable is plugged in again\n"
    assert sorted(fetch(uvs)) == ["rs1", "rs2"]

    assert uvs("lab", "stop", "director").returncode == 0
    assert told(uvs("lab", "send", "client", SYN)) == (
        1,
        "uvs lab: no director runs in this lab: uvs lab start director\n",
    )
    assert uvs("lab", "start", "director").returncode == 0
    assert sorted(fetch(uvs)) == ["rs1", "rs2"]
    assert told(uvs("lab", "stop", "client")) == (
        2,
        "uvs lab: client has nothing to stop: one of director, rs1, rs2\n",
    )
