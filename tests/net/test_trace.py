"""`uvs trace` of real packets, with both drivers: what each filter takes, what is shown of it, and what it costs others."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from bench.stand import HERE, SOURCES
from scapy.layers.inet import IP, TCP
from scapy.utils import RawPcapNgReader
from support.running import Running
from support.sandbox import wait_for
from support.schema import wrong

from uvs.control.client import Client
from uvs.ipvs.spec import IpvsError
from uvs.lab.namespaces import SOCKET
from uvs.lab.processes import UVS

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/walk.schema.json").read_text())
CLIENT, VIP, RS1 = "192.0.2.2", "192.0.2.100", "198.51.100.11"
PORT, FLOWS = 7000, 1000
PATIENCE_S = 60.0


@pytest.fixture(scope="module", params=["native", "netfilterqueue"])
def lab(request: pytest.FixtureRequest, make_lab: Callable[..., Running]) -> Running:
    """A service that answers, one whose servers have weight 0, one that has none."""
    it = make_lab("nat", 1, program=(*UVS, "run", "--driver", request.param))
    for words in (
        f"-A -t {VIP}:98", f"-a -t {VIP}:98 -r {RS1}:80 -m -w 0", f"-A -t {VIP}:99", f"-A -u {VIP}:{PORT}",
        f"-a -u {VIP}:{PORT} -r {RS1}:{PORT} -m",
    ):  # fmt: skip
        it.uvsadm(*words.split())
    return it


def get(lab: Running, url: str = f"http://{VIP}/", *options: str) -> None:
    lab.lab.run("client", ["curl", "-s", "-o", "/dev/null", "-m", "5", *options, url])


# ---- filters


def ends(walk: dict[str, Any]) -> dict[str, str]:
    entry = walk["entry"]["after"] or walk["entry"]["before"]
    return entry or {"client": "", "virtual": "", "destination": ""}


FILTERS: dict[str, Callable[[dict[str, Any]], bool]] = {
    f"client {CLIENT}": lambda w: ends(w)["client"].startswith(CLIENT) or w["why"] in ("no_dest", "weight_0"),
    "client 192.0.3.0/24": lambda w: False,
    f"service {VIP}:80": lambda w: ends(w)["virtual"] == f"{VIP}:80",
    f"server {RS1}:80": lambda w: ends(w)["destination"] == f"{RS1}:80",
    f"host {RS1}": lambda w: RS1 in w["packet"],
    "port 99": lambda w: ":99 " in w["packet"],
    "ip6 and tcp": lambda w: "TCP [" in w["packet"],
    "hook forward": lambda w: w["hook"] == "FORWARD",
    "verdict drop": lambda w: w["verdict"] == "DROP",
    "why reply or why no_dest": lambda w: w["why"] in ("reply", "no_dest"),
    "mark 0 and not (tcp or udp)": lambda w: False,
    f"tcp port 80 and client {CLIENT} and not verdict accept": lambda w: (
        w["verdict"] != "ACCEPT" and ":80 " in w["packet"] and CLIENT in w["packet"]
    ),
}
NONE = {"client 192.0.3.0/24", "mark 0 and not (tcp or udp)"}


@pytest.mark.parametrize("batch", [0, 3, 6, 9])
def test_what_a_filter_takes(lab: Running, batch: int) -> None:
    """Beside a trace of everything: of that, what the filter means, whole and nothing twice."""
    filters = list(FILTERS)[batch : batch + 3]
    everything, *taken = [list[dict[str, Any]]() for _ in range(4)]
    with ExitStack() as stack:
        clients = [stack.enter_context(lab.client()) for _ in range(4)]
        for client, words in zip(clients, ("", *filters), strict=True):
            client.trace(words, 1000)
        get(lab)
        get(lab, f"http://[{lab.vip(6)}]/")
        for port in (98, 99):
            get(lab, f"http://{VIP}:{port}/", "--local-port", "40000-49999")

        def come() -> bool:
            everything.extend(map(json.loads, clients[0].walks()))
            whys = {walk["why"] for walk in everything}
            return whys >= {"weight_0", "no_dest", "reply"} and clients[0].traced().matched == len(everything)

        wait_for(come, lambda: str([walk["packet"] for walk in everything]), PATIENCE_S)
        for words, client, found in zip(filters, clients[1:], taken, strict=True):
            found += map(json.loads, client.walks())
            wanted = [walk["time"] for walk in everything if FILTERS[words](walk)]
            assert [walk["time"] for walk in found] == wanted, (words, [walk["packet"] for walk in found])
            assert bool(wanted) == (words not in NONE), words
            assert [walk["number"] for walk in found] == list(range(1, len(found) + 1))
            assert client.traced() == (len(wanted), 0)


# ---- the command


@contextmanager
def tracing(lab: Running, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The command, once it traces. What it says besides its walks is read from standard error."""
    pipe = subprocess.PIPE
    with lab.lab.popen("director", [*UVS, "trace", *words], stdout=pipe, stderr=pipe, text=True) as process:
        stream = process.stderr if {"--json", "--pcap"} & set(words) else process.stdout
        said = [stream.readline()]
        while said[-1] and not said[-1].startswith("tracing "):
            said.append(stream.readline())
        assert said[-1], (said, process.stderr.read() if stream is process.stdout else "")
        process.said = said
        try:
            yield process
        finally:
            process.terminate()


