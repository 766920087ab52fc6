"""get- and setsockopt(IPPROTO_IP, IP_VS_SO_*): layouts, what they do, what they refuse, as a table of calls."""

import errno
import struct
from socket import htons

import pytest

from uvs.control import sockopt
from uvs.control.sockopt import BASE

VIP, RIP = bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])


def service(protocol=6, addr=VIP, port=80, mark=0, name=b"rr", flags=0, timeout=0, netmask=b"\xff" * 4):
    """struct ip_vs_service_user, field by field at its offset."""
    made = bytearray(44)
    struct.pack_into("=H", made, 0, protocol)
    made[4:8] = addr
    struct.pack_into("=HxxI16sII", made, 8, htons(port), mark, name, flags, timeout)
    made[40:44] = netmask
    return bytes(made)


def dest(addr=RIP, port=80, flags=0, weight=1, upper=0, lower=0):
    """struct ip_vs_dest_user."""
    return addr + struct.pack("=HxxIiII", htons(port), flags, weight, upper, lower)


def test_sizes():
    assert (sockopt._SERVICE.size, sockopt._DEST.size, sockopt._STATS.size) == (44, 24, 56)
    assert (sockopt._DEST_ENTRY.size + 56, sockopt._GET_DESTS.size, sockopt._DAEMON.size) == (96, 24, 24)
    assert (sockopt.SERVICE_ENTRY_SIZE, sockopt.DEST_ENTRY_SIZE, sockopt.HEAD) == (104, 96, 104)


# option, value, errno (0: done); in order, on one table
SET = [
    (BASE + 2, service(), 0),
    (BASE + 2, service(), errno.EEXIST),
    (BASE + 2, service(port=81, name=b"nosuch"), errno.ENOENT),
    (BASE + 2, service(port=81, name=b"r" * 16), errno.EINVAL),
    (BASE + 2, service(protocol=1), errno.EFAULT),
    (BASE + 2, service()[:43], errno.EINVAL),
    (BASE + 2, service() + b"\0", errno.EINVAL),
    (BASE + 2, service(mark=7), 0),
    (BASE + 3, service(mark=7, protocol=17), errno.ESRCH),
    (BASE + 3, service(flags=1, timeout=300), 0),
    (BASE + 3, service(port=81), errno.ESRCH),
    (BASE + 7, service() + dest(), 0),
    (BASE + 7, service() + dest(), errno.EEXIST),
    (BASE + 7, service(), errno.EINVAL),
    (BASE + 7, service(port=81) + dest(), errno.ESRCH),
    (BASE + 7, service() + dest(bytes([10, 0, 0, 3]), upper=1, lower=2), errno.ERANGE),
    (BASE + 7, service() + dest(bytes([10, 0, 0, 3]), weight=-1), errno.ERANGE),
    (BASE + 9, service() + dest(weight=9), 0),
    (BASE + 9, service() + dest(port=81), errno.ENOENT),
    (BASE + 8, service() + dest(port=81), errno.ENOENT),
    (BASE + 15, service(), 0),
    (BASE + 15, service(port=81), errno.ESRCH),
    (BASE + 15, service(addr=bytes(4), port=0), 0),
    (BASE + 10, struct.pack("3i", 900, 0, 30), 0),
    (BASE + 10, struct.pack("3i", -1, 0, 0), errno.EINVAL),
    (BASE + 10, b"", errno.EINVAL),
    (BASE + 11, struct.pack("i16si", 1, b"eth0", 1), errno.EOPNOTSUPP),
    (BASE + 11, struct.pack("i16si", 1, b"", 1), errno.EINVAL),
    (BASE + 12, struct.pack("i16si", 1, b"", 1), errno.ESRCH),
    (BASE + 12, struct.pack("i16si", 3, b"", 1), errno.EINVAL),
    (BASE + 1, b"", errno.EINVAL),
    (BASE + 6, service(), errno.EINVAL),
    (BASE + 16, b"", errno.ENOPROTOOPT),
]


def outcome(call, *args):
    try:
        call(*args)
    except OSError as e:
        return e.errno
    return 0


def test_set(client):
    told = [
        (option - BASE, len(value), outcome(client.set_sockopt, option, value)) for option, value, _ in SET
    ]
    assert told == [(option - BASE, len(value), code) for option, value, code in SET]


@pytest.fixture
def filled(client):
    for option, value, code in SET:
        if not code:
            client.set_sockopt(option, value)
    return client


def get(client, option, size, head=b""):
    head = head.ljust(min(size, sockopt.HEAD), b"\0")
    return client.get_sockopt(BASE + option, size, head)


def test_get(filled):
    assert get(filled, 0, 64) == b"IP Virtual Server version 1.2.1 (size=4096)\0"
    assert struct.unpack("3I", get(filled, 1, 12)) == (0x10201, 4096, 2)
    assert struct.unpack("3i", get(filled, 6, 12)) == (900, 120, 30)
    assert get(filled, 7, 48) == bytes(48)
    entry = service(flags=3, timeout=300) + struct.pack("=I", 1) + bytes(56)
    assert get(filled, 3, 104, service()) == entry
    by_mark = service(mark=7, addr=bytes(4), port=0, flags=2) + struct.pack("=I", 0) + bytes(56)
    assert get(filled, 2, 8 + 208, struct.pack("=I", 2)) == struct.pack("=II", 2, 0) + entry + by_mark
    assert get(filled, 2, 8 + 104, struct.pack("=I", 1)) == struct.pack("=II", 1, 0) + entry
    which = struct.pack("=H2x4sHxxII4x", 6, VIP, htons(80), 0, 1)
    row = RIP + struct.pack("=HxxIiIIIII4x", htons(80), 0x100, 9, 0, 0, 0, 0, 0) + bytes(56)
    assert get(filled, 4, 24 + 96, which) == which + row


REFUSED = [
    (0, 63, b"", errno.EINVAL),
    (1, 11, b"", errno.EINVAL),
    (2, 8, struct.pack("=I", 1), errno.EINVAL),
    (3, 104, service(port=81), errno.ESRCH),
    (3, 103, service(), errno.EINVAL),
    (4, 24, struct.pack("=H2x4sHxxII4x", 6, VIP, htons(81), 0, 0), errno.ESRCH),
    (4, 24, struct.pack("=H2x4sHxxII4x", 6, VIP, htons(80), 0, 1), errno.EINVAL),
    (5, 104, b"", errno.EINVAL),
    (8, 104, b"", errno.ENOPROTOOPT),
]


@pytest.mark.parametrize(("option", "size", "head", "code"), REFUSED)
def test_get_is_refused(filled, option, size, head, code):
    assert outcome(get, filled, option, size, head) == code


def test_many_services_come_in_pieces(client):
    """More than one message holds."""
    for port in range(1, 700):
        client.set_sockopt(BASE + 2, service(port=port))
    got = get(client, 2, 8 + 104 * 699, struct.pack("=I", 699))
    assert len(got) == 8 + 104 * 699
    ports = [struct.unpack_from("!H", got, 8 + 104 * i + 8)[0] for i in range(699)]
    assert ports == list(range(1, 700))
