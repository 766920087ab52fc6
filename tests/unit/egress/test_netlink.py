"""Messages of a 6.18 kernel, recorded, as what they mean to the next-hop table."""

from __future__ import annotations

import errno
import socket
import struct
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from pyroute2.netlink.rtnl.ndmsg import ndmsg

from uvs.egress.netlink import (
    RTN_LOCAL,
    RTN_UNICAST,
    STORM,
    AnyChange,
    LinkAnswer,
    LinkChange,
    NeighbourAnswer,
    Netlink,
    PrefixChange,
    RouteAnswer,
    Watch,
    decode_event,
    decode_link,
    decode_route,
    encode,
    messages,
)

INET, INET6 = socket.AF_INET, socket.AF_INET6
RTM_NEWLINK, RTM_DELLINK = 16, 17


def a(text: str) -> bytes:
    return ip_address(text).packed


def recorded(name: str) -> bytes:
    return bytes.fromhex(Path(__file__).with_name("recorded").joinpath(f"{name}.hex").read_text())


ROUTES = {
    "by a gateway, with a metric": (
        "7c00000018000000010000008677000002200000fe0000010002000008000f00fe000000080001000a0100050800040003000000"
        "080007000a000001080005000a0000020c0008000800020078050000080019000000000024000c00020000000000000000000000"
        "0000000000000000000000000000000000000000",
        RouteAnswer(RTN_UNICAST, 3, (INET, a("10.0.0.2")), 1400, a("10.0.0.1")),
    ),
    "IPv4 by an IPv6 next hop": (
        "8000000018000000020000008677000002200000fe0000010002000008000f00fe000000080001000a0200050800040003000000"
        "080007000a000001160012000a00fd0000000000000000000000000000020000080019000000000024000c000200000000000000"
        "000000000000000000000000000000000000000000000000",
        RouteAnswer(RTN_UNICAST, 3, (INET6, a("fd00::2")), 0, a("10.0.0.1")),
    ),
    "IPv6, direct": (
        "9c0000001800000003000000867700000a808000fe0200010000000008000f00fe00000014000100fd0000000000000000000000"
        "00000002140002000000000000000000000000000000000014000700fd0000000000000000000000000000010800060000010000"
        "080004000300000024000c0002000000000000000000000000000000000000000000000000000000000000000500140000000000",
        RouteAnswer(RTN_UNICAST, 3, None, 0, a("fd00::1")),
    ),
    "to this host": (
        "6800000018000000050000008677000002200000fe0000020002008008000f00fe000000080001000a0000010800040001000000"
        "080007000a000001080019000000000024000c000100000000000000000000000000000000000000000000000000000000000000",
        RouteAnswer(RTN_LOCAL, 1, None, 0, a("10.0.0.1")),
    ),
}

EVENTS = {
    "neighbour failed": (
        28,
        "400000001c00000000000000d2770000020000000300000020000001080001000a00000208000400000000001400030098000000"
        "980000009800000001000000",
        NeighbourAnswer(3, INET, a("10.0.0.2"), 0x20, b""),
    ),
    "neighbour deleted": (
        29,
        "400000001d0000000000000000000000020000000300000020000001080001000a00000208000400000000001400030098000000"
        "980000009800000000000000",
        NeighbourAnswer(3, INET, a("10.0.0.2"), 0, b""),
    ),
    "neighbour reachable": (
        28,
        "4c0000001c0000000900000086770000020000000300000002000001080001000a0000020a000200020000000002000008000400"
        "000000001400030097000000970000009700000002000000",
        NeighbourAnswer(3, INET, a("10.0.0.2"), 2, bytes.fromhex("020000000002")),
    ),
    "route deleted": (
        25,
        "48000000190000001fc70c6bd277000002100000fe0300010000000008000f00fe000000080001000a0100000c00080008000200"
        "78050000080005000a0000020800040003000000",
        PrefixChange(INET, a("10.1.0.0"), 16),
    ),
    "default route added": (
        24,
        "340000001800000620c70c6bd277000002000000fe0300010000000008000f00fe000000080005000a0000020800040003000000",
        PrefixChange(INET, a("0.0.0.0"), 0),
    ),
    "rule added": (
        32,
        "440000002000000022c70c6bd277000002002000050000010000000008000f000500000008000e00ffffffff0500150000000000"
        "08000600fd7f0000080002000a090909",
        AnyChange(),
    ),
    "address added": (
        20,
        "4c0000001400000023c70c6bd27700000220800001000000080001000a070001080002000a070001070003006c6f000008000800"
        "8000000014000600ffffffffffffffffbce40300bce40300",
        AnyChange(),
    ),
}


@pytest.mark.parametrize("name", ROUTES)
def test_routes(name: str) -> None:
    data, answer = ROUTES[name]
    assert decode_route(bytes.fromhex(data)) == answer


@pytest.mark.parametrize("name", EVENTS)
def test_events(name: str) -> None:
    kind, data, event = EVENTS[name]
    assert decode_event(kind, bytes.fromhex(data)) == event


