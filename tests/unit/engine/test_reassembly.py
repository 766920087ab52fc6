"""Fragments put together: what is one datagram, what is refused, and what it costs at most."""

from __future__ import annotations

import pytest
from scapy.layers.inet import IP, UDP, IPOption_Timestamp, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrDestOpt, IPv6ExtHdrFragment, IPv6ExtHdrHopByHop
from scapy.packet import Raw

from uvs.engine.core import Packet, Reassembler, Why

S = 10**9
KEPT, REFUSED = Why.GATHERED, Why.REASSEMBLY
BODY = bytes(range(256)) * 12


def v4(at: int, data: bytes, more: bool = True, ident: int = 7, **kw: object) -> bytes:
    return bytes(
        IP(
            src="10.9.0.1",
            dst="198.18.0.100",
            id=ident,
            proto=17,
            frag=at // 8,
            flags="MF" if more else 0,
            **kw,
        )
        / Raw(data)
    )


def v6(at: int, data: bytes, more: bool = True, ident: int = 7, **kw: object) -> bytes:
    ip = IPv6(src="2001:db8::1", dst="2001:db8::2", **kw)
    return bytes(ip / IPv6ExtHdrFragment(offset=at // 8, m=int(more), id=ident, nh=17) / Raw(data))


# One hop-by-hop header of 328 bytes before the Fragment header.
LONG_HEADERS = bytes(IPv6(nh=0) / Raw(bytes([44, 40]) + bytes(326) + bytes([17, 0, 0, 1]) + bytes(12)))

MAKES = pytest.mark.parametrize("make", [v4, v6])


class Host:
    def __init__(self, queues: int = 8, blocks: int = 64) -> None:
        self.packet = Packet()
        self.reassembler = Reassembler(queues, blocks)

    def take(self, data: bytes, user: int = 1, now: int = S) -> bytes | int:
        """The whole datagram, or why there is none."""
        assert self.packet.load(data) == 0
        return self.reassembler.gather(self.packet, user, now) or self.packet.data

    def takes(self, *fragments: bytes) -> list[bytes | int]:
        return [self.take(each) for each in fragments]


@pytest.fixture
def host() -> Host:
    return Host()


def payload(whole: bytes | int) -> bytes:
    assert isinstance(whole, bytes)
    return whole[20 if whole[0] >> 4 == 4 else 40 :]


@MAKES
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (1, 0, 2)])
def test_any_order(host, make, order) -> None:
    parts = [make(0, BODY[:1000]), make(1000, BODY[1000:2000]), make(2000, BODY[2000:], False)]
    *kept, whole = host.takes(*(parts[i] for i in order))
    assert (kept, payload(whole)) == ([KEPT, KEPT], BODY)
    assert host.packet.frag_max == max(map(len, parts))
    assert host.reassembler.info() | {"whole": 1} == dict.fromkeys(host.reassembler.info(), 0) | {"whole": 1}


@MAKES
def test_the_headers_are_the_first_fragments(host, make) -> None:
    first, last = make(0, BODY[:8]), make(8, BODY[8:], False)
    whole = host.takes(last, first)[1]
    if make is v4:
        assert whole == bytes(IP(src="10.9.0.1", dst="198.18.0.100", id=7, proto=17) / Raw(BODY))
    else:
        assert whole == bytes(IPv6(src="2001:db8::1", dst="2001:db8::2", nh=17) / Raw(BODY))


def test_options_and_extension_headers(host) -> None:
    options = [IPOption_Timestamp(flg=0, length=8)]
    whole = IP(src="10.9.0.1", dst="10.9.0.2", id=9, options=options) / UDP(dport=53) / Raw(BODY)
    assert host.takes(*map(bytes, fragment(whole, 1000)))[-1] == bytes(whole)
    body = bytes(IPv6ExtHdrDestOpt() / UDP(dport=53, len=8 + len(BODY), chksum=1) / Raw(BODY))
    head = IPv6(src="2001:db8::1", dst="2001:db8::2") / IPv6ExtHdrHopByHop()
    cut = [
        bytes(head / IPv6ExtHdrFragment(m=1, id=1, nh=60) / Raw(body[:800])),
        bytes(head / IPv6ExtHdrFragment(offset=100, id=1, nh=60) / Raw(body[800:])),
    ]
    again = bytearray(bytes(head / Raw(body)))
    again[40] = 60  # the hop-by-hop header's next one
    assert host.takes(*cut)[-1] == bytes(again)