def test_as_json(lab: Running) -> None:
    with tracing(lab, "--json", "--count", "3", "service", f"{VIP}:80") as process:
        assert process.said[-1] == f"tracing service {VIP}:80, at most 20 walks a second; Ctrl-C ends it\n"
        get(lab)
        out, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    walks = [json.loads(line) for line in out.splitlines()]
    assert [list(wrong(SCHEMA, walk)) for walk in walks] == [[]] * 3
    assert [walk["why"] for walk in walks] == ["forwarded", "reply", "forwarded"]
    assert walks[0]["changes"] is None
    assert {"layer": "TCP", "field": "checksum"}.items() <= walks[0]["sent"][0]["changes"][-1].items()
    assert "3 walks shown" in said


def test_as_text_and_why_not(lab: Running) -> None:
    """Walks as `uvs walk` tells them; before and after them the reasons of drops, with what to do."""
    with tracing(lab, "verdict", "drop") as process:
        get(lab, f"http://{VIP}:99/")
        line = ""
        while not line.startswith("1 "):
            line = process.stdout.readline()
        assert line.startswith(f"1  LOCAL_IN  TCP {CLIENT}:")
        process.terminate()
        out, err = process.stdout.read(), process.stderr.read()
        assert (process.wait(PATIENCE_S), err) == (0, "")
    assert "DROP    no_dest: the service has no real server for it" in out
    during = out[out.index("during the trace: ") :]
    assert "no_dest       the service has no real server for it" in during
    assert "→ add a server (uvsadm -a)" in during
    told = lab.lab.check("director", [*UVS, "trace", "--summary"])
    assert told.startswith("since the director's start: ")
    assert "no_dest" in told


def test_as_a_capture(lab: Running) -> None:
    """Both sides of the rewrite, each with a comment; tcpdump reads it."""
    inside = "/run/trace.pcapng"
    file = lab.lab.path(inside)
    with tracing(lab, "--pcap", inside, "service", f"{VIP}:80") as process:
        get(lab)
        with lab.client() as client:
            wait_for(lambda: len(list(client.conns())) > 0, "a connection")
        wait_for(lambda: file.stat().st_size > 2000, "the capture", PATIENCE_S)
        process.terminate()
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    with RawPcapNgReader(str(file)) as reader:
        records = list(reader)
    came, left, answer, answered = (IP(data) for data, _ in records[:4])
    assert (came.dst, left.dst, left[TCP].dport, left.ttl) == (VIP, RS1, 80, came.ttl - 1)
    assert (answer.src, answered.src, answered.dst) == (RS1, VIP, CLIENT)
    for packet in (came, left, answer, answered):
        again = IP(bytes(packet))
        del again.chksum, again[TCP].chksum
        assert bytes(again) == bytes(packet), "its checksums are right"
    assert [meta.direction for _, meta in records[:4]] == [1, 2, 1, 2]
    comments = [getattr(meta, "comments", None) or [meta.comment] for _, meta in records[:2]]
    assert comments[0][0].startswith(b"1 LOCAL_IN STOLEN forwarded: TCP ")
    assert comments[1][0].startswith(f"1 LOCAL_IN sent via {RS1}".encode())
    read = subprocess.run(["tcpdump", "-nr", str(file)], capture_output=True, text=True)
    assert len(read.stdout.splitlines()) == len(records), read.stderr


def test_one_that_dies_leaves_nothing_on(lab: Running) -> None:
    """Four at once; a fifth is told so; the places of those that were killed are free."""
    with ExitStack() as stack:
        running = [stack.enter_context(tracing(lab, "tcp")) for _ in range(4)]
        done = lab.lab.run("director", [*UVS, "trace"])
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("uvs trace: 4 traces run already ")
        assert done.stderr.count("\n") == 1
        for process in running:
            process.kill()

    def free() -> bool:
        try:
            with ExitStack() as clients:
                for _ in range(4):
                    clients.enter_context(lab.client()).trace("", 1)
        except IpvsError:
            return False
        return True

    wait_for(free, "their places", PATIENCE_S)
    if is_native(lab):
        with lab.client() as client:

            def fast_again() -> bool:
                """But for a way that is asked for again in between."""
                before = slow_and_all(client)
                get(lab)
                after = slow_and_all(client)
                return after[0] - before[0] <= 2 and after[1] > before[1]

            wait_for(fast_again, "the fast path has them again", PATIENCE_S)


