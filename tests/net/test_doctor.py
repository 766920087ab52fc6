"""`uvs doctor` in labs that have each fault for real: it names them, and what it says mends them.

One lab per forwarding method. Faults that do not disturb each other are made together and mended together, by the
commands that the doctor names, each run on the host that it names.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.ordinary import Command
from support.running import Running
from support.schema import wrong

from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec
from uvs.lab import processes
from uvs.lab.enter import Daemon
from uvs.lab.processes import PYTHON, UVS
from uvs.lab.topology import VIP
from uvs.layers import Health

Found = dict[str, Any]
SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/doctor.schema.json").read_text())
DOCTOR = shlex.join((*UVS, "doctor", "--json"))
BAD = ("warn", "fail")


def doctor(lab: Running, command: str = DOCTOR) -> list[Found]:
    """What it finds on the director."""
    done = lab.lab.run("director", ["sh", "-c", command])
    assert done.returncode in (0, 1), done.stderr
    found: list[Found] = json.loads(done.stdout)
    assert list(wrong(SCHEMA, found)) == []
    assert done.returncode == any(f["state"] == "fail" for f in found)
    return found


def sh(lab: Running, host: str, *lines: str) -> None:
    """Run these on a host; those of uvsadm at once, after the others."""
    rest = [line for line in lines if not line.startswith("uvsadm ")]
    lab.lab.check(host, ["sh", "-ec", "\n".join(rest)])
    if changes := [line.split()[1:] for line in lines if line.startswith("uvsadm ")]:
        processes.restore(lab.lab, changes)


def bad(found: list[Found]) -> dict[str, list[Found]]:
    """Warnings and failures by name."""
    named: dict[str, list[Found]] = {}
    for f in found:
        if f["state"] in BAD:
            named.setdefault(f["name"], []).append(f)
    return named


Expected = tuple[str, str, str]  # name, state, words of the detail


def told(lab: Running, expected: Sequence[Expected], command: str = DOCTOR) -> list[Found]:
    """The findings, once all that are expected are among them: answers may be late on a busy machine."""
    deadline = time.monotonic() + 60
    while True:
        found = doctor(lab, command)
        missing = [
            (name, state, words)
            for name, state, words in expected
            if not any((f["name"], f["state"]) == (name, state) and words in f["detail"] for f in found)
        ]
        if not missing or time.monotonic() > deadline:
            assert missing == [], json.dumps(bad(found), indent=1)
            return found


def mend(lab: Running, found: list[Found], but: Sequence[str] = ()) -> None:
    """Run what is told to mend warnings and failures, where it is told to."""
    hosts = {h.address(family): h.name for h in lab.lab.topology.servers for family in (4, 6)} | {
        "here": "director"
    }
    lines: dict[str, list[str]] = {}
    for f in found:
        if f["state"] in BAD and f["on"] is not None and f["name"] not in but:
            lines.setdefault(hosts[f["on"]], []).append(f["mend"])
    for host, commands in lines.items():
        lab.lab.check(host, ["sh", "-ec", "\n".join(commands)])


def healthy(lab: Running, but: Sequence[str] = ()) -> None:
    """No warning and no failure is left; answers of a busy machine may be late."""
    deadline = time.monotonic() + 60
    while left := {name: f for name, f in bad(doctor(lab)).items() if name not in but}:
        assert time.monotonic() < deadline, json.dumps(left, indent=1)


def syns(address: str, port: int, count: int) -> None:
    """Begin so many connections and wait for none."""
    for _ in range(count):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
            sock.setblocking(False)
            sock.connect_ex((address, port))


def flood(address: str, port: int, count: int) -> None:
    """So many datagrams, as fast as they go."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect((address, port))
        for _ in range(count):
            sock.send(b"x")


def requests(lab: Running, count: int = 6) -> None:
    """Answered requests of both families."""
    for address in (VIP[4], f"[{VIP[6]}]"):
        lab.lab.check("client", [*PYTHON, "uvs.lab.fetch", "-n", str(count), f"http://{address}/"])


@pytest.fixture(scope="module")
def nat(make_lab: Callable[..., Running]) -> Running:
    return make_lab("nat")


@pytest.fixture(scope="module")
def dr(make_lab: Callable[..., Running]) -> Running:
    return make_lab("dr")


@pytest.fixture(scope="module")
def tun(make_lab: Callable[..., Running]) -> Running:
    return make_lab("tun")