@pytest.mark.parametrize(
    ("what", "order"),
    [
        ("the same twice", [(0, 1000), (0, 1000), (1000, 2000), (1000, 2000)]),
        ("a part of one", [(0, 1000), (8, 504), (1000, 2000)]),
        ("two at once", [(0, 1000), (1000, 2000), (504, 1504)]),
    ],
)
@MAKES
def test_duplicates_change_nothing(host, make, what, order) -> None:
    """RFC 5722, erratum 3089: what is there already is ignored, its bytes too."""
    seen: set[tuple[int, int]] = set()
    covered: set[int] = set()
    for at, end in order:
        new = not set(range(at, end)) <= covered
        assert host.take(make(at, BODY[at:end] if new else b"\xff" * (end - at))) == KEPT
        covered |= set(range(at, end))
        seen.add((at, end))
    assert payload(host.take(make(2000, BODY[2000:], False))) == BODY
    assert host.reassembler.info()["duplicates"] >= 1


@pytest.mark.parametrize(
    ("what", "first", "then"),
    [
        ("overlaps the one before", (0, 1000, True), (992, 2000, True)),
        ("overlaps the one after", (1000, 2000, True), (0, 1008, True)),
        ("covers it and more", (1000, 2000, True), (992, 2008, True)),
        ("beyond the end", (1000, 2000, False), (2000, 2008, True)),
        ("another end", (1000, 2000, False), (2000, 2008, False)),
        ("ends before what is there", (2000, 3000, True), (1000, 2000, False)),
    ],
)
@MAKES
def test_a_contradiction_ends_the_datagram(host, make, what, first, then) -> None:
    """RFC 5722: all of it goes, so that nobody's choice of bytes wins."""
    pieces = [make(at, BODY[at:end], more) for at, end, more in (first, then)]
    assert host.takes(*pieces) == [KEPT, REFUSED]
    info = host.reassembler.info()
    assert (info["queues"], info["blocks"], info["contradictions"]) == (0, 0, 1)


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("no payload", v4(8, b"")),
        ("fewer than 8 bytes, and more to come", v4(0, b"1234567")),
        ("beyond 65535", v4(65528, b"12345678", False)),
        ("no payload, IPv6", v6(8, b"")),
        ("not a multiple of 8, IPv6", v6(0, b"123456789")),
        ("beyond 65535, IPv6", v6(65528, b"12345678", False)),
        ("headers of more than 256 bytes, IPv6", LONG_HEADERS),
    ],
)  # fmt: skip
def test_what_no_datagram_can_be_made_of(host, what, data) -> None:
    assert host.take(data) == REFUSED
    assert host.reassembler.info()["queues"] == 0


def test_a_total_beyond_65535_with_the_header_is_refused(host) -> None:
    parts = [v4(at, bytes(8192)) for at in range(0, 57344, 8192)]
    assert set(host.takes(*parts)) == {KEPT}
    assert host.take(v4(57344, bytes(8190), False)) == REFUSED
    assert host.reassembler.info()["blocks"] == 0


@MAKES
def test_largest_datagram(make) -> None:
    """IPv4 65535 bytes in all; IPv6 65535 behind its header."""
    host = Host(blocks=64)
    size = 65515 if make is v4 else 65535
    parts = [make(at, bytes(1232)) for at in range(0, size - 1232, 1232)]
    *_, whole = host.takes(*parts, make(len(parts) * 1232, bytes(size - len(parts) * 1232), False))
    assert len(payload(whole)) == size


@MAKES
def test_others_are_kept_apart(host, make) -> None:
    """By identification, by addresses, by hook; IPv4 by protocol too."""
    assert host.take(make(0, BODY[:8])) == KEPT
    assert host.take(make(8, BODY[8:], False, ident=8)) == KEPT
    assert host.take(make(8, BODY[8:], False), user=2) == KEPT
    other = make(8, BODY[8:], False, **({"ttl": 9} if make is v4 else {"hlim": 9}))
    swapped = bytearray(other)
    start, size = (12, 4) if make is v4 else (8, 16)
    swapped[start : start + size], swapped[start + size : start + 2 * size] = (
        other[start + size : start + 2 * size],
        other[start : start + size],
    )
    assert host.take(bytes(swapped)) == KEPT
    if make is v4:
        assert host.take(other[:9] + b"\x84" + other[10:]) == KEPT
    assert isinstance(host.take(other), bytes)