def test_links() -> None:
    assert decode_link(recorded("link_v0")) == LinkAnswer(
        3, "v0", 1, "veth", 0x11043, 1500, 1500, bytes.fromhex("020000000001")
    )
    assert decode_link(recorded("link_t0")) == LinkAnswer(4, "t0", 0xFFFE, "tun", 0x1091, 1420, 1420, b"")


def test_a_new_mtu_is_told_before_ipv6_has_taken_it_over() -> None:
    """Its event has the old one for IPv6 (addrconf_notify() comes after rtnetlink_event()): to be asked for."""
    mtu = bytes.fromhex("08000400dc050000")  # IFLA_MTU, 1500
    data = recorded("link_v0")
    assert data.count(mtu) == 1
    assert decode_event(RTM_NEWLINK, data) == decode_link(data)
    assert decode_event(RTM_NEWLINK, data.replace(mtu, bytes.fromhex("0800040014050000"))) == LinkChange(3)


@pytest.mark.parametrize(
    ("family", "kind", "event"),
    [
        (socket.AF_UNSPEC, RTM_DELLINK, LinkChange(3)),
        (socket.AF_INET6, RTM_NEWLINK, LinkChange(3)),
        (socket.AF_BRIDGE, RTM_NEWLINK, None),
        (socket.AF_BRIDGE, RTM_DELLINK, None),
    ],
)
def test_messages_about_a_link_that_do_not_describe_it(family: int, kind: int, event: Any) -> None:
    data = bytearray(recorded("link_v0"))
    data[16] = family
    assert decode_event(kind, bytes(data)) == event


def test_a_forwarding_entry_of_a_bridge_is_no_neighbour() -> None:
    data = bytearray.fromhex(EVENTS["neighbour reachable"][1])
    data[16] = socket.AF_BRIDGE
    assert decode_event(28, bytes(data)) is None


def test_a_request_as_the_kernel_wants_it() -> None:
    """struct nlmsghdr, struct ndmsg, NDA_DST: what `ip neigh` with NTF_USE sends."""
    fields = {"family": INET, "ifindex": 3, "state": 0, "flags": 1}
    data = encode(ndmsg, 28, 4, 99, fields, [("NDA_DST", "10.0.0.2")])
    header, body = data[:16], data[16:]
    assert struct.unpack("=IHHII", header)[:4] == (36, 28, 5, 99)
    assert struct.unpack("=BxxxiHBB", body[:12]) == (INET, 3, 0, 1, 0)
    assert body[12:] == struct.pack("=HH", 8, 1) + a("10.0.0.2")


def test_several_messages_in_a_datagram_and_a_cut_one() -> None:
    one = struct.pack("=IHHII", 17, 20, 0, 5, 0) + b"x"
    two = struct.pack("=IHHII", 16, 21, 0, 6, 0)
    cut = struct.pack("=IHHII", 40, 22, 0, 7, 0)
    lying = struct.pack("=IHHII", 3, 23, 0, 8, 0)
    assert list(messages(one + bytes(3) + two + cut)) == [(20, 5, one), (21, 6, two)]
    assert list(messages(two + lying + two)) == [(21, 6, two)]


class Refusing(Netlink):
    """A kernel that answers everything with an error."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code

    def _exchange(self, request: bytearray) -> bytes | None:
        raise OSError(self.code, "refused")


@pytest.mark.parametrize(
    "code", [errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EINVAL, errno.EACCES, errno.EAFNOSUPPORT]
)
def test_refusals(code: int) -> None:
    """No route, unreachable, blackhole, prohibit, a host without the family: never an exception."""
    kernel = Refusing(code)
    assert kernel.route(INET6, a("fd00::2")) is None
    assert kernel.link(3) is None
    assert kernel.neighbour(3, INET6, a("fd00::2")) is None
    assert kernel.use(3, INET6, a("fd00::2")) == code
    kernel.close()


class Feed(Watch):
    """Datagrams of a list; an int is an errno."""

    def __init__(self, *feed: bytes | int) -> None:
        self.feed = list(feed)
        self._socket: Any = self

    def recv(self, _: int) -> bytes:
        if not self.feed:
            raise BlockingIOError
        item = self.feed.pop(0)
        if isinstance(item, int):
            raise OSError(item, "")
        return item


def test_lost_events_are_told_and_other_errors_raised() -> None:
    event = bytes.fromhex(EVENTS["neighbour failed"][1])
    assert [e is None for e in Feed(event, errno.ENOBUFS, event).events()] == [False, True, False]
    with pytest.raises(OSError, match=r"\[Errno 9\]"):
        list(Feed(errno.EBADF).events())


def test_of_a_storm_of_routes_the_rest_is_one_event() -> None:
    route = bytes.fromhex(EVENTS["route deleted"][1])
    neighbour = bytes.fromhex(EVENTS["neighbour failed"][1])
    events = list(Feed(*[route] * (STORM + 100), neighbour).events())
    assert events[:STORM] == [EVENTS["route deleted"][2]] * STORM
    assert events[STORM:] == [EVENTS["neighbour failed"][2], AnyChange()]