NAT_FAULTS: list[tuple[list[str], Expected]] = [
    # commands on the director; the finding
    (["sysctl -qw net.ipv4.ip_forward=0"], ("IPv4 forwarding", "fail", "198.51.100.11")),
    (["sysctl -qw net.ipv6.conf.all.forwarding=0"], ("IPv6 forwarding", "fail", "2001:db8:b::11")),
    (["sysctl -qw net.ipv4.conf.eth0.rp_filter=1"], ("rp_filter", "warn", "strict on eth0:")),
    (
        ["ip link add br9 type bridge", "sysctl -qw net.bridge.bridge-nf-call-iptables=1"],
        ("bridge netfilter", "warn", "what br9 only passes on"),
    ),
    (["sysctl -qw net.ipv4.conf.all.accept_local=0"], ("accept_local", "ok", "no DR or TUN service needs it")),
    (
        ["uvsadm -A -t 198.51.100.1:84 -s rr", "uvsadm -a -t 198.51.100.1:84 -r 198.51.100.11:80 -m"],
        ("send_redirects", "warn", "share eth1"),
    ),
    (
        ["uvsadm -A -t 192.0.2.101:80 -s rr", "uvsadm -a -t 192.0.2.101:80 -r 198.51.100.11:80 -m"],
        ("VIP", "fail", "192.0.2.101 is no address of this host"),
    ),
    (["uvsadm -A -t 192.0.2.100:81 -s rr"], ("no server", "warn", "TCP 192.0.2.100:81")),
    (
        ["uvsadm -A -t 192.0.2.100:82 -s rr", "uvsadm -a -t 192.0.2.100:82 -r 198.51.100.12:80 -m -w 0"],
        ("weight 0", "warn", "TCP 192.0.2.100:82"),
    ),
    (
        ["uvsadm -A -t 192.0.2.100:83 -s rr", "uvsadm -a -t 192.0.2.100:83 -r 127.0.0.1:8080 -m"],
        ("route_localnet", "warn", "127.0.0.1"),
    ),
    (["uvsadm -A -f 7 -s rr", "uvsadm -a -f 7 -r 198.51.100.11 -m"], ("fwmark", "warn", "mark 7")),
    (
        ["uvsadm -A -t 192.0.2.100:85 -s rr", "uvsadm -a -t 192.0.2.100:85 -r 203.0.113.9:80 -m"],
        ("way to servers", "fail", "no route to server 203.0.113.9"),
    ),
    (
        ["uvsadm -A -t 192.0.2.100:86 -s rr", "uvsadm -a -t 192.0.2.100:86 -r 198.51.100.99:80 -m"],
        ("way to servers", "warn", "server 198.51.100.99 does not answer ARP"),
    ),
    (
        ["uvsadm -A -t 192.0.2.100:87 -s rr", "uvsadm -a -t 192.0.2.100:87 -r 198.51.100.13:81 -m"],
        ("silent server", "warn", "nothing listens at 198.51.100.13:81"),
    ),
    (
        ["nft add table inet user",
         "nft 'add chain inet user in { type filter hook input priority 0; }'",
         "nft 'add rule inet user in ct state established,related accept'",
         "nft 'add rule inet user in tcp dport 80 ct state new tcp flags & (fin|syn|rst|ack) != syn drop'"],
        ("firewall", "fail", "inet user, in: tcp dport 80 ct state new"),
    ),
    (
        ["iptables -P FORWARD DROP", "iptables -A FORWARD -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT"],
        ("firewall", "fail", "table filter, FORWARD: policy DROP: drops replies of 198.51.100.1"),
    ),
    (
        ["ip6tables -A INPUT -p tcp -d 2001:db8:a::100 --dport 80 -j REJECT"],
        ("firewall", "fail", "ip6tables, table filter, INPUT: -A INPUT -d 2001:db8:a::100"),
    ),
]  # fmt: skip
ADVICE = [
    # what is mended by more than a command of the doctor's: mended by these
    "uvsadm -D -t 192.0.2.100:81", "uvsadm -D -f 7", "uvsadm -D -t 192.0.2.100:85", "uvsadm -D -t 192.0.2.100:86",
    "uvsadm -D -t 192.0.2.100:87",
]  # fmt: skip


def test_faults_of_a_nat_director(nat: Running) -> None:
    sh(nat, "director", *(line for commands, _ in NAT_FAULTS for line in commands))
    found = told(nat, [expected for _, expected in NAT_FAULTS])
    mend(nat, found)
    sh(nat, "director", *ADVICE)
    healthy(nat)
    requests(nat)
    sh(
        nat,
        "director",
        "nft delete table inet user; iptables -F; iptables -P FORWARD ACCEPT; ip6tables -F",
        *(
            f"uvsadm -D -t {vip}"
            for vip in ("192.0.2.101:80", "198.51.100.1:84", "192.0.2.100:82", "192.0.2.100:83")
        ),
    )


