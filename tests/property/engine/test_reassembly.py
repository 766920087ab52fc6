"""Fragments put together give the original, in any order, with duplicates, among others', and never a mixture."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from scapy.layers.inet import IP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrHopByHop
from scapy.packet import Raw

from uvs.engine.core import Packet, Reassembler, Why

S = 10**9
PACKET = Packet()
sizes = st.integers(1, 9000) | st.integers(1, 65000)


@st.composite
def datagrams(draw: Any, ident: int) -> tuple[bytes, list[bytes]]:
    """A whole datagram and the fragments that ours makes of it."""
    data = Raw(draw(st.randoms(use_true_random=False)).randbytes(draw(sizes)))
    if draw(st.booleans()):
        whole = bytes(
            IP(src="10.9.0.1", dst="198.18.0.100", id=ident, proto=17, tos=draw(st.integers(0, 63)) * 4)
            / data
        )
        mtu = draw(st.integers(68, 9000))
    else:
        head = IPv6(src="2001:db8::1", dst="2001:db8::2")
        if draw(st.booleans()):
            head = head / IPv6ExtHdrHopByHop()
        if draw(st.booleans()):
            head = head / IPv6ExtHdrDestOpt()
        (head.lastlayer() if head.payload else head).nh = 17
        whole = bytes(head / data)
        mtu = draw(st.integers(1280, 9000))
    assert PACKET.load(whole) == 0
    parts = PACKET.fragments(mtu, ident)
    assert parts is not None
    assert all(len(part) <= mtu for part in parts)
    return whole, parts


def gather(reassembler: Reassembler, data: bytes, now: int = S) -> bytes | int:
    assert PACKET.load(data) == 0
    return reassembler.gather(PACKET, 1, now) or PACKET.data


@given(st.data())
def test_every_datagram_comes_back_once(data: st.DataObject) -> None:
    """Several at once, their fragments mixed, some of them twice before the datagram is whole."""
    reassembler = Reassembler(16, 200)
    originals = [data.draw(datagrams(ident)) for ident in range(1, data.draw(st.integers(1, 3)) + 1)]
    # The same fragment once more comes right behind: after its datagram is whole it would begin another.
    stream = [(n, part) for n, (_, parts) in enumerate(originals) for part in parts]
    order = data.draw(st.permutations(stream)) if len(stream) < 200 else stream[::-1]
    missing = [len(parts) for _, parts in originals]
    twice = data.draw(st.integers(0, 3))
    back = []
    for n, part in order:
        result = gather(reassembler, part)
        missing[n] -= 1
        if missing[n]:
            assert result == Why.GATHERED
            for _ in range(twice):
                assert gather(reassembler, part) == Why.GATHERED
        else:
            assert result == originals[n][0]
            back.append(n)
    assert sorted(back) == list(range(len(originals)))
    info = reassembler.info()
    assert (info["queues"], info["blocks"], info["contradictions"], info["refused"]) == (0, 0, 0, 0)


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 24), st.booleans()), min_size=1, max_size=40),
    st.booleans(),
)
def test_whatever_comes_nothing_but_the_original_is_made(
    pieces: list[tuple[int, int, bool]], six: bool
) -> None:
    """Overlaps, gaps, several ends: where every fragment is true to one datagram, so is each whole."""
    text = bytes(range(256)) * 4
    reassembler = Reassembler(4, 30)
    for at, count, more in pieces:
        at, end = at * 8, (at + count) * 8
        if not at and not more:
            continue  # a whole datagram
        if six:
            head = IPv6(src="2001:db8::1", dst="2001:db8::2", nh=44)
            fragment = bytes([17, 0, *(at | more).to_bytes(2), 0, 0, 0, 1])
            packet = bytes(head / Raw(fragment + text[at:end]))
        else:
            flags = "MF" if more else 0
            packet = bytes(IP(proto=17, id=1, frag=at // 8, flags=flags) / Raw(text[at:end]))
        result = gather(reassembler, packet)
        if isinstance(result, bytes):
            body = result[40 if six else 20 :]
            assert body == text[: len(body)]
            assert any(not m and (a + c) * 8 == len(body) for a, c, m in pieces)
    reassembler.expire(100 * S)
    assert (reassembler.info()["queues"], reassembler.info()["blocks"]) == (0, 0)
