"""`uvs walk`: what it reads, what it writes, and how it ends."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import ARP, Ether
from scapy.packet import Packet, Raw
from scapy.utils import rdpcap, wrpcap, wrpcapng
from support.schema import wrong

from uvs.cli import main
from uvs.engine.core import Why
from uvs.walk.reasons import GOOD, MEANING

ROOT = Path(__file__).parents[3]
SCHEMA = json.loads((ROOT / "docs/reference/walk.schema.json").read_text())
SERVICES = "-A -t 192.0.2.100:80 -s rr\n-a -t 192.0.2.100:80 -r 198.51.100.11:8080 -m -w 1\n"
HEAD = 'IP(src="192.0.2.2", dst="192.0.2.100")'
SYN = f'{HEAD}/TCP(sport=1024, dport=80, flags="S")'
ACK = SYN.replace('"S"', '"A"')
REPLY = 'IP(src="198.51.100.11", dst="192.0.2.2")/TCP(sport=8080, dport=1024, flags="SA")'


@pytest.fixture
def services(tmp_path: Path) -> str:
    path = tmp_path / "services"
    path.write_text(SERVICES)
    return str(path)


def walks(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    """The walks of `uvs walk --json`, each as the schema says."""
    assert main(["walk", "--json", *words]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [w for walk in found for w in wrong(SCHEMA, walk)] == []
    return found


def why(found: list[dict]) -> list[str]:
    return [walk["why"] for walk in found]


# ------------------------------------------------------------------------------- what it writes


def test_json_is_as_the_schema_says(services: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = walks(
        capsys,
        "--services",
        services,
        SYN,
        "wait 1",
        REPLY,
        f"{HEAD}/TCP(dport=81)",
        "--mac",
        "198.51.100.11=02:00:00:00:00:11",
    )
    assert [(w["number"], w["hook"], w["why"], w["time"]) for w in found] == [
        (1, "LOCAL_IN", "forwarded", 10**9), (2, "FORWARD", "reply", 2 * 10**9), (3, "LOCAL_IN", "no_service", 2 * 10**9),
    ]  # fmt: skip
    assert found[0]["sent"][0]["changes"][0]["after"] == "02:00:00:00:00:11"
    assert {c["field"] for c in found[1]["changes"]} == {"src", "sport", "checksum"}


def test_the_schema_refuses_what_is_wrong(services: str, capsys: pytest.CaptureFixture[str]) -> None:
    (walk,) = walks(capsys, "--services", services, SYN)
    for change in (
        {"version": 2},
        {"hook": "INPUT"},
        {"data": "0"},
        {"mark": True},
        {"entry": {}},
        {"sent": [{}]},
        {"frame": {}},
    ):
        assert list(wrong(SCHEMA, walk | change)), change


def test_what_leaves_as_a_capture(services: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.pcap")
    assert (
        main(["walk", "--services", services, "--write", out, SYN, "wait 2", REPLY, f"{HEAD}/TCP(dport=81)"])
        == 0
    )
    left = rdpcap(out)
    assert [(p[IP].src, p[IP].dst, p[TCP].dport, float(p.time)) for p in left] == [
        ("192.0.2.2", "198.51.100.11", 8080, 0.0), ("192.0.2.100", "192.0.2.2", 1024, 2.0),
    ]  # fmt: skip
    assert left[1][IP].ttl == 63


def test_what_is_too_long_leaves_in_fragments(services: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out.pcap")
    assert main(["walk", "--services", services, "--mtu", "600", "--write", out, f'{SYN}/(b"x" * 1000)']) == 0
    assert [len(bytes(p)) <= 600 for p in rdpcap(out)] == [True, True]


def test_in_colour_on_a_terminal_only(services: str) -> None:
    def on_a_terminal(**env: str) -> str:
        master, slave = pty.openpty()
        environ = (
            {k: v for k, v in os.environ.items() if k != "NO_COLOR"}
            | {"TERM": "xterm", "PYTHONIOENCODING": "utf-8"}
            | env
        )
        subprocess.run(
            [sys.executable, "-m", "uvs.cli", "walk", "--services", services, SYN],
            stdout=slave,
            env=environ,
            check=True,
            cwd=ROOT,
        )
        os.close(slave)
        out = b""
        try:
            while part := os.read(master, 65536):
                out += part
        except OSError:  # the other end is closed
            pass
        os.close(master)
        return out.decode()

    assert "\033[32mSTOLEN" in on_a_terminal()
    assert "\033" not in on_a_terminal(NO_COLOR="1")
    assert "\033" not in on_a_terminal(TERM="dumb")


def test_in_ascii_where_there_is_no_more(services: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["walk", "--services", services, SYN, REPLY]) == 0
    out.seek(0)
    text = out.read()
    assert "`-ip_vs_in" in text
    assert "dst       192.0.2.100 > 198.51.100.11" in text


def test_every_reason_is_said() -> None:
    assert list(MEANING) == [reason.label for reason in Why]
    assert set(MEANING) >= GOOD


# ------------------------------------------------------------------------------- what it reads


def test_services_from_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"# saved\n\nuvsadm " + SERVICES.encode())))
    assert why(walks(capsys, "--services", "-", SYN)) == ["forwarded"]


@pytest.mark.parametrize("write", [wrpcap, wrpcapng])
@pytest.mark.parametrize("framed", [True, False])
def test_a_capture(
    write, framed: bool, services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At its times, without what is no IP, without the padding of short frames; MAC addresses are learnt."""
    syn = IP(src="192.0.2.2", dst="192.0.2.100") / TCP(sport=1024, dport=80, flags="S")
    answer = IP(src="198.51.100.11", dst="192.0.2.2") / TCP(sport=8080, dport=1024, flags="SA")
    again = IP(src="192.0.2.2", dst="192.0.2.100") / TCP(sport=1024, dport=80, flags="A")
    packets: list[Packet] = [syn, answer, again]
    if framed:
        client, director, server = (f"02:00:00:00:00:0{i}" for i in (1, 2, 3))
        packets = [
            Ether(src=client, dst=director) / syn / Raw(b""),
            Ether(src=client, dst="ff:ff:ff:ff:ff:ff") / ARP(),
            Ether(src=server, dst=director) / answer,
            Ether(src=client, dst=director) / again,
        ]
        packets[0] = Ether(bytes(packets[0]) + b"\0" * 6)
    for i, packet in enumerate(packets):
        packet.time = 1000 + i * 0.5
    path = str(tmp_path / "in.pcap")
    write(path, packets)
    found = walks(capsys, "--services", services, "--pcap", path)
    assert why(found) == ["forwarded", "reply", "forwarded"]
    assert len(found[0]["data"]) == 80
    assert found[2]["time"] - found[0]["time"] == (len(packets) - 1) * 500_000_000
    to = found[2]["sent"][0]["changes"][0]
    assert (to["before"], to["after"]) == (
        ("02:00:00:00:00:02", "02:00:00:00:00:03") if framed else ("the director's", "that of 198.51.100.11")
    )