def test_replies_that_do_not_come_through_the_director(nat: Running) -> None:
    """rs1 has another gateway; rs3 is a client on the servers' own network."""
    sh(nat, "rs1", "ip route replace default via 198.51.100.12; ip -6 route del default")
    sh(
        nat,
        "director",
        "uvsadm -D -t 192.0.2.100:80",
        *(f"uvsadm -A -t 192.0.2.100:{port} -s rr" for port in (80, 81)),
        "uvsadm -a -t 192.0.2.100:80 -r 198.51.100.11:80 -m",
        "uvsadm -a -t 192.0.2.100:81 -r 198.51.100.12:80 -m",
    )
    nat.lab.call("client", syns, VIP[4], 80, 2)
    nat.lab.call("rs3", syns, VIP[4], 81, 2)
    expected = [
        ("NAT replies", "fail", "packets went to server 198.51.100.11, none came back"),
        ("client beside servers", "fail", "198.51.100.13, client of server 198.51.100.12, is on its own"),
    ]
    mend(nat, told(nat, expected))
    with nat.client() as director:
        director.flush_conns()
    nat.lab.check("client", [*PYTHON, "uvs.lab.fetch", f"http://{VIP[4]}/"])
    nat.lab.check("rs3", [*PYTHON, "uvs.lab.fetch", f"http://{VIP[4]}:81/"])
    healthy(nat)


def test_another_director(nat: Running, tmp_path: Path) -> None:
    """A second process that is called so; the first one killed: its rules stay.

    And a conntrack that is full: its limit is the whole machine's, so that the doctor reads another here.
    """
    sh(nat, "director", "iptables -A INPUT -m conntrack --ctstate NEW -j ACCEPT")
    nat.lab.check("client", ["ping", "-c", "1", "192.0.2.1"])
    limit = tmp_path / "max"
    limit.write_text("1\n")
    knob = "/proc/sys/net/netfilter/nf_conntrack_max"
    command = f"mount --bind {shlex.quote(str(limit))} {knob} && exec {DOCTOR}"
    command = shlex.join(("unshare", "--mount", "sh", "-c", command))
    program = "import time; time.sleep(600)"
    second = nat.lab.start("director", "second", [*PYTHON[:2], "-c", program, "uvs", "run"])
    expected = [
        ("two directors", "fail", "2 of them run here"),
        ("conntrack full", "fail", "of 1 entries are in use"),
    ]
    found = told(nat, expected, command)
    assert [f["on"] for f in found if f["name"] == "two directors"] == ["here"]
    second.kill()
    nat.director.kill()
    found = told(nat, [("stale rules", "fail", "left its rules"), ("director", "note", "none to ask")])
    mend(nat, [f for f in found if f["name"] == "stale rules"])
    assert "UVS-" not in nat.lab.check("director", ["iptables-save"])
    sh(nat, "director", "iptables -F")
    nat.restart()
    healthy(nat)


def test_a_director_that_loses_packets(nat: Running) -> None:
    """Held while more datagrams come than its queue takes."""
    os.kill(nat.director.pid, signal.SIGSTOP)
    try:
        nat.lab.call("client", flood, VIP[4], 7, 30_000)
        found = doctor(nat)
        assert [f["state"] for f in found if f["name"] == "director"] == ["note"]
        assert bad(found) == {}
    finally:
        os.kill(nat.director.pid, signal.SIGCONT)
    told(nat, [("queue dropping", "warn", "queue")])


DR_FAULTS: list[tuple[str, list[str], Expected]] = [
    # host, commands there; the finding
    (
        "rs1",
        ["sysctl -qw net.ipv4.conf.all.arp_ignore=0 net.ipv4.conf.eth0.arp_ignore=0"],
        ("VIP elsewhere", "fail", "server 192.0.2.11 ("),
    ),
    (
        "rs2",
        ["ip addr del 192.0.2.100/32 dev lo", "ip addr del 2001:db8:a::100/128 dev lo"],
        ("silent server", "fail", "server 192.0.2.12 of TCP 192.0.2.100:80, by a SYN"),
    ),
    ("rs2", [], ("silent server", "fail", "server 2001:db8:a::12 of TCP [2001:db8:a::100]:80")),
    (
        "director",
        [
            "ip route add 203.0.113.0/24 via 192.0.2.2",
            "uvsadm -A -t 192.0.2.1:89 -s rr",
            "uvsadm -a -t 192.0.2.1:89 -r 203.0.113.9:89 -g",
        ],
        ("DR off link", "fail", "server 203.0.113.9 is behind a router"),
    ),
    (
        "director",
        [
            "sysctl -qw net.ipv4.conf.all.arp_ignore=1",
            "ip addr add 192.0.2.103/32 dev lo",
            "uvsadm -A -u 192.0.2.103:53 -s rr",
            "uvsadm -a -u 192.0.2.103:53 -r 192.0.2.13:53 -g",
        ],
        ("VIP on lo", "warn", "192.0.2.103 is on lo, and arp_ignore on eth0"),
    ),
    (
        "director",
        [
            "ip addr add 2001:db8:a::103/128 dev lo",
            "uvsadm -A -u [2001:db8:a::103]:53 -s rr",
            "uvsadm -a -u [2001:db8:a::103]:53 -r [2001:db8:a::13]:53 -g",
        ],
        ("VIP on lo", "warn", "2001:db8:a::103 is on lo"),
    ),
    ("client", ["ip addr add 192.0.2.103/32 dev eth0"], ("VIP elsewhere", "fail", "another director")),
    (
        "director",
        ["sysctl -qw net.ipv4.conf.all.accept_local=0"],
        ("accept_local", "note", "gets no IPv4 reply"),
    ),
]


