"""What is done with a lab that stands: packets sent, servers stopped, modes changed, links made bad."""

from __future__ import annotations

import json
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from scapy.layers.inet import TCP
from scapy.utils import PcapReader
from support.ordinary import Command
from support.sandbox import wait_for

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


def test_mode(uvs: Command) -> None:
    """From NAT to DR to a tunnel: the same lab's name, and what differs beside each other."""
    assert uvs("lab", "up", "--servers", "1").returncode == 0
    done = uvs("lab", "mode", "dr")
    assert done.returncode == 0, done.stderr
    rows = [re.split(r"\s{2,}", line) for line in done.stdout.partition("nat  ")[2].splitlines()]
    assert rows[-1] == ["return path", "rs1 → director → client", "rs1 → client"]
    assert rows[6:9] == [
        ["", "MAC", "director eth1 → rs1", "director → rs1"],
        ["", "IP", "192.0.2.2 → 198.51.100.11", "192.0.2.2 → 192.0.2.100"],
        ["", "TTL", "63", "63"],
    ]
    assert "lab lab: dr (direct routing)\n" in uvs("lab", "status").stdout

    done = uvs("lab", "mode", "tun", "--tun-type", "gue")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^  tunnel +192\.0\.2\.1 → 198\.51\.100\.11$", done.stdout, re.M)
    assert re.search(r"^return path +rs1 → client +rs1 → router → client$", done.stdout, re.M)
    assert fetch(uvs) == ["rs1", "rs1"]

    assert uvs("lab", "stop", "rs1").returncode == 0
    status, message = told(uvs("lab", "mode"))
    assert (status, message.count("\n")) == (1, 1)
    assert message.startswith("uvs lab: no answer from http://192.0.2.100/ in mode tun by gue: ")
    done = uvs("lab", "mode", "nat")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("return path             rs1 → director → client\n")
    assert told(uvs("lab", "mode", "nat", "--tun-type", "gre")) == (
        2,
        "uvs lab: mode: no tunnel 'gre' in mode nat: mode tun has ipip, gue, gre\n",
    )


def test_arp(uvs: Command) -> None:
    """DR's ARP problem: all answer for the VIP, or only the director; in other modes there is none."""
    assert uvs("lab", "up", "--mode", "dr", "--servers", "2").returncode == 0
    done = uvs("lab", "arp")
    assert (done.returncode, done.stdout.count("says: I have")) == (0, 1)

    done = uvs("lab", "arp", "--break")
    assert done.returncode == 1
    assert "arp_ignore    rs1 0, rs2 0\narp_announce  rs1 0, rs2 0\n" in done.stdout
    assert re.search(r"^  rs[12] +[0-9a-f:]{17}  says: I have$", done.stdout, re.M)

    done = uvs("lab", "arp", "--mend")
    assert (done.returncode, done.stdout.count("says: I have")) == (0, 1)
    assert re.search(r"^  director +[0-9a-f:]{17}  says: I have$", done.stdout, re.M)
    assert re.search(r"^client sends its requests to director, ", done.stdout, re.M)

    assert uvs("lab", "up", "--name", "other", "--servers", "1").returncode == 0
    assert told(uvs("lab", "arp", "--name", "other")) == (
        1,
        "uvs lab: only mode dr has the ARP problem, this lab is of mode nat: uvs lab mode dr\n",
    )


