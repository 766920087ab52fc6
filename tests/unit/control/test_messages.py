"""Services and destinations on the wire: against pyroute2's classes, and against constructed bytes."""

import errno
import socket
import struct

import pytest
from pyroute2.netlink.generic.ipvs import ipvsmsg
from support.world import packed

from uvs.control import messages, netlink
from uvs.control.messages import Attr, Dst, Stats, Svc
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec

STATS = Stats(1 << 33, 2, 3, 1 << 40, 5, 6, 7, 8, 1 << 35, 10)
HTTP = ServiceKey(2, 6, packed("10.0.0.1"), 80)
HTTP6 = ServiceKey(10, 6, packed("2001:db8::1"), 443)
MARK = ServiceKey(2, 6, bytes(4), 0, 7)
MARK6 = ServiceKey(10, 6, bytes(16), 0, 0xFFFFFFFF)

SERVICES = [
    ServiceSpec(HTTP, "rr", 1, 360, 0xFFFFFF00),
    ServiceSpec(HTTP6, "wlc", 0x35, 0xFFFFFFFF, 64, "sip"),
    ServiceSpec(MARK, "none"),
    ServiceSpec(MARK6, "a" * 15, netmask=128, pe_name="p" * 16),
    ServiceSpec(ServiceKey(2, 17, packed("255.255.255.255"), 65535), ""),
]
DESTS = [
    DestSpec(2, packed("10.0.0.2"), 8080, 0, 1),
    DestSpec(10, packed("2001:db8::2"), 65535, 2, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 1, 6080, 2),
    DestSpec(2, bytes(4), 0, 3, 0),
]


def decode(payload):
    """By pyroute2's classes."""
    text = netlink.message(1101, 0, 1, 0, 1, payload)
    message = ipvsmsg(text)
    message.decode()
    return message


def by_pyroute2(attrs):
    message = ipvsmsg()
    message["cmd"], message["version"] = 1, 1
    message["attrs"] = attrs
    message.encode()
    return netlink.attributes(bytes(message.data)[20:])


@pytest.mark.parametrize("spec", SERVICES)
def test_a_service_as_pyroute2_reads_it(spec):
    svc = decode(messages.service(spec, STATS)).get_attr("IPVS_CMD_ATTR_SERVICE")
    key = spec.key
    assert svc.get_attr("IPVS_SVC_ATTR_AF") == key.af
    assert svc.get_attr("IPVS_SVC_ATTR_SCHED_NAME") == spec.sched_name
    assert svc.get_attr("IPVS_SVC_ATTR_TIMEOUT") == spec.timeout
    assert svc.get_attr("IPVS_SVC_ATTR_PE_NAME") == (spec.pe_name or None)
    flags = svc.get_attr("IPVS_SVC_ATTR_FLAGS")
    assert (flags["flags"], flags["mask"]) == (spec.flags, 0xFFFFFFFF)
    if key.fwmark:
        assert svc.get_attr("IPVS_SVC_ATTR_FWMARK") == key.fwmark
        assert svc.get_attr("IPVS_SVC_ATTR_ADDR") is None
    else:
        assert svc.get_attr("IPVS_SVC_ATTR_PROTOCOL") == key.protocol
        assert svc.get_attr("IPVS_SVC_ATTR_PORT") == key.port
        assert packed(svc.get_attr("IPVS_SVC_ATTR_ADDR")) == key.addr
    if key.af == 2:  # of an IPv6 prefix length pyroute2 makes an address
        assert packed(svc.get_attr("IPVS_SVC_ATTR_NETMASK")) == struct.pack(">I", spec.netmask)
    wide, low = svc.get_attr("IPVS_SVC_ATTR_STATS64"), svc.get_attr("IPVS_SVC_ATTR_STATS")
    names = [field.upper() for field in Stats._fields]
    assert [wide.get_attr(f"IPVS_STATS_ATTR_{n}") for n in names] == list(STATS)
    assert [low.get_attr(f"IPVS_STATS_ATTR_{n}") for n in names] == [0, 2, 3, 1 << 40, 5, 6, 7, 8, 0, 10]


