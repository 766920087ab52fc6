"""Framing: headers, attributes, acknowledgements, whatever stands in the lengths."""

import struct

import pytest

from uvs.control import netlink
from uvs.control.netlink import Layout, Message, attribute, attributes, messages

REQUEST = struct.pack("=IHHII", 20, 1101, 5, 7, 99) + b"\x0f\x01\0\0"


def test_a_message_is_taken_apart():
    (found,) = messages(REQUEST)
    assert found == Message(1101, 5, 7, 99, b"\x0f\x01\0\0", REQUEST)


def test_several_messages_in_one_datagram_are_aligned():
    odd = struct.pack("=IHHII", 17, 1, 0, 1, 0) + b"x"
    assert [m.seq for m in messages(odd + b"\0\0\0" + REQUEST)] == [1, 7]


@pytest.mark.parametrize(
    ("shows", "datagram"),
    [
        ("empty", b""),
        ("shorter than a header", REQUEST[:15]),
        ("says less than a header", struct.pack("=IHHII", 15, 1, 0, 0, 0)),
        ("says zero", bytes(16)),
        ("says more than there is", struct.pack("=IHHII", 21, 1, 0, 0, 0) + bytes(4)),
        ("says 4 GiB", struct.pack("=IHHII", 0xFFFFFFFF, 1, 0, 0, 0)),
    ],
)
def test_a_length_that_does_not_fit_ends_the_walk(shows, datagram):
    assert list(messages(datagram)) == []
    whole = REQUEST + datagram
    assert [m.seq for m in messages(whole)] == [7]


@pytest.mark.parametrize(
    ("shows", "data", "found"),
    [
        ("padding", attribute(1, b"abc") + attribute(2, b""), {1: b"abc", 2: b""}),
        ("the last of several counts", attribute(1, b"a") + attribute(1, b"b"), {1: b"b"}),
        ("flag bits are masked off", attribute(0x8001, b"a") + attribute(0x4002, b"b"), {1: b"a", 2: b"b"}),
        ("no padding after the last", attribute(1, b"abc")[:-1], {1: b"abc"}),
        ("too long", attribute(1, b"a") + struct.pack("=HH", 9, 2) + b"abcd", {1: b"a"}),
        ("too short", struct.pack("=HH", 3, 1) + bytes(8), {}),
        ("crumbs", attribute(1, b"a") + b"\x08\0\x01", {1: b"a"}),
    ],
)
def test_attributes(shows, data, found):
    assert attributes(data) == found


def test_a_layout_packs_what_attributes_pack_one_by_one():
    layout = Layout((1, "H"), (2, "I"), (3, "16s"), (4, "B"), (5, "Q"))
    one_by_one = b"".join(
        attribute(kind, payload)
        for kind, payload in (
            (1, struct.pack("=H", 7)),
            (2, struct.pack("=I", 8)),
            (3, b"abc".ljust(16, b"\0")),
            (4, b"\x09"),
            (5, struct.pack("=Q", 1 << 40)),
        )
    )
    assert layout.pack(7, 8, b"abc", 9, 1 << 40) == one_by_one
    assert layout.size == len(one_by_one)
    assert layout.unpack(one_by_one) == (7, 8, b"abc".ljust(16, b"\0"), 9, 1 << 40)
    assert layout.unpack(b"????" + one_by_one, 4) == layout.unpack(one_by_one)
    assert layout.unpack(one_by_one[:-1]) is None
    assert layout.unpack(b"\0" + one_by_one[1:]) is None


def test_acknowledgements():
    """An ACK is 36 bytes with the request's header; an error carries all of it; DONE is 20 bytes."""
    (request,) = messages(REQUEST)
    assert netlink.ack(request) == struct.pack("=IHHIIi", 36, 2, 0x100, 7, 99, 0) + REQUEST[:16]
    assert netlink.error(request, 3) == struct.pack("=IHHIIi", 40, 2, 0, 7, 99, -3) + REQUEST
    assert netlink.done(7, 99) == struct.pack("=IHHIIi", 20, 3, 2, 7, 99, 0)
    assert netlink.is_ack(netlink.ack(request), 7)
    assert not netlink.is_ack(netlink.ack(request), 8)
    assert not netlink.is_ack(netlink.ack(request) + REQUEST, 7)
    assert not netlink.is_ack(netlink.error(request._replace(raw=REQUEST[:16]), 3), 7)
    (parsed,) = messages(netlink.error(request, 3))
    assert parsed.errno == 3