@pytest.mark.parametrize(("make", "wait"), [(v4, 30), (v6, 60)])
def test_an_unfinished_datagram_is_given_up(host, make, wait) -> None:
    """ipfrag_time, ip6frag_time: from its first fragment on, whatever follows."""
    assert host.take(make(0, BODY[:8]), now=S) == KEPT
    assert host.take(make(8, BODY[8:16]), now=wait * S) == KEPT
    host.reassembler.expire((1 + wait) * S)
    assert host.reassembler.info()["queues"] == 0
    assert host.take(make(16, BODY[16:], False), now=(1 + wait) * S) == KEPT
    info = host.reassembler.info()
    assert (info["queues"], info["blocks"], info["expired"]) == (1, 2, 1)


def test_memory_is_bounded() -> None:
    """No room: new datagrams and fragments are refused, until something ends."""
    host = Host(queues=4, blocks=6)
    assert [host.take(v4(0, bytes(8), ident=i)) for i in range(5)] == [KEPT] * 4 + [REFUSED]
    assert host.take(v4(8, bytes(6000), ident=0)) == REFUSED, "three blocks, and two are left"
    assert host.take(v4(8, bytes(4064), ident=0)) == KEPT
    host.reassembler.expire(31 * S)
    assert (host.reassembler.info()["queues"], host.reassembler.info()["blocks"]) == (0, 0)
    assert [host.take(v4(0, bytes(8), ident=i), now=32 * S) for i in range(4)] == [KEPT] * 4


@pytest.mark.parametrize(
    ("first", "second", "whole"),
    [
        (0, 0, 0),
        (2, 2, 2),
        (2, 3, 3),
        (1, 3, 3),
        (3, 3, 3),
        (1, 2, 1),
        (0, 2, None),
        (0, 3, None),
        (3, 0, None),
    ],
)
@MAKES
def test_congestion_marks(host, make, first, second, whole) -> None:
    """RFC 3168 5.3: CE stays; Not-ECT and an ECN mark together are refused."""
    tos = "tos" if make is v4 else "tc"
    result = host.takes(make(0, BODY[:8], **{tos: first}), make(8, BODY[8:], False, **{tos: second}))[1]
    if whole is None:
        assert result == REFUSED
    else:
        packet = (IP if make is v4 else IPv6)(result)
        assert getattr(packet, tos) == whole


@pytest.mark.parametrize(
    ("flags", "df"),
    [(("MF+DF", "DF"), True), (("MF", 0), False), (("MF", "DF"), False), (("MF+DF", 0), True)],
)
def test_dont_fragment_is_that_of_the_largest(host, flags, df) -> None:
    """ip_frag_reasm(): only if the largest fragment had it."""
    first, last = (
        bytes(IP(src="10.9.0.1", dst="10.9.0.2", id=3, proto=17, frag=at // 8, flags=f) / Raw(BODY[at:end]))
        for f, at, end in ((flags[0], 0, 1000), (flags[1], 1000, 1008))
    )
    assert (IP(host.takes(first, last)[1]).flags == "DF") is df


def test_an_atomic_fragment_loses_its_header(host) -> None:
    """RFC 6946: at once, even while others of its identification wait."""
    assert host.take(v6(0, BODY[:8])) == KEPT
    assert host.take(v6(0, BODY[:16], False)) == bytes(
        IPv6(src="2001:db8::1", dst="2001:db8::2", nh=17) / Raw(BODY[:16])
    )
    assert host.packet.frag_max == 64
    assert host.reassembler.info()["queues"] == 1


def test_what_is_whole_is_let_alone(host) -> None:
    data = bytes(IP(dst="198.18.0.100") / UDP() / Raw(BODY))
    assert host.take(data) == data
    assert host.packet.frag_max == 0


@pytest.mark.parametrize(("protocol", "size"), [(6, 20), (17, 8), (58, 8)])
def test_a_first_fragment_without_its_transport_header_is_let_alone(host, protocol, size) -> None:
    """IPv6, RFC 8200 4.5."""

    def first(length: int) -> bytes:
        ip = IPv6(src="2001:db8::1", dst="2001:db8::2")
        return bytes(ip / IPv6ExtHdrFragment(m=1, id=7, nh=protocol) / Raw(bytes(length)))

    for short in range(8, size, 8):
        assert host.take(first(short)) == first(short)
    assert host.reassembler.info()["queues"] == 0
    assert host.take(first(size + 7 & ~7)) == KEPT
