"""Programs that people use, through the virtual address, in every mode and family."""

from __future__ import annotations

import re
import subprocess
import tempfile

import pytest

from uvs.lab import processes

RS1_ONLY = 5201  # what needs one and the same server for several connections


def vip_url(address: str) -> str:
    """An address as a URL or uvsadm has it."""
    return f"[{address}]" if ":" in address else address


@pytest.fixture
def one_server(running, family):
    """TCP and UDP of one port, balanced to rs1 alone."""
    for protocol in ("-t", "-u"):
        add, server, *_ = processes.service_commands(running.lab, family, RS1_ONLY, protocol)
        processes.restore(running.lab, [add, server])
    yield running.vip(family)
    for protocol in ("-t", "-u"):
        running.uvsadm("-D", protocol, f"{vip_url(running.vip(family))}:{RS1_ONLY}")


def run(running, host: str, *words: str, stdin: str = "", timeout: float = 120) -> str:
    return running.lab.check(host, list(words), stdin=stdin, timeout=timeout)


def test_curl(running, family) -> None:
    """One server after the other says its name."""
    url = f"http://{vip_url(running.vip(family))}/"
    answers = [
        run(running, "client", "curl", "-s", "-g", "--max-time", "60", url).split()[0] for _ in range(3)
    ]
    assert sorted(answers) == ["rs1", "rs2", "rs3"]


def test_ping(running, family) -> None:
    said = run(running, "client", "ping", "-n", "-c", "3", "-i", "0.2", "-W", "20", running.vip(family))
    assert "3 packets transmitted, 3 received" in said


def test_traceroute(running, family) -> None:
    """The director is a hop and answers as the virtual address; a server behind it is never seen as itself.

    A tunnel's outer header has the inner one's time to live, so that a router on the way is a hop as well: what it
    says of our IPv4 tunnel packet the director tells the client. For IPv6 IPVS does not, and the hop is silent.
    """
    vip = running.vip(family)
    options = ["-n", "-T", "-p", "80", "-q", "1", "-N", "1", "-w", "20"]
    said = run(running, "client", "traceroute", *options, vip)
    hops = [line.split()[1] for line in said.splitlines()[1:]]
    router = {"tun": [vip if family == 4 else "*"]}.get(running.mode, [])
    assert hops == [vip, *router, vip]


def test_nc(running, family, one_server) -> None:
    """A megabyte through netcat is what was sent."""
    data = "".join(f"{n:07d}\n" for n in range(131072))
    six = ["-6"] if family == 6 else []
    with tempfile.TemporaryFile() as heard:
        server = running.lab.popen("rs1", ["nc", *six, "-l", "-p", str(RS1_ONLY)], stdout=heard)
        wait_listening(running, "rs1", RS1_ONLY)
        run(running, "client", "nc", "-N", one_server, str(RS1_ONLY), stdin=data)
        server.wait(60)
        heard.seek(0)
        assert heard.read() == data.encode()


@pytest.mark.parametrize("options", [(), ("-R",)], ids=["up", "down"])
def test_iperf3(running, family, one_server, options) -> None:
    """20 MB of TCP each way. What its receiver has when the sender ends is some moments behind."""
    said = iperf3(running, one_server, "-n", "20M", *options)
    assert re.search(r" 20\.\d MBytes .* sender\n", said), said
    assert "iperf Done." in said


def test_iperf3_udp(running, family, one_server) -> None:
    """Datagrams at a rate that any machine can do: none is lost. The receiver says how many it had when the
    sender ended, some moments behind."""
    said = iperf3(running, one_server, "-u", "-n", "200K", "-b", "2M", "-l", "1000")
    lost, sent = re.search(r"(\d+)/(\d+) \(.*%\) +receiver", said).groups()  # type: ignore[union-attr]
    assert lost == "0", said
    assert int(sent) >= 100, said


def iperf3(running, vip: str, *options: str) -> str:
    """One run against rs1; what the client said."""
    # Without NAT a UDP server must answer from the virtual address: it is bound to it.
    bound = [] if running.mode == "nat" else ["-B", vip]
    words = ["iperf3", "-s", "-1", "-p", str(RS1_ONLY), *bound]
    server = running.lab.popen("rs1", words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_listening(running, "rs1", RS1_ONLY)
        return run(running, "client", "iperf3", "-c", vip, "-p", str(RS1_ONLY), *options)
    finally:
        server.terminate()
        server.wait(30)


def wait_listening(running, host: str, port: int) -> None:
    """Until somebody listens."""
    script = (
        f"for i in $(seq 600); do ss -Hln -t sport = :{port} | grep -q . && exit; sleep 0.05; done; exit 1"
    )
    run(running, host, "sh", "-c", script)
