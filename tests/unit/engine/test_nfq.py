"""What the kernel's messages become, and what is said to it: the queue's loop over a socket of the test's own."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.sctp import SCTP, SCTPChunkData
from support.kernel_queue import (
    CAP_LEN,
    CSUMNOTREADY,
    FORWARD,
    GSO,
    LOCAL_IN,
    LOCAL_OUT,
    MARK,
    NEXT_HOP,
    PACKET,
    PACKET_HDR,
    PAYLOAD,
    QUEUE,
    SKB_INFO,
    Kernel,
    Said,
)
from support.packets import CLIENT, CPORT, DPORT, SERVER, VIP, VPORT, half
from support.world import dissect, sums_right

from uvs.engine.core import AF_INET, NextHop, Why, clock
from uvs.engine.io import BATCH, Queued
from uvs.netfilter.nfnetlink import attribute, message


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    made = Kernel()
    yield made
    made.close()


def tcp(src: str, sport: int, dst: str, dport: int, flags: str = "A", size: int = 0) -> bytes:
    return bytes(IP(src=src, dst=dst) / TCP(sport=sport, dport=dport, flags=flags) / (b"x" * size))


SYN = tcp(CLIENT, 9, VIP, VPORT, "S")
REQUEST = tcp(CLIENT, CPORT, VIP, VPORT)
DATA = bytes(range(250)) * 12
STRAY = tcp(SERVER, 9, CLIENT, 9)


def slow(kernel: Kernel) -> list[Queued]:
    """What came to the hook path; all of it is dropped."""
    found = []
    while packet := kernel.queue.slow():
        found.append(packet)
        kernel.queue.verdict(False)
    return found


def test_order(kernel: Kernel) -> None:
    """What the fast path takes is said at the batch's end, what is for the hook path by that, in order."""
    for n, (data, hook) in enumerate(
        ((STRAY, FORWARD), (SYN, LOCAL_IN), (STRAY, FORWARD), (SYN, LOCAL_IN)), 1
    ):
        kernel.hand(n, data, hook, attribute(MARK, struct.pack("!I", 7)))
    assert kernel.step() == 4
    assert kernel.said() == [Said(1, True), Said(3, True)]
    for n in (2, 4):
        packet = kernel.queue.slow()
        assert packet
        assert (packet.id, packet.data, packet.mark) == (n, SYN, 7)
        assert kernel.queue.slow() == packet
        kernel.queue.verdict(True, b"other", 8)
        assert kernel.said() == [Said(n, True, b"other", 8)]
    assert kernel.queue.slow() is None
    counted = {"packets": 4, "fast": 2, "slow": 2, "lost": 0, "cut": 0, "refused": 0, "unsaid": 0}
    assert kernel.queue.info == counted


def test_a_verdict_for_many_reaches_nobody_elses(kernel: Kernel) -> None:
    """All that is dropped in a batch goes by one verdict, unless the hook path has one of the packets before it."""
    for n, data in enumerate((REQUEST, REQUEST, SYN, REQUEST, REQUEST), 1):
        kernel.hand(n, data)
    assert kernel.step() == 5
    said = kernel.said()
    assert sorted(said) == [Said(n, False) for n in (1, 2, 4, 5)]
    assert kernel.waiting == [3]
    kernel.hand(6, REQUEST)
    kernel.hand(7, STRAY, FORWARD)
    kernel.hand(8, REQUEST)
    assert kernel.step() == 3
    assert sorted(kernel.said()) == [Said(6, False), Said(7, True), Said(8, False)]
    assert kernel.waiting == [3]
    assert [packet.id for packet in slow(kernel)] == [3]
    kernel.said()
    for n, (data, hook) in enumerate(((REQUEST, LOCAL_IN), (STRAY, FORWARD), (REQUEST, LOCAL_IN)), 9):
        kernel.hand(n, data, hook)
    assert kernel.step() == 3
    assert sorted(kernel.said()) == [Said(9, False), Said(10, True), Said(11, False)]
    assert not kernel.waiting


