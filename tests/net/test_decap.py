"""`uvs decap`:   director 10.0.0.1 v0 ─── v1 10.0.0.2 real server, VIP on lo, no kernel tunnel   (fd00::1, fd00::2)"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from support.sandbox import PATIENCE_S, Host, addressed, ip, sandboxed, sysctl, wait_for

from uvs.engine.core import checksum
from uvs.lab.holder import die_with_parent

DIRECTOR = {4: "10.0.0.1", 6: "fd00::1"}
SERVER = {4: "10.0.0.2", 6: "fd00::2"}
VIP = {4: "192.0.2.1", 6: "2001:db8::1"}
SO_NO_CHECK, UDP_NO_CHECK6_TX = 11, 101  # asm-generic/socket.h, linux/udp.h
CPORT, VPORT = 5555, 7777
PING = b"ping"
FAMILY = {4: socket.AF_INET, 6: socket.AF_INET6}

GUE_PORT = 6080

pairs = pytest.mark.parametrize(("outer", "inner"), [(4, 4), (4, 6), (6, 4), (6, 6)])


class RealServer:
    """A real server with a UDP echo at the VIP, and the director's side of its tunnel."""

    def __init__(self, *options: str, notify: str = "", rp_filter: int = 0) -> None:
        self.host = Host()
        ip(f"link add v0 type veth peer name v1 netns {self.host.netns}")
        addressed("v0", DIRECTOR)
        with self.host:
            sysctl("ipv4/conf/all/rp_filter", rp_filter)
            addressed("v1", SERVER)
            ip(f"address add {VIP[4]}/32 dev lo", f"address add {VIP[6]}/128 dev lo nodad")
            self.echo = {v: socket.socket(FAMILY[v], socket.SOCK_DGRAM) for v in (4, 6)}
            for v, s in self.echo.items():
                s.bind((VIP[v], VPORT))
        self.client = {v: socket.socket(FAMILY[v], socket.SOCK_DGRAM) for v in (4, 6)}
        for v, s in self.client.items():
            s.bind((DIRECTOR[v], CPORT))
        ip(f"route add {VIP[4]} via {SERVER[4]}", f"route add {VIP[6]} via {SERVER[6]}")
        for v in (4, 6):
            wait_for(lambda v=v: self._answers_ping(v), f"the link is up for IPv{v}")
        with self.host:
            self.decap = start(*options, notify=notify)
        assert self.decap.stdout is not None
        assert self.decap.stderr is not None
        self.said = self.decap.stdout.readline()
        assert self.said, self.decap.stderr.read()

    def _answers_ping(self, v: int) -> bool:
        self.client[v].sendto(PING, (VIP[v], VPORT))
        return self._next(v, 0.1) == PING

    def _next(self, v: int, seconds: float) -> bytes | None:
        if not select.select([self.echo[v]], [], [], seconds)[0]:
            return None
        data, client = self.echo[v].recvfrom(65536)
        self.echo[v].sendto(data, client)
        return data

    def reaches(self, v: int, seconds: float = PATIENCE_S) -> bytes | None:
        """The next datagram that reaches the VIP's socket, late pings left out."""
        while (data := self._next(v, seconds)) == PING:
            pass
        return data

    def stop(self, number: int = signal.SIGTERM) -> str:
        """End `uvs decap`; what it says at its end."""
        self.decap.send_signal(number)
        out, _ = self.decap.communicate(timeout=60)
        assert self.decap.returncode == 0
        return str(out)


def start(*options: str, notify: str = "") -> subprocess.Popen[str]:
    environment = os.environ | {"NOTIFY_SOCKET": notify}
    argv = [sys.executable, "-m", "uvs.cli", "decap", *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        argv, stdout=pipe, stderr=pipe, text=True, env=environment, preexec_fn=die_with_parent
    )


def datagram(v: int, text: bytes, dst: str = "") -> bytes:
    layer = IP(src=DIRECTOR[4], dst=dst or VIP[4]) if v == 4 else IPv6(src=DIRECTOR[6], dst=dst or VIP[6])
    return bytes(layer / UDP(sport=CPORT, dport=VPORT) / Raw(text))