def test_faults_of_direct_routing(dr: Running) -> None:
    for host in ("director", "rs1", "rs2", "client"):
        sh(dr, host, *(line for where, commands, _ in DR_FAULTS if where == host for line in commands))
    # uvsadm corrects the port, as ipvsadm does; not every program does.
    service = ServiceKey(socket.AF_INET, 6, socket.inet_aton("192.0.2.1"), 88)
    with dr.client() as director:
        director.add_service(ServiceSpec(service, "rr"))
        director.add_dest(service, DestSpec(socket.AF_INET, socket.inet_aton("192.0.2.13"), 80, 3))
    listener = "import socket, time; s = socket.create_server(('192.0.2.100', 80)); time.sleep(600)"
    program = dr.lab.start("director", "listener", [*PYTHON[:2], "-c", listener])
    found = told(
        dr,
        [
            *(expected for _, _, expected in DR_FAULTS),
            ("port in use", "note", "listens on TCP 192.0.2.100:80"),
        ],
    )
    program.kill()
    mend(dr, found)
    assert "203.0.113.9:89               Tunnel" in dr.uvsadm("-Ln")
    sh(dr, "client", "ip addr del 192.0.2.103/32 dev eth0")
    sh(dr, "director", "uvsadm -D -t 192.0.2.1:88", "uvsadm -D -t 192.0.2.1:89")
    healthy(dr)
    requests(dr)


def test_faults_of_tunnels(tun: Running) -> None:
    """rs1 has lost its tunnel's end, rs2 the VIP; the director's link is too narrow for IPv6 in IPv6."""
    (decap,) = [p for p in tun.lab.processes() if p.host == "rs1" and "decap" in p.argv]
    Daemon("rs1", "decap", decap.pid).kill()
    sh(tun, "rs2", "ip addr del 192.0.2.100/32 dev lo")
    for _ in range(3):  # one for each server, so that the drain has to wait
        tun.lab.call("client", flood, VIP[4], 7, 1)
    sh(tun, "director", "ip link set dev eth0 mtu 1300", "uvs drain udp:192.0.2.100:7 198.51.100.11")
    service = ServiceKey(socket.AF_INET, socket.IPPROTO_UDP, socket.inet_aton(VIP[4]), 7)
    server = (socket.AF_INET, socket.inet_aton("198.51.100.12"), 7)
    with tun.client() as director:
        director.set_health(service, server, Health(up=False, about={"reason": "no answer within 3 s"}))
    found = told(
        tun,
        [
            ("silent server", "fail", "server 198.51.100.11 of TCP 192.0.2.100:80"),
            ("silent server", "fail", "server 2001:db8:b::11 of TCP [2001:db8:a::100]:80"),
            ("silent server", "fail", "server 198.51.100.12 of TCP 192.0.2.100:80"),
            (
                "server down",
                "warn",
                "198.51.100.12:7 of udp:192.0.2.100:7 is out of service: no answer within 3 s",
            ),
            ("server drained", "note", "198.51.100.11:7 of udp:192.0.2.100:7"),
            ("tunnel MTU", "fail", "has room for 1260 bytes, every IPv6 link must have 1280"),
        ],
    )
    assert not [f for f in found if f["name"] == "silent server" and "198.51.100.13" in f["detail"]]
    assert [f["on"] for f in found if f["name"] == "tunnel MTU"] == ["here"] * 3
    mend(tun, found, but=["silent server"])
    sh(tun, "director", *(f["mend"] for f in found if f["name"] == "server drained"))
    with tun.client() as director:
        director.set_health(service, server, None)
    sh(tun, "rs2", "ip addr add 192.0.2.100/32 dev lo")
    processes.start_decap(tun.lab, "rs1")
    healthy(tun)
    requests(tun)


def test_an_ordinary_user(uvs: Command) -> None:
    """Without a director and without root: it says so, at once."""
    begun = time.monotonic()
    done = uvs("doctor", "--json")
    took = time.monotonic() - begun
    found = json.loads(done.stdout)
    assert list(wrong(SCHEMA, found)) == []
    states = {f["name"]: f["state"] for f in found}
    assert (states["privileges"], states["director"]) == ("warn", "note")
    assert took < 20, "a machine on which much else runs"