@pytest.mark.parametrize("spec", DESTS)
def test_a_destination_as_pyroute2_reads_it(spec):
    dest = decode(messages.dest(spec, (4, 5, 6), STATS)).get_attr("IPVS_CMD_ATTR_DEST")
    for name, value in (
        ("PORT", spec.port),
        ("FWD_METHOD", spec.fwd),
        ("WEIGHT", spec.weight),
        ("U_THRESH", spec.u_threshold),
        ("L_THRESH", spec.l_threshold),
        ("ACTIVE_CONNS", 4),
        ("INACT_CONNS", 5),
        ("PERSIST_CONNS", 6),
        ("ADDR_FAMILY", spec.af),
        ("TUN_TYPE", spec.tun_type),
        ("TUN_FLAGS", spec.tun_flags),
        ("TUN_PORT", socket.htons(spec.tun_port)),  # pyroute2 reads it in host order: its fault
    ):
        assert dest.get_attr(f"IPVS_DEST_ATTR_{name}") == value, name
    raw = netlink.attributes(netlink.attributes(messages.dest(spec))[Attr.DEST])
    assert raw[Dst.ADDR] == spec.addr.ljust(16, b"\0")


def test_a_service_that_pyroute2_wrote():
    attrs = by_pyroute2(
        [
            (
                "IPVS_CMD_ATTR_SERVICE",
                {
                    "attrs": [
                        ("IPVS_SVC_ATTR_AF", 2),
                        ("IPVS_SVC_ATTR_PROTOCOL", 17),
                        ("IPVS_SVC_ATTR_ADDR", "10.0.0.1"),
                        ("IPVS_SVC_ATTR_PORT", 53),
                        ("IPVS_SVC_ATTR_SCHED_NAME", "wlc"),
                        ("IPVS_SVC_ATTR_FLAGS", {"flags": 5, "mask": 0xFFFFFFFF}),
                        ("IPVS_SVC_ATTR_TIMEOUT", 60),
                        ("IPVS_SVC_ATTR_NETMASK", "255.255.0.0"),
                        ("IPVS_SVC_ATTR_PE_NAME", "sip"),
                    ]
                },
            )
        ]
    )
    nest = messages.nest(attrs, Attr.SERVICE)
    key = messages.parse_key(nest)
    assert messages.parse_service(nest, key) == ServiceSpec(
        ServiceKey(2, 17, packed("10.0.0.1"), 53), "wlc", 5, 60, 0xFFFF0000, "sip"
    )


def test_a_destination_that_pyroute2_wrote():
    attrs = by_pyroute2(
        [
            (
                "IPVS_CMD_ATTR_DEST",
                {
                    "attrs": [
                        ("IPVS_DEST_ATTR_ADDR_FAMILY", 2),
                        ("IPVS_DEST_ATTR_ADDR", "10.0.0.2"),
                        ("IPVS_DEST_ATTR_PORT", 8080),
                        ("IPVS_DEST_ATTR_FWD_METHOD", 3),
                        ("IPVS_DEST_ATTR_WEIGHT", 7),
                        ("IPVS_DEST_ATTR_U_THRESH", 20),
                        ("IPVS_DEST_ATTR_L_THRESH", 10),
                    ]
                },
            )
        ]
    )
    spec = messages.parse_dest(messages.nest(attrs, Attr.DEST), 2, full=True)
    assert spec == DestSpec(2, packed("10.0.0.2"), 8080, 3, 7, 20, 10)


@pytest.mark.parametrize("spec", SERVICES)
def test_services_come_back(spec):
    entry = messages.parse_service_entry(netlink.attributes(messages.service(spec, STATS)))
    assert entry.stats == STATS
    spec.flags &= ~2  # HASHED is the director's
    assert entry.spec == spec


@pytest.mark.parametrize("spec", DESTS)
def test_destinations_come_back(spec):
    entry = messages.parse_dest_entry(netlink.attributes(messages.dest(spec, (1, 2, 3), STATS)), 2)
    assert entry == (spec, 1, 2, 3, STATS)


# ------------------------------------------------- rows that are read in one step


def variants(data):
    """The same attributes in other forms, and some that are no good."""
    yield data
    yield data + netlink.attribute(99, b"?")  # one more
    yield data + b"\0"
    yield netlink.attribute(99, b"?") + data
    yield data[:-4]
    yield data[4:]
    yield data[:3] + bytes([data[3] | 0x80]) + data[4:]  # flag bits
    yield data[24:] + data[:24]
    for at in range(0, len(data), 4):
        yield data[:at] + b"\xff\xff\xff\xff" + data[at + 4 :]
        yield data[:at] + bytes(4) + data[at + 4 :]
    yield b""


def outcome(parse, *args):
    try:
        return parse(*args)
    except IpvsError as e:
        return e.errno, e.strerror