def tunnel(outer: int, inner: int, packet: bytes, kind: str = "ipip") -> None:
    """Send a packet through a tunnel as the director does; the kernel routes it by the outer header."""
    protocol = 4 if inner == 4 else 41
    if kind == "gue":
        with socket.socket(FAMILY[outer], socket.SOCK_DGRAM) as s:
            s.setsockopt(socket.SOL_SOCKET, SO_NO_CHECK, 1)
            if outer == 6:
                s.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_TX, 1)
            s.sendto(bytes((0, protocol, 0, 0)) + packet, (SERVER[outer], GUE_PORT))
        return
    if kind != "ipip":
        csum = b"\x80\0" if kind == "gre, csum" else b"\0\0"
        packet = csum + (b"\x08\0" if inner == 4 else b"\x86\xdd") + (bytes(4) if csum[0] else b"") + packet
        if csum[0]:
            packet = packet[:4] + checksum(packet).to_bytes(2, "big") + packet[6:]
        protocol = 47
    with socket.socket(FAMILY[outer], socket.SOCK_RAW, protocol) as s:
        s.sendto(packet, (SERVER[outer], 0))


@pairs
@sandboxed
def test_inner_packets_reach_the_vip_and_the_answer_goes_straight_to_the_client(
    outer: int, inner: int
) -> None:
    server = RealServer()
    assert server.said.startswith("decap: ready, protocol 4 and 41 over IPv4 and IPv6 to uvsdecap0, MTU 1480")
    for size in (5, 1400, 20000):  # the last in fragments of the outer packet
        text = os.urandom(size)
        tunnel(outer, inner, datagram(inner, text))
        assert server.reaches(inner) == text
        server.client[inner].settimeout(PATIENCE_S)
        while (answer := server.client[inner].recvfrom(65536))[0] == PING:
            pass
        assert answer[0] == text
        assert answer[1][:2] == (VIP[inner], VPORT)
    assert server.stop() == "decap: 3 packets passed on\n"


@pairs
@pytest.mark.parametrize("kind", ["gue", "gre", "gre, csum"])
@sandboxed
def test_gue_and_gre(outer: int, inner: int, kind: str) -> None:
    server = RealServer(*(("--gue-port", str(GUE_PORT)) if kind == "gue" else ("--proto", "47")))
    what = f"gue on port {GUE_PORT}" if kind == "gue" else "protocol 47"
    assert server.said.startswith(f"decap: ready, {what} over IPv4 and IPv6 to uvsdecap0, MTU 1480")
    for size in (5, 1400, 20000):
        text = os.urandom(size)
        tunnel(outer, inner, datagram(inner, text), kind)
        assert server.reaches(inner) == text
    tunnel(outer, inner, b"no IP packet", kind)
    tunnel(outer, inner, datagram(inner, b"last"), kind)
    assert server.reaches(inner) == b"last"
    assert server.stop() == "decap: 4 packets passed on, 1 dropped with wrong headers\n"


@pairs
@sandboxed
def test_what_is_not_for_this_host_or_lies_goes_nowhere(outer: int, inner: int) -> None:
    server = RealServer()
    with server.host:  # as a router would be set: nothing of the tunnel may be forwarded
        sysctl("ipv4/ip_forward", 1)
        sysctl("ipv6/conf/all/forwarding", 1)
    whole = datagram(inner, b"x")
    longer = bytearray(whole)
    longer[3 if inner == 4 else 5] += 1
    for packet in (
        datagram(inner, b"back", DIRECTOR[inner]),
        datagram(inner, b"many", "224.0.0.1" if inner == 4 else "ff02::1"),
        datagram(10 - inner, b"other family"),
        bytes(longer),
        whole[:-1],
        whole[:10],
        b"",
    ):
        tunnel(outer, inner, packet)
    tunnel(outer, inner, whole + b"trailing bytes are cut off")
    assert server.reaches(inner) == b"x"
    assert server.reaches(inner, 0.3) is None
    dropped = "2 dropped not for a local address, 5 dropped with wrong headers"
    assert server.stop() == f"decap: 1 packets passed on, {dropped}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@sandboxed
def test_nothing_is_left_behind(number: int) -> None:
    def settings() -> dict[str, str]:
        return {p.parent.name: p.read_text() for p in Path("/proc/sys/net/ipv4/conf").glob("*/rp_filter")}

    server = RealServer(rp_filter=1)
    assert "rp_filter 0 instead of 1 on all" in server.said
    with server.host:
        during = settings()
    assert during["all"] == during["uvsdecap0"] == "0\n"
    assert during["v1"] == during["lo"] == "1\n", "the other devices keep what `all` gave them"
    tunnel(4, 4, datagram(4, b"filtered it would be dropped"))
    assert server.reaches(4)
    server.stop(number)
    with server.host:
        after = settings()
        devices = [name for _, name in socket.if_nameindex()]
    assert after["all"] == "1\n"
    assert after["v1"] == after["lo"] == "0\n"
    assert sorted(devices) == ["lo", "v1"]


