"""Fuzz target: datagrams to the control socket, through all that reads them.

Input: datagrams one after another, each behind a head of three bytes: flags (FLAG_*) and its length (little-endian;
what is longer than the input is cut). What must hold: nothing raises; a fault of ours never hides behind an errno;
each request is answered once and whole, under its number; servers, connections and their counters agree; whatever the
table has become, it can be listed in every form, and is the same after it was saved and loaded.
"""

from __future__ import annotations

import errno
import logging
import random
import struct
from socket import htons

from support import invariants, traffic
from support.paper_client import PaperClient, PaperSocket, datagrams, dispatcher
from support.world import World

from uvs.adm import jsontext, listing, save
from uvs.adm.names import Names
from uvs.control import connfilter, messages, netlink, proctext, sockopt, stateformat
from uvs.control.genetlink import Dispatcher
from uvs.control.messages import Cmd
from uvs.control.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_MULTI, NLM_F_REQUEST, Message
from uvs.ipvs.hooks import nf_hook
from uvs.ipvs.skb import Hook
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

FLAG_STRANGER, FLAG_PACKETS, FLAG_TIME = 1, 2, 4  # not privileged; packets come first; time passes first
HEAD = struct.Struct("<BH")
DATAGRAMS, MESSAGES = 32, 64  # looked at, of an input


class NoFaults(logging.Handler):
    """A fault of ours is answered with EIO and logged: here it is raised."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            raise record.exc_info[1]


log = logging.getLogger("uvs.control")
log.handlers, log.propagate = [NoFaults()], False


def split(data: bytes) -> list[tuple[int, bytes]]:
    """Flags and datagrams of an input."""
    found, at = [], 0
    while len(data) - at >= HEAD.size and len(found) < DATAGRAMS:
        flags, size = HEAD.unpack_from(data, at)
        at += HEAD.size
        found.append((flags, data[at : at + size]))
        at += size
    return found


def join(found: list[tuple[int, bytes]]) -> bytes:
    return b"".join(HEAD.pack(flags & 0xFF, len(d) & 0xFFFF) + d[:0xFFFF] for flags, d in found)


# ------------------------------------------------------------------ what must hold


def one(data: bytes) -> None:
    world = World(conn_max=200)
    try:
        handler, seq = dispatcher(world), 0
        for flags, datagram in split(data):
            if flags & FLAG_PACKETS:
                packets(world)
            if flags & FLAG_TIME:
                time_passes(world)
            seq = ask(handler, datagram, seq, admin=not flags & FLAG_STRANGER)
        invariants.counters_equal_the_table(world)
        invariants.records_have_owners(world)
        shown(world, handler)
        kept(world)
    finally:
        world.close()


def numbered(datagram: bytes, seq: int) -> bytes:
    """The same messages, each with a number of its own."""
    out, at = bytearray(datagram), 0
    for count, message in enumerate(netlink.messages(datagram)):
        if count == MESSAGES:
            return bytes(out[:at])
        struct.pack_into("=I", out, at + 8, seq + count)
        at += (len(message.raw) + 3) & ~3
    return bytes(out)


def ask(handler: Dispatcher, datagram: bytes, seq: int, admin: bool) -> int:
    """Hand it over; returns the number after its last message's."""
    datagram = numbered(datagram, seq)
    requests = list(netlink.messages(datagram))
    answers: dict[int, list[Message]] = {request.seq: [] for request in requests}
    for part in datagrams(handler.handle(datagram, admin).answers):
        whole = list(netlink.messages(part))
        assert sum((len(m.raw) + 3) & ~3 for m in whole) in (len(part), (len(part) + 3) & ~3)
        for message in whole:
            answers[message.seq].append(message)
    for request in requests:
        answered_once(request, answers[request.seq])
    return seq + len(requests)


def answered_once(request: Message, answers: list[Message]) -> None:
    """An error; or what was asked for and, if it was asked for, an acknowledgement; or a whole dump."""
    if not request.flags & NLM_F_REQUEST or request.type < netlink.NLMSG_MIN_TYPE:
        assert len(answers) == bool(request.flags & NLM_F_ACK)
        assert all(a.type == netlink.NLMSG_ERROR and not a.errno for a in answers)
        return
    assert all(a.pid == request.pid for a in answers)
    if answers and answers[0].type == netlink.NLMSG_ERROR and answers[0].errno:
        (error,) = answers
        assert 0 < error.errno < 200
        assert error.errno != errno.EIO
        assert error.body[4:] == request.raw
        return
    if request.dump:
        assert [a.type for a in answers] == [request.type] * (len(answers) - 1) + [netlink.NLMSG_DONE]
        assert all(a.flags & NLM_F_MULTI for a in answers)
        return
    if request.flags & NLM_F_ACK:
        ack = answers.pop()
        assert (ack.type, ack.errno) == (netlink.NLMSG_ERROR, 0)
        assert ack.body[4:20] == request.raw[:16]
    assert [a.type for a in answers] in ([], [request.type])


