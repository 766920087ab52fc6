"""Every command of the family IPVS over a real socket: what it does, what it refuses and why."""

import errno
import struct

import pytest
from support.world import packed

from uvs.control import limits, messages, netlink, sync_daemon
from uvs.control.client import Timeouts
from uvs.control.genetlink import IPVS_ID
from uvs.control.messages import Attr, Cmd, Daemon, Dst
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)
KEY6 = ServiceKey(10, 17, packed("2001:db8::1"), 53)
MARK = ServiceKey(2, 6, bytes(4), 0, 7)
OTHER = KEY._replace(port=81)
RS = DestSpec(2, packed("10.0.0.2"), 80, 0)
RS6 = DestSpec(10, packed("2001:db8::2"), 80, 2)


@pytest.fixture
def table(client):
    client.add_service(ServiceSpec(KEY, "rr"))
    client.add_dest(KEY, RS)
    return client


def service(spec):
    return messages.service(spec)


def dest(key, **changes):
    spec = DestSpec(2, packed("10.0.0.3"), 80)
    for name, value in changes.items():
        setattr(spec, name, value)
    return messages.service_id(key) + messages.dest(spec)


def daemon(state=1, **changes):
    fields = {"interface": "lo", "syncid": 0, "maxlen": 0, "group": b"", "port": 0, "ttl": 0, **changes}
    return messages.daemon(state, *fields.values())


NOTHING = b""
EMPTY = netlink.attribute(Attr.SERVICE, b"")
U32 = struct.Struct("=I").pack

REFUSED = [
    # command, payload, errno, what it shows
    (Cmd.NEW_SERVICE, NOTHING, errno.EINVAL, "no service"),
    (Cmd.NEW_SERVICE, EMPTY, errno.EINVAL, "an empty one"),
    (Cmd.NEW_SERVICE, messages.service_id(OTHER), errno.EINVAL, "only its name"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(OTHER._replace(af=1))), errno.EAFNOSUPPORT, "family unknown"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(OTHER._replace(protocol=300))), errno.EINVAL, "not a protocol"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(KEY)), errno.EEXIST, "there already"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(KEY, "nosuch")), errno.EEXIST, "there already, before scheduler unknown"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(OTHER, "nosuch")), errno.ENOENT, "scheduler unknown"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(OTHER, "../rr")), errno.ENOENT, "a scheduler's name is no path"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(OTHER, pe_name="nosuch")), errno.ENOENT, "engine unknown"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(KEY6, netmask=0)), errno.EINVAL, "prefix length 0"),
    (Cmd.NEW_SERVICE, service(ServiceSpec(KEY6, netmask=129)), errno.EINVAL, "prefix length 129"),
    (Cmd.SET_SERVICE, messages.service_id(KEY), errno.EINVAL, "only its name"),
    (Cmd.SET_SERVICE, messages.service_id(OTHER), errno.EINVAL, "only its name, before not there"),
    (Cmd.SET_SERVICE, service(ServiceSpec(OTHER)), errno.ESRCH, "not there"),
    (Cmd.SET_SERVICE, service(ServiceSpec(KEY, "nosuch")), errno.ENOENT, "scheduler unknown"),
    (Cmd.DEL_SERVICE, NOTHING, errno.EINVAL, "no service"),
    (Cmd.DEL_SERVICE, messages.service_id(OTHER), errno.ESRCH, "not there"),
    (Cmd.GET_SERVICE, NOTHING, errno.EINVAL, "no service"),
    (Cmd.GET_SERVICE, messages.service_id(OTHER), errno.ESRCH, "not there"),
    (Cmd.ZERO, EMPTY, errno.EINVAL, "an empty service"),
    (Cmd.ZERO, messages.service_id(OTHER), errno.ESRCH, "not there"),
    (Cmd.NEW_DEST, dest(KEY, fwd=2, tun_type=1), errno.EINVAL, "gue without a port"),
    (Cmd.NEW_DEST, dest(OTHER), errno.ESRCH, "service not there"),
    (Cmd.NEW_DEST, messages.service_id(OTHER), errno.ESRCH, "service not there, before no destination"),
    (Cmd.NEW_DEST, messages.service_id(KEY), errno.EINVAL, "no destination"),
    (Cmd.NEW_DEST, messages.service_id(KEY) + messages.dest_id(2, RS.addr, 81), errno.EINVAL, "only its name"),
    (Cmd.NEW_DEST, dest(KEY, af=1), errno.EAFNOSUPPORT, "family unknown"),
    (Cmd.NEW_DEST, dest(KEY, af=10, addr=RS6.addr), errno.EINVAL, "another family, not by tunnelling"),
    (Cmd.NEW_DEST, dest(KEY, weight=-1), errno.ERANGE, "weight below 0"),
    (Cmd.NEW_DEST, dest(KEY, u_threshold=1, l_threshold=2), errno.ERANGE, "thresholds crossed"),
    (Cmd.NEW_DEST, dest(KEY, l_threshold=1), errno.ERANGE, "a lower threshold without an upper one"),
    (Cmd.NEW_DEST, dest(KEY, addr=RS.addr), errno.EEXIST, "there already"),
    (Cmd.NEW_DEST, dest(KEY, addr=RS.addr, weight=-1), errno.ERANGE, "out of range, before there already"),
    (Cmd.NEW_DEST, dest(KEY, addr=packed("224.0.0.1")), errno.EINVAL, "no unicast address"),
    (Cmd.SET_DEST, dest(OTHER), errno.ESRCH, "service not there"),
    (Cmd.SET_DEST, dest(KEY), errno.ENOENT, "not there"),
    (Cmd.SET_DEST, dest(KEY, addr=RS.addr, weight=-1), errno.ERANGE, "weight below 0"),
    (Cmd.DEL_DEST, dest(OTHER), errno.ESRCH, "service not there"),
    (Cmd.DEL_DEST, dest(KEY), errno.ENOENT, "not there"),
    (Cmd.DEL_DEST, messages.service_id(KEY), errno.EINVAL, "no destination"),
    (Cmd.GET_DEST, messages.service_id(KEY), errno.EOPNOTSUPP, "only as a dump"),
    (Cmd.GET_DAEMON, NOTHING, errno.EOPNOTSUPP, "only as a dump"),
    (Cmd.SET_INFO, NOTHING, errno.EOPNOTSUPP, "never a request"),
    (0, NOTHING, errno.EOPNOTSUPP, "no command"),
    (18, NOTHING, errno.EOPNOTSUPP, "no command"),
    (255, NOTHING, errno.EOPNOTSUPP, "no command"),
    (Cmd.NEW_DAEMON, NOTHING, errno.EINVAL, "no daemon"),
    (Cmd.NEW_DAEMON, daemon(), errno.EOPNOTSUPP, "there is none yet"),
    (Cmd.DEL_DAEMON, NOTHING, errno.EINVAL, "no daemon"),
    (Cmd.DEL_DAEMON, netlink.attribute(Attr.DAEMON, netlink.string(Daemon.MCAST_IFN, "lo")), errno.EINVAL, "no state"),
    (Cmd.DEL_DAEMON, daemon(3), errno.EINVAL, "neither master nor backup"),
    (Cmd.DEL_DAEMON, daemon(2), errno.ESRCH, "none runs"),
    (Cmd.SET_CONFIG, messages.config(0xFFFFFFFF, 0, 0), errno.EINVAL, "a time-out below 0"),
    (Cmd.SET_CONFIG, messages.config(100, 0x7FFFFFFF, 0), errno.EINVAL, "a time-out too long"),
    (Cmd.SET_CONFIG, netlink.attribute(Attr.TIMEOUT_UDP, b"\1\0"), errno.EINVAL, "a short number"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "payload", "number", "shows"), REFUSED)
