"""What the heads of fragments tell of the datagram that the kernel made of them."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address

import pytest
from scapy.layers.inet import IP, UDP, fragment
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, fragment6
from scapy.packet import Packet, Raw

from uvs.egress.fragments import KEPT, SNAP, Sizes

A, B = "10.9.0.1", "198.18.0.100"
A6, B6 = "2001:db8:9::1", "2001:db8:18::100"


def v4(ident: int, size: int = 3000, cut: int = 1000) -> tuple[bytes, list[bytes]]:
    """A datagram as it is when whole, and its fragments."""
    whole = IP(src=A, dst=B, id=ident) / UDP(sport=1, dport=53) / Raw(bytes(size))
    return bytes(whole), [bytes(f) for f in fragment(whole, cut)]


def v6(ident: int, size: int = 3000, cut: int = 1300) -> tuple[bytes, list[bytes]]:
    body: Packet = UDP(sport=1, dport=53) / Raw(bytes(size))
    parts = fragment6(IPv6(src=A6, dst=B6) / IPv6ExtHdrFragment(id=ident) / body, cut)
    return bytes(IPv6(src=A6, dst=B6) / body), [bytes(f) for f in parts]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("make", [v4, v6])
def test_the_largest_fragment_is_told_once(make, backwards) -> None:
    sizes = Sizes()
    whole, parts = make(7)
    for part in reversed(parts) if backwards else parts:
        sizes.fragment(part[:SNAP])
    assert sizes.largest(whole[:40]) == max(map(len, parts))
    assert sizes.largest(whole[:40]) == 0


@pytest.mark.parametrize("make", [v4, v6])
def test_what_nobody_asks_for_is_forgotten(make) -> None:
    """After a minute or two: until then no datagram of its kind goes by the fast path."""
    sizes = Sizes()
    assert not sizes
    for part in make(7)[1]:
        sizes.fragment(part[:SNAP])
    sizes.forget()
    assert sizes, "its pieces may be waited for"
    later, parts = make(8, 4000)
    for part in parts:
        sizes.fragment(part[:SNAP])
    sizes.forget()
    assert sizes.largest(make(7)[0][:40]) == 0
    assert sizes.largest(later[:40]) == max(map(len, parts))
    assert not sizes
    sizes.forget()
    assert not sizes._whole


@pytest.mark.parametrize("make", [v4, v6])
def test_the_engine_is_told_whose_datagrams_are_remembered(make) -> None:
    sizes = Sizes()
    counted: Counter[bytes] = Counter()

    def count(ends: bytes, by: int) -> None:
        counted[ends] += by

    sizes.count = count
    addresses = b"".join(ip_address(a).packed for a in ((A, B) if make is v4 else (A6, B6)))
    for ident in (7, 7, 8):
        for part in make(ident, 3000 + ident)[1]:
            sizes.fragment(part[:SNAP])
    assert counted == {addresses: len(sizes)} == {addresses: 2}
    sizes.largest(make(7, 3007)[0][:40])
    assert counted == {addresses: 1}
    sizes.forget()
    sizes.forget()
    assert counted == {addresses: 0}
    head = make(0)[1][0][:SNAP]
    at, width = (4, 2) if make is v4 else (40 + 4, 4)  # of the identification
    for ident in range(KEPT + 3):
        sizes.fragment(head[:at] + ident.to_bytes(width) + head[at + width :])
    assert counted == {addresses: KEPT}


@pytest.mark.parametrize("make", [v4, v6])
def test_a_packet_that_came_whole_is_not_taken_for_another(make) -> None:
    """Same ends, another identification (IPv4) or another length (IPv6)."""
    sizes = Sizes()
    for part in make(7)[1]:
        sizes.fragment(part)
    assert sizes.largest(make(8, 1400)[0][:40]) == 0


@pytest.mark.parametrize(
    ("size", "mtu", "largest"),
    [(1000, 1500, 0), (1472, 1500, 0), (1473, 1500, 1500), (3000, 1500, 1500), (3000, 9000, 0), (3000, 0, 0)],
)
def test_what_is_longer_than_the_device_takes_came_in_pieces(size, mtu, largest) -> None:
    """Even if none was seen: the watch began after them, or its buffer was full."""
    for whole, length in ((v4(7, size)[0], size + 28), (v6(7, size - 20)[0], size + 28)):
        assert len(whole) == length
        assert Sizes().largest(whole[:40], mtu) == largest


@pytest.mark.parametrize("make", [v4, v6])
def test_what_was_seen_counts_more_than_what_the_device_takes(make) -> None:
    sizes = Sizes()
    whole, parts = make(7)
    for part in parts:
        sizes.fragment(part[:SNAP])
    assert sizes.largest(whole[:40], 1500) == max(map(len, parts)) < 1500
    assert sizes.largest(whole[:40], 1500) == 1500, "once"


def test_two_datagrams_mixed() -> None:
    sizes = Sizes()
    one, two = v6(7, 3000, 1300), v6(8, 4000, 1400)
    for parts in zip(one[1], two[1], strict=False):
        for part in parts:
            sizes.fragment(part)
    for part in one[1][len(two[1]) :] + two[1][len(one[1]) :]:
        sizes.fragment(part)
    assert sizes.largest(two[0][:40]) == max(map(len, two[1]))
    assert sizes.largest(one[0][:40]) == max(map(len, one[1]))


def test_memory_is_bounded_and_cut_heads_do_no_harm() -> None:
    sizes = Sizes()
    first = v4(0)
    for ident in range(KEPT + 1):
        head = bytearray(first[1][0][:SNAP])
        head[4:6] = ident.to_bytes(2, "big")
        sizes.fragment(bytes(head))
    assert sizes.largest(first[0][:40]) == 0, "the oldest went"
    for head in (b"", b"\x45", first[1][0][:19], b"\x60" + bytes(46)):
        sizes.fragment(head)
