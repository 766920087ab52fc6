"""uvsadm by itself: listings as a kernel's ipvsadm printed them, help, what goes wrong around it."""

import shlex
import subprocess
import sys

import pytest
from support.world import packed

from uvs.adm import cli, listing
from uvs.ipvs.spec import ServiceKey

COMMANDS = """\
-A -t 198.18.0.100:80 -s rr
-a -t 198.18.0.100:80 -r 198.19.0.11:80 -i
-A -t 198.18.0.100:81 -s rr
-a -t 198.18.0.100:81 -r [2001:db8:19::12]:81 -i
-A -u 198.18.0.100:53 -s rr
-a -u 198.18.0.100:53 -r 198.19.0.12 -i
-A -t [2001:db8:18::100]:80 -s rr
-a -t [2001:db8:18::100]:80 -r [2001:db8:19::11]:80 -i
-A -t [2001:db8:18::100]:81 -s rr
-a -t [2001:db8:18::100]:81 -r 198.19.0.13:81 -i
"""

# Linux 6.1 and ipvsadm 1.31, recorded.
TUNNELS = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  198.18.0.100:80 rr
  -> 198.19.0.11:80               Tunnel  1      1          0
TCP  198.18.0.100:81 rr
  -> [2001:db8:19::12]:81         Tunnel  1      1          0
UDP  198.18.0.100:53 rr
  -> 198.19.0.12:53               Tunnel  1      0          1
TCP  [2001:db8:18::100]:80 rr
  -> [2001:db8:19::11]:80         Tunnel  1      1          0
TCP  [2001:db8:18::100]:81 rr
  -> 198.19.0.13:81               Tunnel  1      1          0
"""
THRESHOLDS = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port            Uthreshold Lthreshold ActiveConn InActConn
  -> RemoteAddress:Port
UDP  198.18.0.100:53 rr
  -> 198.19.0.11:53               4          0          0          4
  -> 198.19.0.12:53               4          2          0          4
"""
PERSISTENT = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port            Weight    PersistConn ActiveConn InActConn
  -> RemoteAddress:Port
TCP  198.18.0.100:80 rr persistent 100 mask 255.255.255.0
  -> 198.19.0.11:80               1         1           1          0
  -> 198.19.0.12:80               1         1           2          0
"""
STATS = """\
Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes
  -> RemoteAddress:Port
TCP  198.18.0.100:80                     3        9        6      960     3240
  -> 198.19.0.11:80                      1        3        2      320     1080
  -> 198.19.0.12:80                      2        6        4      640     2160