def test_refused(table, director, command, payload, number, shows):
    before = list(director.ipvs.services), table.timeouts(), table.dests(KEY)
    with pytest.raises(IpvsError) as caught:
        table.request("IPVS", command, payload)
    assert errno.errorcode[caught.value.errno] == errno.errorcode[number], shows
    assert (list(director.ipvs.services), table.timeouts(), table.dests(KEY)) == before


def test_every_command_is_refused_to_the_unprivileged(table, director):
    """EPERM comes before anything is looked at, but after the command is known to exist."""
    requests = [(command, NOTHING) for command in Cmd if command not in (Cmd.SET_INFO,)]
    dispatcher = director.server.dispatcher
    for command, payload in requests:
        dumps = command in (Cmd.GET_DEST, Cmd.GET_DAEMON)
        text = netlink.message(IPVS_ID, 0x305 if dumps else 5, 1, 0, command, payload)
        (answer,) = dispatcher.handle(text, admin=False).answers
        (found,) = netlink.messages(answer)
        assert found.errno == errno.EPERM, command
    (answer,) = dispatcher.handle(netlink.message(IPVS_ID, 5, 1, 0, 18, b""), admin=False).answers
    assert next(netlink.messages(answer)).errno == errno.EOPNOTSUPP


@pytest.mark.parametrize(
    "spec",
    [
        ServiceSpec(OTHER, "wlc", 1, 300, 0xFFFFFF00),
        ServiceSpec(OTHER, "none"),
        ServiceSpec(KEY6, "rr", 1, 60, 64),
        ServiceSpec(MARK, "wrr"),
        ServiceSpec(MARK._replace(af=10, addr=bytes(16)), "lc", netmask=128),
        ServiceSpec(OTHER._replace(protocol=99), "rr"),  # any protocol
        ServiceSpec(OTHER._replace(port=0), "rr"),  # a port of 0 needs no persistence here
    ],
)
def test_a_service_comes_and_goes(client, spec):
    client.add_service(spec)
    assert client.service(spec.key).spec == spec
    assert [entry.spec for entry in client.services()] == [spec]
    client.del_service(spec.key)
    assert client.services() == []


