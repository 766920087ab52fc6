"""A helper's changes of a server's TCP stream: the client sees one stream without gaps, the server its own."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw
from support.packets import CLIENT, CLIENT6, SERVER, SERVER6, dissect, loaded
from support.table import World

from uvs.engine.core import ConnFlag, Why

WRAP = 1 << 32


def packet(v6: bool, seq: int, ack: int, data: bytes, **fields: object) -> object:
    ip = IPv6(src=SERVER6, dst=CLIENT6) if v6 else IP(src=SERVER, dst=CLIENT)
    return ip / TCP(sport=21, dport=1024, flags="PA", seq=seq % WRAP, ack=ack % WRAP, **fields) / Raw(data)


@settings(deadline=None, max_examples=60)
@given(
    v6=st.booleans(),
    start=st.integers(0, WRAP - 1),
    segments=st.lists(
        st.tuples(st.integers(1, 40), st.booleans(), st.integers(0, 40), st.integers(0, 60)), max_size=12
    ),
)
def test_a_stream(v6: bool, start: int, segments: list[tuple[int, bool, int, int]]) -> None:
    """Segments in order, some of which get other words: what each side counts fits what it got."""
    rnd = random.Random(start)
    with World(v6=v6) as w:
        app = w.table.app_data(w.new(flags=ConnFlag.OUT_SEQ), make=True)
        assert app is not None
        server, client = start, start  # next byte, as each counts
        for size, change, cut, n in segments:
            data = rnd.randbytes(size)
            pkt = loaded(packet(v6, server, 1, data))
            head = len(pkt.data) - size
            text = data
            if change:
                at, cut = size // 2, min(cut, size - size // 2)
                text = data[:at] + b"x" * n + data[at + cut :]
                assert pkt.mangle_tcp(head + at, cut, b"x" * n) == 0
                if n != cut:
                    app.resized(server % WRAP, n - cut)
            pkt.seq_out(app)
            got = dissect(pkt.data)
            assert got[TCP].seq == client % WRAP
            assert pkt.data[head:] == text
            assert pkt.l4_csum_ok()
            assert (pkt.iph.end, pkt.iph.segment) == (pkt.len, len(text))
            server, client = server + size, client + len(text)
            if not text:
                continue  # nothing new for the client to acknowledge
            back = loaded(
                packet(v6, 1, client, b"", options=[("SAck", (client % WRAP, (client + 9) % WRAP))])
            )
            assert back.seq_in(app) == 0
            told = dissect(back.data)[TCP]
            assert told.ack == server % WRAP
            assert told.options[0][1] == (server % WRAP, (server + 9) % WRAP)
            assert back.l4_csum_ok()


@pytest.mark.parametrize("v6", [False, True])
def test_no_place(v6: bool) -> None:
    """Outside the payload, or beyond what a packet holds: refused, and nothing is done."""
    pkt = loaded(packet(v6, 1, 1, b"hello"))
    head, before = len(pkt.data) - 5, pkt.data
    for off, size in ((head - 1, 1), (head, 6), (head + 6, 0), (0, 0), (1 << 31, 1), (head, 1 << 31)):
        assert pkt.mangle_tcp(off, size, b"x") == Why.MALFORMED
    assert pkt.mangle_tcp(head, 0, bytes(65536 - head)) == Why.TOO_BIG
    assert pkt.data == before
    assert pkt.mangle_tcp(head + 5, 0, b"!") == 0
    assert pkt.data[head:] == b"hello!"


def test_a_header_longer_than_the_packet() -> None:
    """There is no payload to change, even at its end: what would follow belongs to the header."""
    pkt = loaded(IP(src=CLIENT, dst=SERVER) / TCP(dataofs=15))
    assert pkt.mangle_tcp(40, 0, b"x" * 40) == Why.MALFORMED