def test_capture(uvs: Command, tmp_path: Path) -> None:
    """What a filter lets through, as lines and as a pcap; `uvs walk` reads it."""
    assert uvs("lab", "up", "--servers", "1").returncode == 0
    file = str(tmp_path / "lab.pcap")
    asked = ("lab", "capture", "-c", "3", "--write", file, "rs1", "tcp", "src", "port", "80")
    with ThreadPoolExecutor(1) as pool:
        capture = pool.submit(uvs, *asked)
        while not capture.done():
            fetch(uvs)
        done = capture.result()
    assert (done.returncode, done.stderr) == (0, "capturing on rs1: Ctrl-C ends it\n3 packets\n")
    line = r"[\d:.]+ eth0  out rs1 > director eth1  IP / TCP 198\.51\.100\.11:80 > 192\.0\.2\.2:\d+ \w+.*  ttl 64"
    lines = done.stdout.splitlines()
    assert [text for text in lines if not re.fullmatch(line, text)] == []
    with PcapReader(file) as packets:
        assert [packet[TCP].sport for packet in packets] == [80, 80, 80]

    rows = [
        (("rs1", "tcq"), 2, "no filter (pcap-filter(7)): tcq"),
        (("rs1", "--write", "/nowhere/x"), 1, "/nowhere/x: No such file or directory"),
        (("rs1", "-c", "0"), 2, "--count takes 1 or more"),
        (("rs2",), 2, "no host 'rs2': one of client, director, rs1"),
    ]
    for arguments, status, message in rows:
        assert told(uvs("lab", "capture", *arguments)) == (status, f"uvs lab: {message}\n"), arguments


def test_link(uvs: Command) -> None:
    """All is lost, some is lost, all is late, nothing is: with netem and without."""
    assert uvs("lab", "up", "--servers", "1").returncode == 0

    def said(count: int) -> str:
        argv = ("ping", "-c", str(count), "-i", "0.02", "-W", "2", "198.51.100.11")
        return uvs("lab", "exec", "director", "--", *argv).stdout

    def ping(count: int) -> int:
        """How many of so many came back."""
        return int(re.search(r"(\d+) received", said(count))[1])  # type: ignore[index]

    def some() -> bool:
        return 0 < ping(60) < 60

    done = uvs("lab", "link", "rs1", "--loss", "100")
    assert done.stdout.startswith("rs1: its links lose 100 %, each way ")
    assert ping(3) == 0
    assert uvs("lab", "link", "rs1", "--loss", "50").returncode == 0
    wait_for(some, "some of 60 to come back")  # at once, unless the address has to be resolved first
    assert uvs("lab", "link", "rs1", "--delay", "20").stdout.startswith(
        "rs1: its links take 20 ms, each way "
    )
    assert float(re.search(r"min/avg/max/mdev = ([\d.]+)/", said(3))[1]) >= 40  # type: ignore[index]
    command = ("sh", "-c", "curl -s http://192.0.2.100/bytes/300000 | wc -c")
    assert uvs("lab", "exec", "client", "--", *command).stdout == "300000\n"
    assert uvs("lab", "stop", "rs1", "--cable").returncode == 0
    assert ping(2) == 0
    assert uvs("lab", "start", "rs1").returncode == 0
    assert ping(10) > 0, "and its address is resolved again, before much is lost"
    done = uvs("lab", "link", "rs1", "--delay", "1", "--loss", "50")
    assert done.stdout.startswith("rs1: its links lose 50 % and take 1 ms, each way ")
    wait_for(some, "some of 60 to come back")  # at once, unless the address has to be resolved first
    assert uvs("lab", "link", "rs1", "--clear").stdout == "rs1: its links lose and delay nothing\n"
    assert ping(10) == 10
    assert uvs("lab", "link", "rs1", "--clear").returncode == 0, "nothing to clear"

    rows = [
        ((), "say --loss PERCENT, --delay MS or both, or --clear"),
        (("--loss", "1", "--clear"), "say --loss PERCENT, --delay MS or both, or --clear"),
        (("--loss", "101"), "--loss takes 0 to 100 percent"),
        (("--loss", "nan"), "--loss takes 0 to 100 percent"),
        (("--delay", "-1"), "--delay takes 0 to 10000 milliseconds"),
    ]
    for arguments, message in rows:
        assert told(uvs("lab", "link", "rs1", *arguments)) == (2, f"uvs lab: {message}\n"), arguments
