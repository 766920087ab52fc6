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

from uvs.engine.core import AF_INET, NextHop, Why
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


def test_order(kernel: Kernel) -> None:
    """What comes before a packet of the hook path is said before it, what comes behind it, behind."""
    for n, (data, hook) in enumerate(((STRAY, FORWARD), (SYN, LOCAL_IN), (STRAY, FORWARD)), 1):
        kernel.hand(n, data, hook, attribute(MARK, struct.pack("!I", 7)))
    assert kernel.queue.receive() == 3
    for packet in kernel.queue.packets():
        assert (packet.id, packet.data, packet.mark) == (2, SYN, 7)
        assert kernel.said() == [Said(1, True)]
        kernel.queue.verdict(2, True, b"other", 8)
        assert kernel.said() == [Said(2, True, b"other", 8)]
    assert kernel.said() == [Said(3, True)]
    assert kernel.queue.info == {"packets": 3, "fast": 2, "lost": 0, "cut": 0, "refused": 0, "unsaid": 0}


def test_what_was_left_of_a_batch(kernel: Kernel) -> None:
    """Whoever fails in the midst of it finds the rest at the next turn."""
    for n in (1, 2, 3):
        kernel.hand(n, SYN)
    assert kernel.queue.receive() == 3
    assert next(kernel.queue.packets()).id == 1
    kernel.hand(4, SYN)
    assert kernel.queue.receive() == 2
    assert [packet.id for packet in kernel.queue.packets()] == [2, 3]
    assert kernel.queue.receive() == 1


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
    assert kernel.queue.receive() == 1
    assert list(kernel.queue.packets()) == []
    assert kernel.said() == [Said(1, False)]
    assert kernel.queue.info["cut"] == 1


def test_verdicts_that_the_socket_does_not_take(kernel: Kernel) -> None:
    """A message that is too long goes in pieces; the packet whose content is too long is dropped."""
    kernel.ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # as small as it can be
    kernel.hand(1, STRAY, FORWARD)
    kernel.hand(2, tcp(SERVER, DPORT, CLIENT, CPORT, size=20_000), FORWARD)
    kernel.hand(3, tcp(SERVER, DPORT, CLIENT, CPORT, size=3), FORWARD)
    kernel.hand(4, STRAY, FORWARD)
    assert kernel.queue.receive() == 4
    assert list(kernel.queue.packets()) == []
    said = kernel.said()
    assert [each[:2] for each in said] == [(1, True), (2, False), (3, True), (4, True)]
    assert [len(each.payload) for each in said] == [0, 0, 43, 0]
    assert dissect(said[2].payload).src == VIP
    assert sums_right(dissect(said[2].payload))
    kernel.queue.verdict(5, True, bytes(20_000), 7)
    assert kernel.said() == [Said(5, False)]
    assert kernel.queue.info["unsaid"] == 2


def test_frames_that_are_refused(kernel: Kernel) -> None:
    """Each is counted as the hook path counts it; the last next hop is told, once."""
    for n in (1, 2):
        kernel.hand(n, REQUEST)
    assert kernel.queue.receive() == 2
    assert list(kernel.queue.packets()) == []
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
        kernel.queue.receive()
        (found,) = kernel.queue.packets()
    assert (found.hook, found.gso) == (hook, True)
    assert sums_right(dissect(found.data))
    packet.csum_finish()
    assert found.data == packet.data


def test_gaps_are_losses(kernel: Kernel) -> None:
    for n in (1, 4):
        kernel.hand(n, STRAY, FORWARD)
    kernel.queue.receive()
    assert list(kernel.queue.packets()) == []
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
        while kernel.queue.receive():
            for packet in kernel.queue.packets():
                kernel.queue.verdict(packet.id, True, packet.data)
        kernel.said()
    finally:
        kernel.close()