def packets(world: World) -> None:
    """A client comes to the first services."""
    for svc in list(world.ipvs.services)[:4]:
        key = svc.key
        if key.protocol in (traffic.TCP, traffic.UDP, traffic.SCTP):
            client, vip = (
                (b"\x0a\x09\0\1", b"\xc0\0\2\1") if key.af == 2 else (bytes(15) + b"\2", b"\x20" * 16)
            )
            body = traffic.segment(key.protocol, 1024, key.port or 80, traffic.SYN, b"abc")
            packet = traffic.ip(client, vip if key.fwmark else key.addr, key.protocol, body)
            nf_hook(world.ipvs, world.skb, Hook.LOCAL_IN, traffic.filled(packet), key.fwmark, 2)


def time_passes(world: World) -> None:
    world.pass_time(70)
    world.ipvs.expire_nodest_conns()
    world.ipvs.services.expire_trash(world.now)
    world.ipvs.services.estimate()


def shown(world: World, handler: Dispatcher) -> None:
    """Every listing there is."""
    client = PaperClient(handler)
    services = listing.sorted_services(client.services())
    assert len(services) == len(world.ipvs.services)
    names = Names(plain=True)
    for entry in services:
        key = entry.spec.key
        servers = listing.sorted_servers(client.dests(key))
        for columns in listing.Columns:
            listing.service_line(entry, columns, False, names)
            for server in servers:
                listing.server_line(server, key, columns, False, names)
        jsontext.service(entry, servers)
        list(save.lines(entry.spec, servers, names))
        if key.af == 2:
            assert len(_dests(client, key, len(servers))) == 24 + 96 * sum(d.spec.af == 2 for d in servers)
    count = sum(entry.spec.key.af == 2 for entry in services)
    size = 8 + sockopt.SERVICE_ENTRY_SIZE * count
    head = struct.pack("=II", count, 0).ljust(size, b"\0")
    client.get_sockopt(sockopt.GET_SERVICES, size, head[: sockopt.HEAD])
    conns = list(client.conns())
    list(listing.connections(iter(conns), True, names))
    jsontext.connections(conns)
    for name in proctext.TEXTS:
        "".join(client.proc(name))


def _dests(client: PaperClient, key: ServiceKey, count: int) -> bytes:
    """IP_VS_SO_GET_DESTS with room for so many."""
    size = 24 + sockopt.DEST_ENTRY_SIZE * count
    head = struct.pack("=H2x4sH2xII4x", key.protocol, key.addr, htons(key.port), key.fwmark, count)
    return client.get_sockopt(sockopt.GET_DESTS, size, head.ljust(size, b"\0")[: sockopt.HEAD])


def kept(world: World) -> None:
    """The saved table is the table."""
    now = stateformat.capture(world.ipvs)
    header, *lines = (line.removesuffix(b"\n") for line in stateformat.lines(now, 1, "boot"))
    stateformat.read_header(header)
    assert stateformat.replay(lines) == now


# ---------------------------------------------------------------------- seeds


class Recorder(PaperSocket):
    """Keeps what is sent."""

    def __init__(self, handler: Dispatcher) -> None:
        super().__init__(handler)
        self.sent: list[bytes] = []

    def send(self, datagram: bytes, flags: int = 0) -> int:
        self.sent.append(datagram)
        return super().send(datagram, flags)


V4, V6 = b"\xc0\0\2\1", b"\x20\x01\x0d\xb8" + bytes(11) + b"\1"
KEYS = (ServiceKey(2, 6, V4, 80), ServiceKey(10, 17, V6, 53), ServiceKey(2, 6, bytes(4), 0, 7))


def _table(client: PaperClient) -> None:
    for key in KEYS:
        client.add_service(ServiceSpec(key, "wrr", 1, 60, 0xFFFFFFFF if key.af == 2 else 64))
        addr = b"\x0a\0\0\1" if key.af == 2 else V6[:15] + b"\2"
        client.add_dest(key, DestSpec(key.af, addr, 80, 0, 5, 9, 3))
        client.add_dest(key, DestSpec(2, b"\x0a\0\0\2", 80, 2, 1, 0, 0, 1, 6080, 1))


