"""Checksums against definitions written down plainly."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from support.packets import loaded
from support.strategies import Datagram, datagrams

from uvs.engine.core import checksum, crc32c, ffi, lib


def plain_sum(data: bytes) -> int:
    """RFC 1071: the ones' complement sum of big-endian words, odd lengths padded with zero."""
    data += b"\0" * (len(data) % 2)
    total = sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def in_memory(value: int) -> bytes:
    """A checksum as the engine returns it, as the bytes that stand in a packet."""
    return bytes(ffi.buffer(ffi.new("uint16_t *", value)))


def swap(value: int) -> int:
    return (value & 0xFF) << 8 | value >> 8


@given(st.binary(max_size=300))
def test_definition(data: bytes) -> None:
    assert checksum(data) == plain_sum(data) ^ 0xFFFF


@given(st.binary(max_size=300), st.integers(0, 300))
def test_any_alignment(data: bytes, skip: int) -> None:
    skip = min(skip, len(data))
    buf = ffi.from_buffer(data)
    assert in_memory(lib.uvs_csum(buf + skip, len(data) - skip, 0)) == (
        plain_sum(data[skip:]) ^ 0xFFFF
    ).to_bytes(2, "big")


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=4))
def test_any_splits(data: bytes, cuts: list[int]) -> None:
    """Even splits go on from the sum so far; what begins at an odd offset counts with its bytes swapped."""
    bounds = [0, *sorted(min(c, len(data)) for c in cuts), len(data)]
    total, even = 0, 0
    for a, b in pairwise(bounds):
        if a % 2 == 0 and b % 2 == 0:
            even = lib.uvs_csum_add(ffi.from_buffer(data) + a, b - a, even)
        else:
            part = checksum(data[a:b]) ^ 0xFFFF
            total += swap(part) if a % 2 else part
    total += int.from_bytes(in_memory(lib.uvs_csum(b"", 0, even)), "big") ^ 0xFFFF
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    assert total == plain_sum(data)


@given(st.binary(min_size=2, max_size=100), st.integers(0, 100), st.binary(max_size=20))
def test_incremental(data: bytes, at: int, change: bytes) -> None:
    """RFC 1624: replacing words gives the checksum that the whole has afterwards (0 and 0xffff are the same)."""
    data = data[: len(data) // 2 * 2]
    at = at % len(data) // 2 * 2
    change = change[: (len(data) - at) // 2 * 2]
    change = change[: len(change) // 2 * 2]
    new = data[:at] + change + data[at + len(change) :]
    old_check = lib.uvs_csum(data, len(data), 0)
    check = lib.uvs_csum_replace(old_check, data[at : at + len(change)], change, len(change))
    assert (int.from_bytes(in_memory(check), "big") - checksum(new)) % 0xFFFF == 0
    assert plain_sum(new + in_memory(check)) in (0, 0xFFFF)


@given(st.binary(max_size=80))
def test_crc32c(data: bytes) -> None:
    """Bit by bit: RFC 9260 appendix A."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    assert crc32c(data) == crc ^ 0xFFFFFFFF


@given(datagrams())
def test_scapys_packets_are_right_and_ours_the_same(d: Datagram) -> None:
    pkt = loaded(d.data)
    assert pkt.l4_csum_ok()
    pkt.csum_fill()
    assert pkt.data == d.data


@given(datagrams(sizes=st.binary(min_size=1, max_size=64)), st.data())
def test_any_wrong_bit_is_seen(d: Datagram, draw: st.DataObject) -> None:
    """A single bit of the payload; none can hide in a ones' complement sum or a CRC."""
    data = bytearray(d.data)
    start = {6: d.l4 + 20, 17: d.l4 + 8, 132: d.l4 + 12}.get(d.protocol, d.l4 + 4)
    data[draw.draw(st.integers(start, len(data) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    assert not loaded(bytes(data)).l4_csum_ok()