def test_a_service_is_edited(table):
    spec = ServiceSpec(KEY, "wlc", 1, 60, 0xFFFF0000)
    table.edit_service(spec)
    assert table.service(KEY).spec == spec
    assert len(table.dests(KEY)) == 1


def test_flags_under_the_mask_keep_what_is_not_masked(table):
    table.edit_service(ServiceSpec(KEY, "rr", 1 | 8))
    payload = messages.service(ServiceSpec(KEY, "rr")).replace(
        struct.pack("=II", 0, 0xFFFFFFFF), struct.pack("=II", 0x10, 0x18)
    )
    table.request("IPVS", Cmd.SET_SERVICE, payload)
    assert table.service(KEY).spec.flags == 1 | 0x10


@pytest.mark.parametrize(
    "spec",
    [
        DestSpec(2, packed("10.0.0.3"), 8080, 3, 5, 20, 10),
        DestSpec(10, packed("2001:db8::2"), 80, 2, 0),
    ],
)
def test_a_destination_comes_changes_and_goes(table, spec):
    table.add_dest(KEY, spec)
    assert [entry.spec for entry in table.dests(KEY)] == [spec, RS]  # the newest first
    spec.weight += 1
    table.edit_dest(KEY, spec)
    assert table.dests(KEY)[0].spec == spec
    table.del_dest(KEY, spec.af, spec.addr, spec.port)
    assert [entry.spec for entry in table.dests(KEY)] == [RS]


def test_a_destination_without_a_family_has_its_service_s(table):
    nest = messages.dest(DestSpec(2, packed("10.0.0.3"), 80))
    attrs = netlink.attributes(netlink.attributes(nest)[Attr.DEST])
    del attrs[Dst.ADDR_FAMILY]
    bare = netlink.attribute(Attr.DEST, b"".join(netlink.attribute(k, v) for k, v in attrs.items()))
    table.request("IPVS", Cmd.NEW_DEST, messages.service_id(KEY) + bare)
    assert table.dests(KEY)[0].spec.af == 2


def test_destinations_of_a_service_that_is_not_there_are_none(table):
    assert table.dests(OTHER) == []
    assert list(table.dump("IPVS", Cmd.GET_DEST, b"")) == []


def test_flush(table):
    table.add_service(ServiceSpec(KEY6, netmask=128))
    table.flush()
    assert table.services() == []


def test_services_by_mark_are_listed_last(client):
    for key in (MARK, KEY, OTHER):
        client.add_service(ServiceSpec(key))
    assert [entry.spec.key for entry in client.services()] == [KEY, OTHER, MARK]


def test_zero(table, director):
    def count():
        for svc in director.ipvs.services:
            svc.est.sample((10, 20, 30, 40, 50))
            svc.dests[0].est.sample((1, 2, 3, 4, 5))
        director.ipvs.services.total.sample((10, 20, 30, 40, 50))

    director.do(count)
    assert table.service(KEY).stats[:5] == (10, 20, 30, 40, 50)
    assert table.service(KEY).stats.cps == ((10 << 9 >> 2) + 0x1FF) >> 10  # ip_vs_est.c
    table.zero(KEY)
    assert table.service(KEY).stats == messages.NO_STATS
    assert table.dests(KEY)[0].stats == messages.NO_STATS
    assert table.total()[0].conns == 10
    table.zero()
    assert table.total()[0] == messages.NO_STATS


def test_time_outs(client):
    assert client.timeouts() == Timeouts(900, 120, 300)
    client.set_timeouts(100, 0, 7)
    assert client.timeouts() == Timeouts(100, 120, 7)
    client.request("IPVS", Cmd.SET_CONFIG, netlink.attribute(Attr.TIMEOUT_TCP_FIN, U32(9)))
    assert client.timeouts() == Timeouts(100, 9, 7)
    client.set_timeouts(2678400, 0, 0)  # the longest that ipvsadm takes
    assert client.timeouts().tcp == 2678400


def test_info(client):
    assert client.info() == (0x010201, 4096)


def test_no_daemon_runs(client, caplog, monkeypatch):
    monkeypatch.setattr(sync_daemon, "_asked", limits.Seldom())
    assert client.daemons() == []
    for _ in range(3):
        with pytest.raises(IpvsError):
            client.request("IPVS", Cmd.NEW_DAEMON, daemon())
    assert [r.message for r in caplog.records] == [
        "a sync daemon was asked for: uvs has none yet, connections are not synchronised"
    ]


def test_a_batch_tells_which_requests_failed(client):
    keys = [KEY._replace(port=port) for port in range(1, 200)]
    requests = [(Cmd.NEW_SERVICE, messages.service(ServiceSpec(key))) for key in (*keys, keys[0], *keys[:3])]
    failed = []
    client.batch(requests, lambda n, e: failed.append((n, e.errno)))
    assert failed == [(n, errno.EEXIST) for n in range(199, 203)]
    assert len(client.services()) == 199