def _recorded() -> list[bytes]:
    """What uvsadm, `uvs sysctl`, `uvs flush` and a program of before netlink say."""
    service = struct.pack("=H2x4sH2xI16sII4s", 6, V4, htons(80), 0, b"rr", 0, 0, b"\xff" * 4)
    dest = struct.pack("=4sH2xIiII", b"\x0a\0\0\1", htons(80), 0, 1, 0, 0)
    stories = [
        [],
        [lambda c: (c.edit_service(ServiceSpec(KEYS[0], "mh", 0x38, pe_name="sip")), c.zero(KEYS[0]), c.zero())],
        [lambda c: (c.edit_dest(KEYS[0], DestSpec(2, b"\x0a\0\0\1", 80, 3, 0)), c.del_dest(KEYS[0], 2, b"\x0a\0\0\2", 80))],
        [lambda c: (c.del_service(KEYS[1]), c.services(), c.service(KEYS[0]), c.dests(KEYS[2]), c.flush())],
        [lambda c: (c.set_timeouts(900, 120, 300), c.timeouts(), c.info(), c.daemons())],
        [lambda c: (c.set_sysctl("expire_nodest_conn", "1"), c.sysctl("drop_entry"), c.sysctls())],
        [lambda c: (list(c.conns(connfilter.ConnFilter(KEYS[0], b"\x0a\x09\0\0", 16, 1024, b"\x0a\0\0\1", 80))), c.flush_conns())],
        [lambda c: (c.total(), c.counters(), c.record(5), c.walks(), list(c.proc("ip_vs")), list(c.proc("ip_vs_conn")))],
        [lambda c: [c.set_sockopt(option, data) for option, data in (
            (sockopt.SET_ADD, service), (sockopt.SET_EDIT, service), (sockopt.SET_ADDDEST, service + dest),
            (sockopt.SET_EDITDEST, service + dest), (sockopt.SET_ZERO, service), (sockopt.SET_ZERO, bytes(44)),
            (sockopt.SET_TIMEOUT, struct.pack("=3i", 1, 2, 3)), (sockopt.SET_DELDEST, service + dest),
            (sockopt.SET_DEL, service), (sockopt.SET_FLUSH, b""))]],
        [lambda c: (c.set_sockopt(sockopt.SET_ADD, service), c.set_sockopt(sockopt.SET_ADDDEST, service + dest), _dests(c, KEYS[0], 1),
                    [c.get_sockopt(option, size, service.ljust(size, b"\0")) for option, size in (
                        (sockopt.GET_SERVICE, 104), (sockopt.GET_INFO, 12), (sockopt.GET_VERSION, 64),
                        (sockopt.GET_TIMEOUT, 12), (sockopt.GET_DAEMON, 48))])],
        [lambda c: c.set_sockopt(sockopt.SET_STARTDAEMON, struct.pack("=i16si", 1, b"eth0", 5))],
        [lambda c: c.set_sockopt(sockopt.SET_STOPDAEMON, struct.pack("=i16si", 2, b"eth0", 5))],
        [lambda c: c.request("IPVS", Cmd.NEW_DAEMON, messages.daemon(1, "eth0", 5, 0, b"\xe0\0\0\x51", 8848, 1))],
    ]  # fmt: skip
    found = []
    for number, story in enumerate(stories):
        world = World(conn_max=200)
        handler = dispatcher(world)
        client = PaperClient(handler)
        client._sock = recorder = Recorder(handler)  # type: ignore[assignment]
        for step in [_table, *story] if number < 8 else story:
            refused_or_done(step, client)
        world.close()
        found.append(join([(FLAG_PACKETS, d) for d in recorder.sent]))
        found.append(join([(0, b"".join(recorder.sent))]))  # all in one datagram
    return found


def refused_or_done(step, client: PaperClient) -> None:  # type: ignore[no-untyped-def]
    try:
        step(client)
    except OSError as e:
        if e.errno not in (errno.EOPNOTSUPP, errno.ESRCH):
            raise


SEEDS = _recorded()

# ------------------------------------------------------------------- mutation

NUMBERS = [0, 1, 2, 3, 6, 7, 10, 17, 80, 128, 132, 255, 1152, 6080, 65535, 2**31 - 1, 2**31, 2**32 - 1]
TEXTS = [b"", b"rr\0", b"wlc\0", b"none\0", b"sip\0", b"eth0\0", b"x" * 16, b"x" * 16 + b"\0", b"IPVS\0", b"ip_vs_conn\0", b"drop_entry\0", b"1\0", b"\xff\0"]  # fmt: skip
TYPES = [0x10, 1101, 1102, 2, 3, 16]
FLAGS = [NLM_F_REQUEST | NLM_F_ACK, NLM_F_REQUEST, NLM_F_REQUEST | NLM_F_DUMP, NLM_F_ACK, 0x305]


