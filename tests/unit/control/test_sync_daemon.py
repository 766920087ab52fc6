"""NEW_DAEMON's errors and their order, as a kernel (6.1) answered the same requests."""

import errno
import struct

import pytest
from support.world import World, packed

from uvs.control import messages, netlink, sockopt, sync_daemon
from uvs.control.messages import Daemon
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec

U32 = struct.Struct("=I").pack
STATE, BACKUP, NEITHER, ZERO = ({Daemon.STATE: U32(n)} for n in (1, 2, 3, 0))
LO, NONE = {Daemon.MCAST_IFN: b"lo\0"}, {Daemon.MCAST_IFN: b"nosuch\0"}
SYNCID = {Daemon.SYNC_ID: U32(0)}
UNKNOWN = STATE | NONE | SYNCID  # an interface that is not there: what else is wrong is told first, or not
MULTICAST, UNICAST = bytes([239, 0, 0, 1]), bytes([10, 0, 0, 1])
MULTICAST6, UNICAST6 = b"\xff" * 16, b"\x20" + bytes(15)

KERNEL = [
    ("no state", LO | SYNCID, errno.EINVAL),
    ("no interface", STATE | SYNCID, errno.EINVAL),
    ("no id", STATE | LO, errno.EINVAL),
    ("nothing", {}, errno.EINVAL),
    ("neither master nor backup", NEITHER | LO | SYNCID, errno.EINVAL),
    ("neither master nor backup, no interface", NEITHER | NONE | SYNCID, errno.ENODEV),
    ("no such interface", UNKNOWN, errno.ENODEV),
    ("state 0", ZERO | LO | SYNCID, errno.EINVAL),
    ("an interface without a name", STATE | {Daemon.MCAST_IFN: b"\0"} | SYNCID, errno.ENODEV),
    ("a name of 15", STATE | {Daemon.MCAST_IFN: b"a" * 15 + b"\0"} | SYNCID, errno.ENODEV),
    ("a name of 16", STATE | {Daemon.MCAST_IFN: b"a" * 16 + b"\0"} | SYNCID, errno.EINVAL),
    ("a name without its end", STATE | {Daemon.MCAST_IFN: b"lo"} | SYNCID, errno.EINVAL),
    ("a short state", {Daemon.STATE: b"\1\0"} | LO | SYNCID, errno.EINVAL),
    ("a short length", UNKNOWN | {Daemon.SYNC_MAXLEN: b"\1"}, errno.EINVAL),
    ("no TTL in its attribute", UNKNOWN | {Daemon.MCAST_TTL: b""}, errno.EINVAL),
    ("a short port", UNKNOWN | {Daemon.MCAST_PORT: b"\1"}, errno.EINVAL),
    ("a short group", UNKNOWN | {Daemon.MCAST_GROUP: b"\1\1"}, errno.EINVAL),
    ("a short IPv6 group", UNKNOWN | {Daemon.MCAST_GROUP6: b"\xff" * 4}, errno.EINVAL),
    ("a unicast group", UNKNOWN | {Daemon.MCAST_GROUP: UNICAST}, errno.EINVAL),
    ("a group, no such interface", UNKNOWN | {Daemon.MCAST_GROUP: MULTICAST}, errno.ENODEV),
    ("a unicast IPv6 group", UNKNOWN | {Daemon.MCAST_GROUP6: UNICAST6}, errno.EINVAL),
    ("an IPv6 group, no such interface", UNKNOWN | {Daemon.MCAST_GROUP6: MULTICAST6}, errno.ENODEV),
    ("of two groups the IPv4 one counts", UNKNOWN | {Daemon.MCAST_GROUP: MULTICAST, Daemon.MCAST_GROUP6: UNICAST6}, errno.ENODEV),
]  # fmt: skip
OURS = [
    ("a master", STATE | LO | SYNCID, errno.EOPNOTSUPP),
    ("a backup", BACKUP | LO | SYNCID, errno.EOPNOTSUPP),
]
KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)


@pytest.fixture
def services():
    world = World()
    yield world.ipvs.services
    world.close()


@pytest.mark.parametrize(
    ("shows", "nest", "number"), [*KERNEL, *OURS], ids=[row[0] for row in [*KERNEL, *OURS]]
)
def test_what_is_answered(services, shows, nest, number):
    attrs = netlink.attributes(b"".join(netlink.attribute(kind, data) for kind, data in nest.items()))
    with pytest.raises(IpvsError) as caught:
        sync_daemon.new_daemon(attrs, services)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number]


@pytest.mark.parametrize("nest", [NEITHER | LO | SYNCID, UNKNOWN, STATE | LO | SYNCID])
def test_servers_of_another_family_come_before_the_interface(services, nest):
    services.add_service(ServiceSpec(KEY))
    services.add_dest(KEY, DestSpec(10, packed("2001:db8::2"), 80, 2))
    with pytest.raises(IpvsError) as caught:
        sync_daemon.new_daemon(nest, services)
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("state", "interface", "number"),
    [
        (1, b"lo", errno.EOPNOTSUPP),
        (1, b"nosuch", errno.ENODEV),
        (3, b"nosuch", errno.ENODEV),
        (3, b"lo", errno.EINVAL),
        (1, b"", errno.EINVAL),
        (1, b"a" * 16, errno.EINVAL),
    ],
)
def test_by_the_socket_option(services, state, interface, number):
    """do_ip_vs_set_ctl looks at the name itself; the rest is start_sync_thread."""
    option = sockopt.Sockopt(services, None)
    with pytest.raises(IpvsError) as caught:
        option.set(sockopt.SET_STARTDAEMON, struct.pack("=i16si", state, interface, 0))
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number]


def test_all_of_ours_are_in_the_message():
    nest = messages.nest(netlink.attributes(messages.daemon(1, "lo", 7, 1000, MULTICAST, 8848, 1)), 3)
    assert set(nest) == {1, 2, 3, 4, 5, 7, 8}
