"""The native driver's threads: any packet on any of them, Python beside them, and a flood that starves nobody."""

from __future__ import annotations

import socket
from collections import Counter

import pytest
from support import clients

from uvs.lab import processes
from uvs.netfilter.plan import Class

SIZE = 20_000_000
WORKERS = 3
FLOOD = 40_000
SOURCES = [f"192.0.2.{number}" for number in range(50, 74)]


def native(*options: str) -> tuple[str, ...]:
    return (*processes.UVS, "run", "--driver", "native", *options)


def rows(running) -> dict[str, list[dict[str, int]]]:
    """What the queues have counted, by class, in the workers' order."""
    found: dict[str, list[dict[str, int]]] = {}
    with running.client() as client:
        for row in client.queues():
            found.setdefault(row["class"], []).append(row)
    return found


def counted(running, name: str) -> int:
    """One of the counters, of all queues."""
    return sum(row[name] for each in rows(running).values() for row in each)


def ask_from(sources: list[str], vip: str) -> list[str]:
    """A request from each source address; who answered."""
    answers = []
    for source in sources:
        with socket.create_connection((vip, 80), 30, (source, 0)) as sock:
            sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with sock.makefile("rb") as answer:
                answers.append(answer.read().rpartition(b"\r\n\r\n")[2].decode().strip())
    return answers


@pytest.mark.parametrize("mode", ["nat", "dr", "tun"])
def test_several_workers(make_lab, mode) -> None:
    """Flows are spread over them, requests and replies of one need not meet, and the servers have their turns."""
    running = make_lab(mode, program=native("--queues", str(WORKERS)))
    lab, vip = running.lab, running.vip(4)
    lab.check("client", ["sh", "-c", "; ".join(f"ip addr add {each}/24 dev eth0" for each in SOURCES)])
    answers = lab.call("client", ask_from, SOURCES, vip)
    assert Counter(answers) == {f"rs{n}": len(SOURCES) // 3 for n in (1, 2, 3)}
    for family in (4, 6):
        for direction in (clients.upload, clients.download):
            _, there, here = lab.call("client", direction, running.vip(family), SIZE, timeout=120)
            assert there == here
    found = rows(running)
    assert {kind: len(each) for kind, each in found.items()} == {c.name.lower(): WORKERS for c in Class}
    for kind in ("request", "syn", *(["reply"] if mode == "nat" else [])):
        assert all(row["packets"] for row in found[kind]), (kind, found[kind])
    everything = [row for each in found.values() for row in each]
    assert all(row[bad] == 0 for row in everything for bad in ("lost", "cut", "unsaid", "errors"))
    # Once the way to each server is known, nothing enters Python but what comes while a way is asked for again.
    for family in (4, 6):
        went = []
        for _ in range(5):
            before = counted(running, "slow"), counted(running, "fast")
            lab.call("client", clients.parallel, running.vip(family), 200)
            went.append((counted(running, "slow") - before[0], counted(running, "fast") - before[1]))
            if went[-1][0] < 10:
                break
        assert went[-1][0] < 10, went
        assert went[-1][1] > 800


def test_a_flood_of_syns(make_lab) -> None:
    """An established transfer goes on while a flood fills the queue of SYNs, and a new request is answered after it."""
    running = make_lab(servers=1, program=native("--conn-max", "200000"))
    lab, vip = running.lab, running.vip(4)
    progress = clients.Progress(limit=SIZE // 10)
    transfer = lab.begin("client", clients.upload, vip, SIZE, progress, 120)
    try:
        progress.wait(SIZE // 10)
        lab.call("client", clients.flood_of_syns, vip, 80, FLOOD, timeout=120)
        progress.release()
        _, there, here = transfer.result(120)
    finally:
        transfer.close()
    assert there == here
    (syn,) = rows(running)["syn"]
    assert syn["packets"] > FLOOD // 4
    assert lab.call("client", clients.parallel, vip, 5) == ["rs1"] * 5


def test_changes_of_the_table_under_load(make_lab) -> None:
    """Services are cleared and restored, servers change, while transfers run: these go on."""
    running = make_lab()
    lab = running.lab
    saved = running.uvsadm("-S", "-n")
    with running.transfers(SIZE, 4, 6) as release:
        for turn in range(3):
            running.uvsadm("-C")
            lab.check("director", [*processes.UVSADM, "-R"], stdin=saved)
            if turn == 1:
                release()
    assert running.uvsadm("-S", "-n") == saved