@sandboxed
def test_addresses_that_come_later_count() -> None:
    server = RealServer()
    with server.host:
        late = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        late.bind(("", VPORT + 1))
        packet = bytes(IP(src=DIRECTOR[4], dst="192.0.2.9") / UDP(sport=CPORT, dport=VPORT + 1) / Raw(b"x"))
    tunnel(4, 4, packet)
    assert not select.select([late], [], [], 0.3)[0]
    with server.host:
        ip("address add 192.0.2.9/32 dev lo")

    def arrives() -> bool:
        tunnel(4, 4, packet)
        return bool(select.select([late], [], [], 0.05)[0])

    wait_for(arrives, "a packet for the new address")


@sandboxed
def test_the_service_manager_is_told() -> None:
    with tempfile.TemporaryDirectory() as directory, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.bind(f"{directory}/notify")
        server = RealServer(notify=f"{directory}/notify")
        s.settimeout(PATIENCE_S)
        assert s.recv(100) == b"READY=1"
        server.stop()
        assert s.recv(100) == b"STOPPING=1"


@sandboxed
def test_only_the_protocols_asked_for() -> None:
    server = RealServer("--proto", "41", "--dev", "t6", "--mtu", "1400")
    assert server.said == "decap: ready, protocol 41 over IPv4 and IPv6 to t6, MTU 1400, rp_filter 0 on it\n"
    tunnel(4, 4, datagram(4, b"x"))
    tunnel(4, 6, datagram(6, b"x"))
    assert server.reaches(6) == b"x"
    assert server.reaches(4, 0.3) is None


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        (["--proto", "5"], 2, "--proto takes 4, 41 and 47 with commas, not '5'"),
        (["--proto", ""], 2, "--proto takes 4, 41 and 47 with commas, not ''"),
        (["--gue-port", "0"], 2, "--gue-port takes 1..65535, not 0"),
        (["--mtu", "1000"], 2, "--mtu takes 1280..65535, not 1000"),
        (["--dev", "a" * 16], 2, f"--dev takes a device name of at most 15 bytes, not '{'a' * 16}'"),
        (["--dev", "lo"], 1, "device lo is in use: choose another with --dev, or end its owner"),
    ],
)
@sandboxed
def test_errors_are_one_line(options: list[str], status: int, message: str) -> None:
    before = Path("/proc/sys/net/ipv4/conf/all/rp_filter").read_text()
    done = start(*options)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, out, err) == (status, "", f"uvs decap: {message}\n")
    assert Path("/proc/sys/net/ipv4/conf/all/rp_filter").read_text() == before


@sandboxed
def test_a_kernel_with_tunnels_of_its_own_is_told_of() -> None:
    ip("link add tunl0 type veth peer name x")  # what counts is the name
    decap = start("--proto", "4")
    assert decap.stdout is not None
    assert decap.stdout.readline().startswith("decap: ready")
    decap.terminate()
    _, err = decap.communicate(timeout=60)
    assert err == (
        "decap: warning: this kernel has tunnels of its own, and they answer with ICMP errors: "
        "use tunl0 instead (ip link set tunl0 up), or unload its module\n"
    )


@sandboxed
def test_a_gue_port_that_is_taken() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as owner:
        owner.bind(("", GUE_PORT))
        done = start("--gue-port", str(GUE_PORT))
        _, err = done.communicate(timeout=60)
    message = f"cannot listen on UDP port {GUE_PORT}: Address already in use"
    assert (done.returncode, err) == (
        1,
        f"uvs decap: {message}: choose another with --gue-port, or end its owner\n",
    )


@sandboxed
def test_without_privilege() -> None:
    argv = [
        sys.executable,
        "-c",
        "import os; os.setgid(0); from uvs.cli import main; raise SystemExit(main(['decap']))",
    ]
    drop = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
    done = subprocess.run([*drop, *argv], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith(
        "uvs decap: cannot open a raw socket: Operation not permitted: run it as root"
    )


@sandboxed(user=True)
def test_an_ordinary_user_in_a_namespace_can_do_this() -> None:
    server = RealServer()
    tunnel(6, 4, datagram(4, b"hello"))
    assert server.reaches(4) == b"hello"