def test_connections_expire_by_a_captures_times(
    services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packets = [IP(src="192.0.2.2", dst="192.0.2.100") / TCP(sport=1024, dport=80, flags=f) for f in "SA"]
    packets[0].time, packets[1].time = 5.0, 66.0
    path = str(tmp_path / "in.pcap")
    wrpcap(path, packets)
    assert why(walks(capsys, "--services", services, "--pcap", path)) == ["forwarded", "not_syn"]


def test_an_interval_between_packets(services: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = walks(
        capsys,
        "--services",
        services,
        "--interval",
        "61",
        f"[{SYN}, {ACK}]",
    )
    assert why(found) == ["forwarded", "not_syn"]


@pytest.mark.parametrize(
    ("words", "packet", "hook", "reason"),
    [
        ([], SYN, "LOCAL_IN", "forwarded"),
        ([], f"FORWARD: {SYN}", "FORWARD", "no_conn"),
        (["--hook", "FORWARD"], SYN, "FORWARD", "no_conn"),
        (["--hook", "FORWARD"], f"LOCAL_IN: {SYN}", "LOCAL_IN", "forwarded"),
        ([], REPLY, "FORWARD", "no_conn"),
        (["--local", "192.0.2.2"], SYN, "LOCAL_OUT", "forwarded"),
        (["--local", "192.0.2.2"], REPLY, "LOCAL_IN", "no_service"),
        ([], 'IP(src="192.0.2.2", dst="203.0.113.1")/TCP(sport=1024, dport=80)', "FORWARD", "no_conn"),
        ([], 'mark 7: IP(src="192.0.2.2", dst="203.0.113.1")/TCP(sport=1024, dport=80)', "LOCAL_IN", "forwarded"),
        (["--mark", "0x7"], 'IP(src="192.0.2.2", dst="203.0.113.1")/TCP(sport=1024, dport=80)', "LOCAL_IN", "forwarded"),
        ([], 'IPv6(src="2001:db8::2", dst="2001:db8::3", hlim=1)/TCP(dport=80)', "FORWARD", "ttl"),
        (["--no-route", "203.0.113.1"], 'IP(src="192.0.2.2", dst="203.0.113.1")/UDP()', "FORWARD", "no_route"),
        ([], "LOCAL_OUT mark 7:" + SYN, "LOCAL_OUT", "forwarded"),
        (["--sysctl", "net.ipv4.vs.sloppy_tcp=1"], ACK, "LOCAL_IN", "forwarded"),
        ([], 'IP(src="192.0.2.2", dst="192.0.2.100", ihl=15)/UDP()', "LOCAL_IN", "malformed"),
    ],
)  # fmt: skip
def test_where_a_packet_comes_in(
    words: list[str], packet: str, hook: str, reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "services"
    path.write_text(SERVICES + "-A -f 7 -s rr\n-a -f 7 -r 198.51.100.12:0 -g\n")
    (walk,) = walks(capsys, "--services", str(path), *words, packet)
    assert (walk["hook"], walk["why"]) == (hook, reason)


# ------------------------------------------------------------------------------- how it ends


def ends(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Status and the one line."""
    try:
        status = main(["walk", *words])
    except SystemExit as e:
        status = int(e.code or 0)
    out = capsys.readouterr()
    (line,) = out.err.splitlines()
    assert line.startswith("uvs walk: ")
    return status, line.removeprefix("uvs walk: ")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "either packets (EXPR...) or --pcap FILE"),
        ([SYN, "--pcap", "x"], 2, "either packets (EXPR...) or --pcap FILE"),
        (["IP("], 2, "not an expression"),
        ([SYN, "--mtu", "x"], 2, "--mtu x: bytes, 68..65535"),
        ([SYN, "--mtu", "a=1400"], 2, "--mtu a: no address"),
        ([SYN, "--local", "vip"], 2, "--local vip: no address"),
        ([SYN, "--no-route", "1"], 2, "--no-route 1: no address"),
        ([SYN, "--mac", "192.0.2.1=2"], 2, "--mac 192.0.2.1=2: ADDR=02:00:00:00:00:11"),
        ([SYN, "--mark", "x"], 2, "--mark x: a mark is a number"),
        (["mark 4294967296: " + SYN], 2, "mark 4294967296: a mark is a number"),
        ([SYN, "--sysctl", "sloppy_tcp"], 2, "sysctl sloppy_tcp: NAME=VALUE"),
        ([SYN, "--sysctl", "sloppy=1"], 2, "sysctl sloppy=1: no sysctl net.ipv4.vs.sloppy"),
        (["sysctl conn_reuse_mode=x"], 2, "sysctl conn_reuse_mode=x"),
        ([SYN, "--interval", "-1"], 2, "--interval: seconds"),
        ([SYN, "--interval", "nan"], 2, "--interval: seconds"),
        ([SYN, "--hook", "INPUT"], 2, "invalid choice: 'INPUT'"),
        (["wait long"], 2, "wait long: seconds"),
        (["wait -1"], 2, "wait -1: seconds"),
        (["wait inf"], 2, "wait inf: seconds"),
        (["uvsadm -A -t 192.0.2.100:80"], 1, "uvsadm: Service already exists: -A -t 192.0.2.100:80"),
        (["uvsadm -a -t 192.0.2.101:80 -r 192.0.2.1"], 1, "uvsadm: Service not defined"),
        (["uvsadm -A -t 192.0.2.101:80 -s best"], 1, "uvsadm: Scheduler or persistence engine not found"),
        (["uvsadm -A -t vip:80 -q"], 2, "uvsadm: "),
        (["uvsadm -Ln"], 2, "nothing to do on paper"),
        (["uvsadm -A -t 'x"], 2, "uvsadm: "),
        (["uvsadm"], 2, ""),
        (["uvsadm -Q"], 2, "uvsadm: no command of uvsadm, as `-A -t …` is: -Q"),
    ],
)
def test_wrong_use(
    words: list[str], status: int, said: str, services: str, capsys: pytest.CaptureFixture[str]
) -> None:
    got, line = ends(capsys, "--services", services, *words)
    assert said in line
    assert got == status


def test_without_services(capsys: pytest.CaptureFixture[str]) -> None:
    assert ends(capsys, SYN)[0] == 2


@pytest.mark.parametrize(
    ("content", "status", "said"),
    [
        (
            b"-A -t 192.0.2.100:80\n-a -t 192.0.2.100:80 -r x -m\n",
            2,
            "line 2: illegal real server address[:port] specified: -a -t",
        ),
        (b"-A -t 192.0.2.100:80 --frobnicate\n", 2, "line 1: "),
        (b"# uvs\n\nLVS in userspace\n", 2, "line 3: no command of uvsadm, as `-A -t …` is: LVS in"),
        (b"-A -t 192.0.2.100:80\n\n-A -t 192.0.2.100:80\n", 1, "line 3: Service already exists"),
        (b"\x80\xff", 1, "no text: services are read as uvsadm-save writes them"),
        (None, 1, "No such file or directory"),
    ],
)
def test_wrong_services(
    content: bytes | None, status: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "services"
    if content is not None:
        path.write_bytes(content)
    got, line = ends(capsys, "--services", str(path), SYN)
    assert line.startswith(f"{path}")
    assert said in line
    assert got == status


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no capture"),
        (b"GIF89a" + bytes(40), "no capture"),
        (None, "No such file or directory"),
    ],
)
def test_wrong_captures(
    content: bytes | None, said: str, services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "in.pcap"
    if content is not None:
        path.write_bytes(content)
    status, line = ends(capsys, "--services", services, "--pcap", str(path))
    assert line.startswith(f"{path}: ")
    assert said in line
    assert status == 1


def test_a_capture_without_ip(services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "in.pcap")
    wrpcap(path, [Ether(src="02:00:00:00:00:01", dst="ff:ff:ff:ff:ff:ff") / ARP()])
    assert ends(capsys, "--services", services, "--pcap", path) == (1, f"{path}: no IP packet in it")


@pytest.mark.parametrize(
    ("captured", "wire", "said"),
    [(40, 60, "of its 60 bytes 40 were captured"), (60, 40, "a record of 60 bytes for one of 40")],
)
def test_a_capture_with_a_snap_length(
    captured: int, wire: int, said: str, services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The packet was whole: to tell of `short` would be wrong. Or the record's length lies."""
    path = tmp_path / "in.pcap"
    data = bytes(IP(src="192.0.2.2", dst="192.0.2.100", len=60) / TCP(sport=1024) / Raw(b"x" * 20))[:captured]
    head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, captured, 101)
    path.write_bytes(head + struct.pack("<IIII", 0, 0, captured, wire) + data)
    assert main(["walk", "--services", services, "--pcap", str(path)]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{path}: packet 1 " in err
    assert said in err


def test_a_capture_of_segmentation_offload(
    services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With its frame it is longer than any IP packet."""
    path = str(tmp_path / "in.pcap")
    wrpcap(path, [Ether() / IP(src="192.0.2.2", dst="192.0.2.100") / TCP(sport=1024) / Raw(b"x" * 65495)])
    assert [len(walk["data"]) for walk in walks(capsys, "--services", services, "--pcap", path)] == [
        2 * 65535
    ]


def test_a_capture_that_ends_in_mid_packet(
    services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is whole is told; nothing crashes wherever it is cut."""
    path = tmp_path / "in.pcap"
    wrpcap(str(path), [IP(src="192.0.2.2", dst="192.0.2.100") / UDP(dport=i) / Raw(b"x" * 8) for i in (1, 2)])
    whole = path.read_bytes()
    for size in range(24, len(whole), 7):
        path.write_bytes(whole[:size])
        main(["walk", "--services", services, "--pcap", str(path)])
        out, err = capsys.readouterr()
        assert "short" not in out
        assert len(err.splitlines()) <= 1, err


def test_where_it_cannot_write(services: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, line = ends(capsys, "--services", services, SYN, "--write", str(tmp_path / "no" / "out.pcap"))
    assert (status, line.split(": ")[-1]) == (1, "No such file or directory")


# ------------------------------------------------------------------------------- where it runs

ELSEWHERE = """
import socket, sys
import scapy.layers.all  # it looks at the host itself: the names are taken away from uvs alone
for name in ("pyroute2", "netfilterqueue", "uvs.engine._io", "uvs.engine.io"):
    sys.modules[name] = None
for name in [n for n in dir(socket) if n.startswith(("AF_NETLINK", "AF_PACKET", "NETLINK_", "PF_PACKET", "SO_PEERCRED"))]:
    delattr(socket, name)
from uvs.cli import main
status = main(sys.argv[1:])
loaded = [m for m in sys.modules if m.startswith(("uvs.netfilter", "uvs.egress", "uvs.lab", "uvs.director"))]
assert not loaded, loaded
sys.exit(status)
"""


def test_nothing_of_linux_is_asked_for(services: str) -> None:
    """No module and no constant that only Linux has: what it needs of the engine is portable."""
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE, "walk", "--services", services, "--json", SYN],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["why"] == "forwarded"


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["walk", "--help"])
    assert re.search(r"uvsadm-save -n \| uvs walk --services -", capsys.readouterr().out)