"""


def trimmed(text):
    """The recordings have no blanks at the ends of lines."""
    return "".join(line.rstrip() + "\n" for line in text.splitlines())


def test_the_table_as_a_kernel_s_ipvsadm_shows_it(director, uvsadm):
    assert uvsadm("-R", stdin=COMMANDS).status == 0
    for svc in director.ipvs.services:
        for dest in svc.dests:
            dest.rec.activeconns, dest.rec.inactconns = (0, 1) if svc.key.protocol == 17 else (1, 0)
    assert trimmed(uvsadm("-Ln").out) == TUNNELS
    assert uvsadm("-ln").out == uvsadm("--list", "--numeric").out == uvsadm("-Ln").out


def test_thresholds(director, uvsadm):
    uvsadm("-A", "-u", "198.18.0.100:53", "-s", "rr")
    uvsadm("-a", "-u", "198.18.0.100:53", "-r", "198.19.0.11:53", "-m", "-x", "4")
    uvsadm("-a", "-u", "198.18.0.100:53", "-r", "198.19.0.12:53", "-m", "-x", "4", "-y", "2")
    for svc in director.ipvs.services:
        for dest in svc.dests:
            dest.rec.inactconns = 4
    assert trimmed(uvsadm("-Ln", "--thresholds").out) == THRESHOLDS


def test_persistence(director, uvsadm):
    uvsadm("-A", "-t", "198.18.0.100:80", "-s", "rr", "-p", "100", "-M", "255.255.255.0")
    for n in (1, 2):
        uvsadm("-a", "-t", "198.18.0.100:80", "-r", f"198.19.0.1{n}", "-m")
    for svc in director.ipvs.services:
        for n, dest in enumerate(reversed(svc.dests), 1):
            dest.rec.activeconns, dest.rec.persistconns = n, 1
    assert trimmed(uvsadm("-Ln", "--persistent-conn").out) == PERSISTENT


def test_stats_of_one_service(director, uvsadm):
    uvsadm("-A", "-t", "198.18.0.100:80", "-s", "rr")
    for n in (1, 2):
        uvsadm("-a", "-t", "198.18.0.100:80", "-r", f"198.19.0.1{n}", "-m")
    svc = director.ipvs.services.get(ServiceKey(2, 6, packed("198.18.0.100"), 80))
    svc.est.sample((3, 9, 6, 960, 3240))
    svc.dests[1].est.sample((1, 3, 2, 320, 1080))
    svc.dests[0].est.sample((2, 6, 4, 640, 2160))
    assert trimmed(uvsadm("-Ln", "--stats", "-t", "198.18.0.100:80").out) == STATS


@pytest.mark.parametrize(
    ("value", "shown", "exact"),
    [
        (0, "        0", "        0"),
        (99_999_999, " 99999999", " 99999999"),
        (100_000_000, "  100000K", "100000000".rjust(10)),
        (999_999_999, "  999999K", " 999999999"),
        (10**9, "    1000M", " 1000000000"),
        (10**11 - 1, "   99999M", " 99999999999"),
        (10**11, "     100G", " 100000000000"),
        (10**14 - 1, "   99999G", " 99999999999999"),
        (10**14, "     100T", " 100000000000000"),
        (2**64 - 1, "18446744T", " 18446744073709551615"),
    ],
)
def test_large_numbers(value, shown, exact):
    assert listing.large(value, exact=False) == shown
    assert listing.large(value, exact=True) == exact


def test_help_tells_a_newcomer_what_to_type(uvsadm):
    for words in (["-h"], ["--help", "whatever"]):
        found = uvsadm(*words)
        assert found.status == 0
        assert "ipvsadm -A -t 192.0.2.1:80 -s rr" in found.out  # the name it was called by
    assert max(map(len, found.out.splitlines())) <= 110


def test_version(uvsadm):
    assert uvsadm("--version").out.startswith("ipvsadm v")


@pytest.mark.parametrize("words", ["-Ln", "-A -t 10.0.0.1:80", "-R"])
def test_no_director(words, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none.sock"))
    assert cli.main(words.split()) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"Can't initialize ipvs: no director listens on {tmp_path}/none.sock: start one")


def test_wrong_use_needs_no_director(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "none.sock"))
    assert cli.main(["-A"]) == 2
    assert capsys.readouterr().err == (
        "You need to supply the 'service-address' option for the 'add-service' command\n"
    )


@pytest.mark.parametrize("words", ["-A -t \udcff:80", "-A -t 10.0.0.1:8\udcff", "-L -t \udcff"])
def test_bytes_that_are_no_text(uvsadm, words):
    """\\udcff: how Python hands over the byte 0xff of a command line."""
    found = uvsadm(*words.split())
    assert (found.status, found.err) == (2, "illegal virtual server address[:port] specified\n")


def test_what_this_director_does_not_do_is_said(uvsadm):
    assert "no sync daemon" in uvsadm("--start-daemon", "master").err


def test_tunnels_are_listed_and_saved_as_they_were_made(uvsadm):
    uvsadm("-A", "-t", "10.0.0.1:80")
    made = {
        "ipip": "ipip",
        "gue --tun-port 6080 --tun-nocsum": "gue:6080:-c",
        "gue --tun-port 6081 --tun-csum": "gue:6081:+c",
        "gue --tun-port 6082 --tun-remcsum": "gue:6082:r+c",
        "gre --tun-nocsum": "gre:-c",
        "gre --tun-csum": "gre:+c",
    }
    for last, options in enumerate(made, 1):
        done = uvsadm("-a", "-t", "10.0.0.1:80", "-r", f"10.0.1.{last}", "-i", "--tun-type", *options.split())
        assert (done.status, done.err) == (0, "")
    listed = uvsadm("-Ln", "--tun-info").out.splitlines()[-6:]
    assert [line.split()[3] for line in listed] == list(made.values())
    saved = uvsadm("-Sn").out
    assert [line.partition("--tun-type ")[2] for line in saved.splitlines()[1:]] == list(made)
    uvsadm("-C")
    uvsadm("-R", stdin=saved)
    assert uvsadm("-Sn").out == saved
    uvsadm("-e", "-t", "10.0.0.1:80", "-r", "10.0.1.1", "-i", "--tun-type", "gre", "--tun-csum")
    assert "gre:+c" in uvsadm("-Ln", "--tun-info", "-t", "10.0.0.1:80").out.splitlines()[3]


def test_a_reader_that_stops_is_no_fault(director):
    """uvsadm -h | head -1"""
    command = f"{shlex.quote(sys.executable)} -m uvs.adm.cli -h | head -n 1"
    ran = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False, cwd="/"
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith("uvsadm v")