def test_drops_that_wait(kernel: Kernel) -> None:
    """For the next batch's, half a batch of them, a verdict of another kind, or until they are settled."""
    kernel.queue.hold()
    number = 0

    def step(*packets: tuple[bytes, int]) -> list[Said]:
        nonlocal number
        for data, hook in packets:
            number += 1
            kernel.hand(number, data, hook)
        assert kernel.step() == len(packets)
        return sorted(kernel.said())

    request, stray = (REQUEST, LOCAL_IN), (STRAY, FORWARD)
    assert step(request, request) == []
    assert step(stray) == [Said(1, False), Said(2, False), Said(3, True)]
    assert step(request) == []
    kernel.queue.settle()
    assert kernel.said() == [Said(4, False)]
    kernel.queue.settle()
    assert kernel.said() == []
    for _ in range(BATCH // 2 - 1):
        assert step(request) == []
    assert step(request) == [Said(n, False) for n in range(5, number + 1)]
    assert not kernel.waiting


def test_drops_that_wait_reach_nobody_elses(kernel: Kernel) -> None:
    """One of a packet that came before one of the hook path is said without harm to that."""
    kernel.queue.hold()
    for number, data in enumerate((REQUEST, SYN, REQUEST), 1):
        kernel.hand(number, data)
        kernel.step()
    assert sorted(kernel.said()) == [Said(1, False), Said(3, False)]
    assert kernel.waiting == [2]


def test_drops_of_what_this_host_sent_do_not_wait(kernel: Kernel) -> None:
    """They count against the sender's socket until they are gone."""
    kernel.queue.hold()
    kernel.hand(1, b"\x45" + bytes(19), LOCAL_OUT, attribute(CAP_LEN, struct.pack("!I", 99)))  # cut
    kernel.step()
    assert kernel.said() == [Said(1, False)]


def test_a_hook_path_that_is_behind(kernel: Kernel) -> None:
    """What has no room before it waits, and nothing is lost or taken twice."""
    data = tcp(CLIENT, 9, VIP, VPORT, "S", 60_000)
    handed = done = 0
    taken = []
    while handed < 40:
        handed += 1
        kernel.hand(handed, data)
        done += kernel.step()
        if kernel.queue.full:
            assert kernel.step() == 0
            kernel.hand(handed + 1, data)
            handed += 1
            assert kernel.step() == 0  # the batch in hand comes first
            taken += [packet.id for packet in slow(kernel)]
            done += kernel.step() + kernel.step()
            assert not kernel.queue.full
            kernel.said()
    taken += [packet.id for packet in slow(kernel)]
    assert (done, taken) == (handed, list(range(1, handed + 1)))
    assert kernel.queue.info["slow"] == handed > 20


def test_what_waited_for_room_is_timed_by_when_it_is_done(kernel: Kernel) -> None:
    """Else the time that Python took would be missing from the connection's."""
    (conn,) = kernel.table.conns()
    large = tcp(CLIENT, 9, VIP, VPORT, "S", size=60_000)
    handed = 0
    while not kernel.queue.full:
        kernel.hand(handed + 1, large)
        kernel.hand(handed + 2, REQUEST)
        handed += 2
        kernel.step()
    slow(kernel)
    began = clock()()
    assert kernel.step() == 2
    assert conn.deadline - conn.timeout * 1_000_000 >= began


def test_a_budget(kernel: Kernel) -> None:
    for n in range(1, 6):
        kernel.hand(n, STRAY, FORWARD)
    assert [kernel.step(2) for _ in range(4)] == [2, 2, 1, 0]


def test_datagrams_whose_fragments_nobody_looked_at_yet(kernel: Kernel) -> None:
    """Their heads come before them by another socket: while one waits there, datagrams are for the hook path."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        datagram = bytes(
            IP(src=CLIENT, dst=VIP) / SCTP(sport=9, dport=9) / SCTPChunkData(data=b"x")
        )  # opens none
        kernel.fastpath.whole = 1500
        kernel.fastpath.watch(ours.fileno())
        for wait, hook, fast in ((0, LOCAL_IN, 1), (1, FORWARD, 2), (1, LOCAL_IN, 2), (0, LOCAL_IN, 3)):
            if wait:
                theirs.send(b"x")
            kernel.hand(1, datagram, hook)
            kernel.step()
            assert kernel.queue.info["fast"] == fast
            if wait:
                ours.recv(9)


@pytest.mark.parametrize(
    ("data", "more"),
    [(SYN + bytes(70_000 - len(SYN)), b""), (SYN, attribute(CAP_LEN, struct.pack("!I", 99))), (b"", b"")],
    ids=["by the socket", "by the queue", "empty"],
)
def test_what_is_cut_has_a_verdict(kernel: Kernel, data: bytes, more: bytes) -> None:
    """Else it would stay in the queue for good."""
    body = attribute(PACKET_HDR, struct.pack("!IHB", 1, 0x800, LOCAL_IN)) + more
    body += struct.pack("=HH", min(len(data) + 4, 0xFFFF), PAYLOAD) + data
    kernel.socket.send(message(PACKET, 0, AF_INET, QUEUE, body))
    kernel.waiting.append(1)
    assert kernel.step() == 1
    assert slow(kernel) == []
    assert kernel.said() == [Said(1, False)]
    assert kernel.queue.info["cut"] == 1


def test_verdicts_that_the_socket_does_not_take(kernel: Kernel) -> None:
    """A message that is too long goes in pieces; the packet whose content is too long is dropped."""
    kernel.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as small as it can be
    kernel.hand(1, STRAY, FORWARD)
    kernel.hand(2, tcp(SERVER, DPORT, CLIENT, CPORT, size=20_000), FORWARD)
    kernel.hand(3, tcp(SERVER, DPORT, CLIENT, CPORT, size=3), FORWARD)
    kernel.hand(4, STRAY, FORWARD)
    kernel.hand(5, SYN)
    assert kernel.step() == 5
    said = kernel.said()
    assert [each[:2] for each in said] == [(1, True), (2, False), (3, True), (4, True)]
    assert [len(each.payload) for each in said] == [0, 0, 43, 0]
    assert dissect(said[2].payload).src == VIP
    assert sums_right(dissect(said[2].payload))
    kernel.queue.verdict(True, bytes(20_000), 7)
    assert kernel.said() == [Said(5, False)]
    assert kernel.queue.info["unsaid"] == 2


def test_frames_that_are_refused(kernel: Kernel) -> None:
    """Each is counted as the hook path counts it; the last next hop is told, once."""
    for n in (1, 2):
        kernel.hand(n, REQUEST)
    assert kernel.step() == 2
    assert slow(kernel) == []
    assert kernel.said() == [Said(1, False), Said(2, False)]
    why = [0] * len(Why)
    kernel.fastpath.take_counts(why)
    assert {Why(i): n for i, n in enumerate(why) if n} == {Why.FORWARDED: 2, Why.SEND: 2}
    assert kernel.queue.info["refused"] == 2
    assert kernel.queue.take_refusal() == (NEXT_HOP, errno.EBADF)
    assert kernel.queue.take_refusal() is None


@pytest.mark.parametrize("why", ["no offload there", "a SYN", "local out"])
def test_the_hook_path_gets_whole_checksums(why: str) -> None:
    """Whatever it sends on, or hands back, is not looked at again."""
    packet = half(IP(src=CLIENT, dst=VIP) / TCP(sport=CPORT, dport=VPORT, flags="SA"[why != "a SYN"]) / DATA)
    hook = LOCAL_OUT if why == "local out" else LOCAL_IN
    with closing(Kernel(hop=NextHop(1, 1500, cooked=True))) as kernel:
        kernel.hand(1, packet.data, hook, attribute(SKB_INFO, struct.pack("!I", CSUMNOTREADY | GSO)))
        kernel.step()
        (found,) = slow(kernel)
    assert (found.hook, found.gso) == (hook, True)
    assert sums_right(dissect(found.data))
    packet.csum_finish()
    assert found.data == packet.data


def test_gaps_are_losses(kernel: Kernel) -> None:
    for n in (1, 4):
        kernel.hand(n, STRAY, FORWARD)
    kernel.step()
    assert kernel.queue.info["lost"] == 2


attributes = st.tuples(st.integers(0, 30), st.binary(max_size=60) | st.sampled_from([SYN, REQUEST, STRAY]))
messages = st.lists(attributes, max_size=8).map(lambda found: b"".join(attribute(*each) for each in found))


@given(
    st.lists(
        st.tuples(
            messages,
            st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=3),
            st.integers(0, 60),
        ),
        max_size=10,
    )
)
def test_any_message(handed: Any) -> None:
    """Attributes in any order, of any size, bent and cut: nothing is read that is not there."""
    kernel = Kernel()
    try:
        for body, bent, cut in handed:
            text = bytearray(message(PACKET, 0, AF_INET, QUEUE, body))
            for at, value in bent:
                if at < len(text):
                    text[at] = value
            kernel.socket.send(text[: len(text) - cut] or b"x")
        while kernel.step():
            while packet := kernel.queue.slow():
                kernel.queue.verdict(True, packet.data)
        kernel.said()
    finally:
        kernel.close()