def mutate(data: bytes, rnd: random.Random) -> bytes:
    """One step, that leaves lengths right more often than not."""
    found = split(data)
    at = rnd.randrange(len(found)) if found else 0
    what = rnd.random()
    if not found or what < 0.05:
        found.insert(at, rnd.choice(split(rnd.choice(SEEDS))))
    elif what < 0.1:
        del found[at]
    elif what < 0.15:
        found[at] = (found[at][0] ^ 1 << rnd.randrange(3), found[at][1])
    elif what < 0.25:
        found.append(found[at])
    elif what < 0.3:
        cut = rnd.randrange(len(found[at][1]) + 1)
        found[at] = (found[at][0], found[at][1][:cut])
    else:
        found[at] = (found[at][0], _other_datagram(found[at][1], rnd))
    return join(found)


def _other_datagram(datagram: bytes, rnd: random.Random) -> bytes:
    parts = [m.raw for m in netlink.messages(datagram)] or [bytes(20)]
    at = rnd.randrange(len(parts))
    if rnd.random() < 0.1:
        parts.insert(rnd.randrange(len(parts) + 1), parts[at])
    else:
        parts[at] = _other_message(parts[at].ljust(20, b"\0"), rnd)
    return b"".join(p + b"\0" * (-len(p) & 3) for p in parts)


def _other_message(raw: bytes, rnd: random.Random) -> bytes:
    _, kind, flags, seq, pid = netlink.HEADER.unpack_from(raw)
    command, body = raw[16], raw[20:]
    what = rnd.random()
    if what < 0.1:
        kind = rnd.choice(TYPES)
    elif what < 0.2:
        flags = rnd.choice(FLAGS) if rnd.random() < 0.8 else rnd.randrange(0x10000)
    elif what < 0.35:
        command = rnd.randrange(20)
    else:
        body = _other_attributes(body, rnd)
    size = 20 + len(body) if rnd.random() < 0.95 else rnd.randrange(200)
    return netlink.HEADER.pack(size, kind, flags, seq, pid) + bytes([command]) + raw[17:20] + body


def _other_attributes(body: bytes, rnd: random.Random, depth: int = 0) -> bytes:
    found, at = [], 0
    while len(body) - at >= 4:
        size, kind = netlink.ATTRIBUTE.unpack_from(body, at)
        if not 4 <= size <= len(body) - at:
            break
        found.append((kind, body[at + 4 : at + size]))
        at += (size + 3) & ~3
    what, pick = rnd.random(), rnd.randrange(len(found)) if found else 0
    if not found or what < 0.1:
        found.insert(pick, (rnd.randrange(20), _payload(rnd)))
    elif what < 0.2:
        del found[pick]
    elif what < 0.3:
        found[pick] = (rnd.choice([rnd.randrange(20), found[pick][0] | 0x8000]), found[pick][1])
    elif depth < 2 and found[pick][0] in (1, 2, 3, 10) and len(found[pick][1]) > 8:
        found[pick] = (found[pick][0], _other_attributes(found[pick][1], rnd, depth + 1))
    else:
        found[pick] = (found[pick][0], _payload(rnd, found[pick][1]))
    out = b"".join(netlink.attribute(kind, payload[:60000]) for kind, payload in found)
    if rnd.random() < 0.05 and len(out) >= 4:
        return struct.pack("=H", rnd.randrange(100)) + out[2:]
    return out


def _payload(rnd: random.Random, before: bytes = b"") -> bytes:
    """Another payload, of the same size more often than not."""
    what, size = rnd.random(), rnd.choice([1, 2, 4, 8])
    if before and what < 0.3:
        out = bytearray(before)
        out[rnd.randrange(len(out))] = rnd.choice(NUMBERS) & 0xFF
        return bytes(out)
    if before and what < 0.4:
        return before[: rnd.randrange(len(before))]
    if before and what < 0.7 and len(before) in (1, 2, 4, 8):
        size = len(before)
    elif what < 0.8:
        return rnd.choice(TEXTS)
    elif what < 0.85:  # a socket option
        data = before[8:] if len(before) > 8 else bytes(rnd.choice([0, 12, 24, 44, 68, 104]))
        size = rnd.choice([len(data)] * 3 + [rnd.choice(NUMBERS)])
        return struct.pack("=II", rnd.randrange(1150, 1170), size) + data
    elif what < 0.9:
        return rnd.choice([V4, V6, b"\xe0\0\0\1", bytes(16), b"\x7f\0\0\1"])
    return (rnd.choice(NUMBERS) % 256**size).to_bytes(size, rnd.choice(["little", "big"]))
