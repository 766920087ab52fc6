"""A packet that is traced on its way from the fast path to the hook path: its mark stays with it, and it is counted once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from scapy.layers.inet import IP, TCP
from scapy.packet import Raw
from support.kernel_queue import FORWARD, Kernel
from support.packets import CLIENT, CPORT, SERVER, VIP, VPORT

from uvs.engine.core import Fast, NextHop, Packet
from uvs.engine.trace import TRACERS, Cond, Op, Want

STRAY = bytes(IP(src=SERVER, dst=CLIENT) / TCP(sport=9, dport=9, flags="A"))


def request(size: int) -> bytes:
    return bytes(IP(src=CLIENT, dst=VIP) / TCP(sport=CPORT, dport=VPORT, flags="A") / Raw(bytes(size)))


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    it = Kernel()
    it.fastpath.flags = Fast.TRACE
    yield it
    it.close()


def test_it_bears_who_wants_it(kernel: Kernel) -> None:
    first, second = kernel.trace.add([], 1), kernel.trace.add([Cond(Op.PORT, 9)], 10)
    assert (first, second) == (0, 1)
    for n in (1, 2, 3):
        kernel.hand(n, STRAY if n < 3 else request(0), FORWARD if n < 3 else 1)
    assert kernel.step() == 3
    told = []
    while packet := kernel.queue.slow():
        told.append((packet.id, packet.traced))
        kernel.queue.verdict(False)
    # The first has had its one of this second: it is counted, and the second gets its own.
    assert told == [(1, 0b11), (2, 0b10 | 0b1 << 4)]
    assert [kernel.trace.counts(n) for n in (first, second)] == [(3, 2), (2, 0)]
    assert [said.id for said in kernel.said() if said.id == 3] == [3], "the fast path did it"


def test_one_that_has_no_room_is_counted_when_it_has() -> None:
    """Its message is read once more: until then nobody was told of it, and no token is gone."""
    handed, rate = 40, 39
    with closing(Kernel(hop=NextHop(1, 65535))) as kernel:
        kernel.fastpath.flags = Fast.TRACE
        traced = kernel.trace.add([], rate)
        for n in range(1, handed + 1):
            kernel.hand(n, request(40_000))
        for _ in range(handed):
            kernel.step()
        assert kernel.queue.full
        assert kernel.trace.counts(traced) == (kernel.queue.open, 0)
        found = 0
        while kernel.queue.slow():
            found += 1
            kernel.queue.verdict(False)
            kernel.step()
        assert found in (rate, rate + 1), "the one a second that comes in the meantime"
        assert kernel.trace.counts(traced) == (handed, handed - found)


def test_a_place_that_is_another_s_by_now(kernel: Kernel) -> None:
    """What was granted to one who has gone does no harm to who came in its place."""
    packet = Packet.of(STRAY)
    gone = kernel.trace.add([], 1)
    assert kernel.fastpath.step(packet, FORWARD, 0).step == 0
    assert packet.traced == 1
    kernel.trace.remove(gone)
    assert kernel.trace.begin(packet, FORWARD, 0, packet.traced, 0) == Want.NOBODY
    assert kernel.trace.add([Cond(Op.PORT, 80)], 1) == gone
    assert kernel.trace.begin(packet, FORWARD, 0, packet.traced, 0) == Want.WALK
    assert kernel.trace.end(1, 0, True, 0) == 0
    assert kernel.trace.counts(gone) == (0, 0)


def test_places_are_few(kernel: Kernel) -> None:
    assert [kernel.trace.add([], 1) for _ in range(TRACERS)] == list(range(TRACERS))
    with pytest.raises(OSError, match=f"{TRACERS} run already"):
        kernel.trace.add([], 1)
    kernel.trace.remove(2)
    assert kernel.trace.on == 0b1011
    assert kernel.trace.add([], 1) == 2


@pytest.mark.parametrize("rate", [0, 1001, 1 << 31])
def test_rates_refused(kernel: Kernel, rate: int) -> None:
    with pytest.raises(OSError, match="no program"):
        kernel.trace.add([], rate)