@pytest.mark.parametrize("key", [HTTP, HTTP6, MARK, MARK6])
def test_a_key_read_in_one_step_is_the_key(key):
    (data,) = netlink.attributes(messages.service_id(key)).values()
    for variant in variants(data):
        found = outcome(messages.key_in, variant)
        assert found == outcome(lambda data: messages.parse_key(netlink.attributes(data)), variant)


@pytest.mark.parametrize("af", [2, 10])
@pytest.mark.parametrize("spec", [*DESTS, DestSpec(2, packed("10.0.0.2"), 80, weight=-5)])
def test_a_destination_read_in_one_step_is_the_destination(spec, af):
    (data,) = netlink.attributes(messages.dest(spec)).values()
    assert messages.dest_in(data, af) == spec
    for variant in variants(data):
        found = outcome(messages.dest_in, variant, af)
        assert found == outcome(
            lambda data: messages.parse_dest(netlink.attributes(data), af, full=True), variant
        )
    listed = messages.dest(spec, (1, 2, 3), STATS)
    assert messages.dest_entry_in(listed, af) == (spec, 1, 2, 3, STATS)
    for variant in variants(listed):
        found = outcome(messages.dest_entry_in, variant, af)
        assert found == outcome(lambda data: messages.parse_dest_entry(netlink.attributes(data), af), variant)


def test_what_uvs_itself_sends_is_read_in_one_step(monkeypatch):
    (key,) = netlink.attributes(messages.service_id(HTTP6)).values()
    (dest,) = netlink.attributes(messages.dest(DESTS[1])).values()
    monkeypatch.setattr(messages, "attributes", lambda data: 1 / 0)
    assert messages.key_in(key) == HTTP6
    assert messages.dest_in(dest, 2) == DESTS[1]
    assert messages.dest_entry_in(messages.dest(DESTS[1], (1, 2, 3), STATS), 2).stats == STATS
    assert messages.dest_entry_in(messages.dest(DESTS[0], (0, 0, 0)), 2).stats == messages.NO_STATS


# ------------------------------------------------------------------- the order


def order(payload, kind):
    data, found = netlink.attributes(payload)[kind], []
    while data:
        size, number = struct.unpack_from("=HH", data)
        found.append(number)
        data = data[(size + 3) & ~3 :]
    return found


@pytest.mark.parametrize(
    ("payload", "kind", "expected"),
    [
        (
            messages.service(SERVICES[1], STATS),
            Attr.SERVICE,
            "AF PROTOCOL ADDR PORT SCHED_NAME PE_NAME FLAGS TIMEOUT NETMASK STATS STATS64",
        ),
        (messages.service(SERVICES[2], STATS), Attr.SERVICE, "AF FWMARK SCHED_NAME FLAGS TIMEOUT NETMASK STATS STATS64"),
        (
            messages.dest(DESTS[0], (0, 0, 0)),
            Attr.DEST,
            "ADDR PORT FWD_METHOD WEIGHT TUN_TYPE TUN_PORT TUN_FLAGS U_THRESH L_THRESH ACTIVE_CONNS INACT_CONNS "
            "PERSIST_CONNS ADDR_FAMILY STATS STATS64",
        ),
    ],
)  # fmt: skip
def test_order_of_attributes_in_listings(payload, kind, expected):
    """As ip_vs_genl_fill_service and ip_vs_genl_fill_dest write them."""
    names = Svc if kind == Attr.SERVICE else Dst
    assert order(payload, kind) == [names[name] for name in expected.split()]


# The SERVICE nest of `ipvsadm -A -t 10.0.0.1:80 -s rr`, as ipvsadm 1.31 sends it.
RECORDED = bytes.fromhex(
    "06000100020000000600020006000000140003000a00000100000000000000000000000006000400005000000700060072720000"
    "0c00070000000000ffffffff080008000000000008000900ffffffff"
)


def test_a_request_of_ipvsadm():
    nest = netlink.attributes(RECORDED)
    key = messages.parse_key(nest)
    assert messages.parse_service(nest, key) == ServiceSpec(HTTP, "rr")
    assert netlink.attributes(messages.service(ServiceSpec(HTTP, "rr")))[Attr.SERVICE] == RECORDED