# ---- under load


def is_native(lab: Running) -> bool:
    with lab.client() as client:
        return len(client.queues()) > 1


def slow_and_all(client: Client) -> tuple[int, int]:
    """Packets of the hook path, and all."""
    rows = client.queues()
    return sum(int(row.get("slow") or 0) for row in rows), sum(int(row["packets"] or 0) for row in rows)


@pytest.fixture(scope="module")
def sender(tmp_path_factory: pytest.TempPathFactory) -> str:
    program = tmp_path_factory.mktemp("sender") / "sender"
    subprocess.run(
        [os.environ.get("CC", "cc"), "-std=gnu11", "-O2", HERE / "sender.c", "-o", program], check=True
    )
    return str(program)


@contextmanager
def flood(lab: Running, sender: str, rate: int) -> Iterator[None]:
    """Datagrams of known connections, to a server that drops them."""
    inside = lab.lab
    inside.check("director", ["ip", "route", "replace", SOURCES, "via", CLIENT])
    rule = ["PREROUTING", "-p", "udp", "-j", "DROP"]
    inside.check("rs1", ["iptables", "-t", "raw", "-A", *rule])
    mac = lab.mac("director")
    words = [sender, "udp", "eth0", mac, VIP, str(PORT), "1", str(FLOWS), str(rate), "120"]
    try:
        with inside.popen("client", words, stdout=subprocess.DEVNULL) as process, lab.client() as client:
            try:
                wait_for(
                    lambda: json.loads(client.total()[1])["conns"] >= FLOWS * 0.9,
                    "its connections",
                    PATIENCE_S,
                )
                yield
            finally:
                process.terminate()
    finally:
        inside.check("rs1", ["iptables", "-t", "raw", "-D", *rule])


def used(pid: int) -> int:
    """ns of processor time of a process, its threads together."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


WINDOW_S = 0.25
MATCHES_NOTHING = "(client 203.0.113.0/24 or service 203.0.113.2:81) and tcp or server 203.0.113.3 or port 9"


def test_what_matches_nothing_costs_nothing(lab: Running, sender: str) -> None:
    """Processor time a packet, with a trace that matches nothing and without, in turns: less than a tenth more."""
    pid = lab.director.pid

    def cost(seconds: float) -> float:
        """ns a packet."""
        before, time_before = slow_and_all(client)[1], used(pid)
        time.sleep(seconds)
        packets, spent = slow_and_all(client)[1] - before, used(pid) - time_before
        assert packets > 100
        return spent / packets

    ratios: list[float] = []
    with flood(lab, sender, 40_000 if is_native(lab) else 4000), lab.client() as client:
        begin, off = time.monotonic(), cost(WINDOW_S)
        while len(ratios) < 8 or (statistics.median(ratios) >= 1.06 and time.monotonic() < begin + 25):
            with lab.client() as other:
                other.trace(MATCHES_NOTHING, 50)
                on = cost(WINDOW_S)
                assert other.traced() == (0, 0)
            after = cost(WINDOW_S)
            ratios.append(on / statistics.mean((off, after)))
            off = after
    print(f"\ncost with a filter that matches nothing: {statistics.median(ratios):.3f} of {sorted(ratios)}")
    assert statistics.median(ratios) < 1.1, ratios


def test_never_more_than_its_rate(lab: Running, sender: str) -> None:
    """Under load, of what matches: so many walks a second, the rest counted, and left to the fast path."""
    rate = 20
    with (
        flood(lab, sender, 20_000 if is_native(lab) else 3000),
        lab.client() as tracer,
        lab.client() as client,
    ):
        before = slow_and_all(client)
        begin = time.monotonic()
        tracer.trace(f"service {VIP}:{PORT}", rate)
        number, walks = 0, list[str]()
        while time.monotonic() < begin + 1.5:
            walks += tracer.walks()
            time.sleep(0.05)
        walks += tracer.walks()
        counts = tracer.traced()
        took = time.monotonic() - begin
        after = slow_and_all(client)
        number = json.loads(walks[-1])["number"]
    assert number == len(walks), "none was lost"
    assert rate <= len(walks) <= rate * (took + 1)
    assert counts.matched > 10 * len(walks)
    assert 0 <= counts.matched - counts.suppressed - len(walks) <= 2, "what is on its way at the end"
    if is_native(lab):
        slow, packets = (now - then for now, then in zip(after, before, strict=True))
        # A way that is asked for again may take a burst there.
        assert slow - len(walks) < packets / 20, "the rest stayed in the fast path"


def test_text_tells_of_what_is_not_shown(lab: Running) -> None:
    with tracing(lab, "--rate", "1", "--seconds", "1.2", "tcp", "port", "80") as process:
        for _ in range(3):
            get(lab)
        out, _ = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0
    assert " more matched, not shown (--rate)" in out
    assert lab.lab.path(SOCKET).exists()