def changed(attrs, kind, value):
    found = dict(attrs)
    if value is None:
        del found[kind]
    else:
        found[kind] = value
    return found


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [
        (Svc.AF, None, errno.EINVAL),
        (Svc.AF, b"\2", errno.EINVAL),
        (Svc.AF, b"\1\0", errno.EAFNOSUPPORT),
        (Svc.AF, b"\xff\xff", errno.EAFNOSUPPORT),
        (Svc.AF, b"\2\0\0\0\0\0\0\0", None),  # longer numbers are tolerated
        (Svc.PROTOCOL, None, errno.EINVAL),
        (Svc.PROTOCOL, b"", errno.EINVAL),
        (Svc.PROTOCOL, b"\xff\xff", None),  # any number
        (Svc.ADDR, None, errno.EINVAL),
        (Svc.ADDR, bytes(17), errno.EINVAL),
        (Svc.ADDR, b"\x0a", None),  # shorter: filled with zeros
        (Svc.PORT, None, errno.EINVAL),
        (Svc.SCHED_NAME, None, errno.EINVAL),
        (Svc.SCHED_NAME, b"", errno.EINVAL),
        (Svc.SCHED_NAME, b"rr", errno.EINVAL),  # no NUL
        (Svc.SCHED_NAME, b"a" * 16 + b"\0", errno.EINVAL),
        (Svc.SCHED_NAME, b"\xff\xfe\0", None),  # any bytes; there is no such scheduler
        (Svc.FLAGS, None, errno.EINVAL),
        (Svc.FLAGS, bytes(7), errno.EINVAL),
        (Svc.TIMEOUT, None, errno.EINVAL),
        (Svc.TIMEOUT, bytes(3), errno.EINVAL),
        (Svc.NETMASK, None, errno.EINVAL),
        (Svc.PE_NAME, b"a" * 17 + b"\0", errno.EINVAL),
        (Svc.PE_NAME, b"\0", None),
        (200, b"unknown", None),
    ],
)
def test_services_badly_put(kind, value, number):
    nest = changed(netlink.attributes(RECORDED), kind, value)
    if number is None:
        messages.parse_service(nest, messages.parse_key(nest))
    else:
        with pytest.raises(IpvsError) as caught:
            messages.parse_service(nest, messages.parse_key(nest))
        assert caught.value.errno == number


@pytest.mark.parametrize(
    ("kind", "value", "number"),
    [
        (Dst.ADDR, None, errno.EINVAL),
        (Dst.ADDR, bytes(17), errno.EINVAL),
        (Dst.PORT, None, errno.EINVAL),
        (Dst.PORT, b"\0", errno.EINVAL),
        (Dst.FWD_METHOD, None, errno.EINVAL),
        (Dst.WEIGHT, None, errno.EINVAL),
        (Dst.U_THRESH, None, errno.EINVAL),
        (Dst.L_THRESH, b"\0\0", errno.EINVAL),
        (Dst.TUN_TYPE, b"", errno.EINVAL),
        (Dst.TUN_PORT, b"\0", errno.EINVAL),
        (Dst.TUN_TYPE, None, None),
        (Dst.ADDR_FAMILY, None, None),  # the service's
        (Dst.ADDR_FAMILY, b"\0\0", None),
        (Dst.ADDR_FAMILY, b"\1\0", errno.EAFNOSUPPORT),
    ],
)
def test_destinations_badly_put(kind, value, number):
    whole = netlink.attributes(netlink.attributes(messages.dest(DESTS[0]))[Attr.DEST])
    nest = changed(whole, kind, value)
    if number is None:
        assert messages.parse_dest(nest, 2, full=True) == DESTS[0]
    else:
        with pytest.raises(IpvsError) as caught:
            messages.parse_dest(nest, 2, full=True)
        assert caught.value.errno == number


def test_flags_change_under_their_mask():
    nest = netlink.attributes(RECORDED)
    nest[Svc.FLAGS] = struct.pack("=II", 0b0101, 0b1100)
    assert messages.parse_service(nest, HTTP, 0b1011).flags == 0b0101  # HASHED is not kept here
    assert messages.parse_service(nest, HTTP, 0b1001).flags == 0b0101


def test_a_mark_of_0_is_an_address_of_0():
    nest = {Svc.AF: b"\2\0", Svc.FWMARK: bytes(4)}
    assert messages.parse_key(nest) == ServiceKey(2, 6, bytes(4), 0, 0)


def test_a_weight_is_signed():
    whole = netlink.attributes(netlink.attributes(messages.dest(DESTS[0]))[Attr.DEST])
    whole[Dst.WEIGHT] = b"\xff\xff\xff\xff"
    assert messages.parse_dest(whole, 2, full=True).weight == -1
