"""Which queue a packet comes by: its class's, and of several always the same one of its addresses.

Real packets, for every back end that this kernel has; the hosts are those of support.netfilter.
test_netfilter_user.py and tests/kernel/test_nft.py run this file too.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from collections import defaultdict
from collections.abc import Collection, Iterator
from functools import partial

import pytest
from support.backends import TO_TEST
from support.netfilter import (
    AF_INET,
    CLIENT,
    FAMILIES,
    FORWARD,
    GATEWAY,
    LOCAL_IN,
    LOCAL_OUT,
    MARK,
    PATIENCE_S,
    QUEUE,
    SERVER,
    SO_MARK,
    UDP,
    VIP,
    Net,
    needs_net_admin,
    server,
    service,
)
from support.sandbox import ip

from uvs.netfilter import Diversion, Element, iptables, nft
from uvs.netfilter.netfilterqueue import NetfilterQueueDriver
from uvs.netfilter.plan import Class, Plan, queues_by_class
from uvs.netfilter.tool import ToolError

pytestmark = needs_net_admin
BY_BACKEND = pytest.mark.parametrize("name", TO_TEST)
TCP, SCTP = 6, 132
FIN, SYN, RST, PSH, ACK, ECE, CWR = 1, 2, 4, 8, 16, 64, 128
TOKEN = b"a packet of this"  # two bytes of the packet's number follow
ANOTHER_VIP = {af: address[:-1] + "8" for af, address in VIP.items()}


Body = tuple[int, bytes]  # protocol, what follows the IP header


def tcp(sport: int, dport: int, flags: int) -> Body:
    """A segment; its checksum is wrong, as are those of the others: nobody is to get it."""
    return TCP, struct.pack("!HHIIBBHHH", sport, dport, 1, 0, 0x50, flags, 4096, 0, 0) + TOKEN


def udp(sport: int, dport: int) -> Body:
    """A datagram."""
    return UDP, struct.pack("!HHHH", sport, dport, 8 + len(TOKEN) + 2, 0) + TOKEN


def sctp(sport: int, dport: int) -> Body:
    """A packet of SCTP, without a chunk."""
    return SCTP, struct.pack("!HHII", sport, dport, 1, 0) + TOKEN


def unreachable(af: int) -> Body:
    """An ICMP error."""
    protocol, kind = (1, 3) if af == AF_INET else (58, 1)
    return protocol, bytes([kind, 1]) + bytes(6) + TOKEN


def packet(af: int, source: str, to: str, body: Body) -> bytes:
    """An IP packet; its number is yet to come. The kernel fills in checksum and length of IPv4."""
    protocol, data = body
    ends = socket.inet_pton(af, source) + socket.inet_pton(af, to)
    if af == AF_INET:
        return struct.pack("!BBHHHBBH", 0x45, 0, 0, 0, 0, 64, protocol, 0) + ends + data
    return struct.pack("!IHBB", 6 << 28, len(data) + 2, protocol, 64) + ends + data


def pieces(af: int, source: str, to: str, segment: Body) -> list[bytes]:
    """The packet in two fragments, the token in both; no more is after their numbers."""
    protocol, data = segment
    made = []
    for offset, more, part in ((0, 1, data[:-16] + bytes(2) + TOKEN), (5, 0, TOKEN)):
        if af == AF_INET:
            whole = packet(af, source, to, (protocol, part))
            made.append(whole[:4] + struct.pack("!HH", 77, more << 13 | offset) + whole[8:])
        else:
            head = struct.pack("!BBHI", protocol, 0, offset << 3 | more, 77)
            made.append(packet(af, source, to, (44, head + part)))
    return made


class Queues:
    """All queues of a diversion; packets of this file are written down, and none goes on."""

    def __init__(self, numbers: set[int], undo: contextlib.ExitStack) -> None:
        self.seen: dict[int, list[tuple[int, int]]] = defaultdict(list)  # packet's number: (hook, queue)
        self._drivers = [
            undo.enter_context(contextlib.closing(NetfilterQueueDriver(n, partial(self._handle, n))))
            for n in numbers
        ]

    def _handle(self, queue: int, hook: int, data: bytes, mark: int, indev: int, gso: bool, _: int) -> bool:
        if (at := data.find(TOKEN)) >= 0:
            number = int.from_bytes(data[at + len(TOKEN) :][:2])
            self.seen[number].append((hook, queue))
        return False

    def wait(self, count: int) -> None:
        """Until as many have come, and a moment more for those that should not."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            late = count <= sum(map(len, self.seen.values())) or time.monotonic() > deadline
            ready = select.select(self._drivers, [], [], 0.2)[0]
            for driver in ready:
                driver.run()
            if late and not ready:
                return


def send(net: Net, host: str, af: int, data: bytes, number: int, mark: int = 0) -> None:
    """Send it, to its own destination, with the packet's number at its end."""
    at, size = (16, 4) if af == AF_INET else (24, 16)
    with net.socket(host, af, socket.SOCK_RAW, socket.IPPROTO_RAW) as sock:
        sock.setsockopt(socket.SOL_SOCKET, SO_MARK, mark)
        sock.sendto(data + number.to_bytes(2), (socket.inet_ntop(af, data[at : at + size]), 0))


def without_defragmentation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel where no rule has fragments put together."""
    monkeypatch.setattr(iptables, "defragmented", lambda af: {"PREROUTING": ["-m no-such-match -j ACCEPT"]})
    ruleset = nft.ruleset

    def lacking(table: str, plan: Plan, parts: Collection[str], hooked: bool = True) -> str:
        if "defrag" in parts:
            raise ToolError("no such statement")
        return ruleset(table, plan, parts, hooked)

    monkeypatch.setattr(nft, "ruleset", lacking)


@pytest.fixture
def undo() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def divert(undo: contextlib.ExitStack, name: str, af: int, count: int) -> Queues:
    """Services, servers and a mark, diverted to `count` queues for each class."""
    ip(f"addr add {ANOTHER_VIP[af]} dev lo{' nodad' if af != AF_INET else ''}")
    made = Diversion(queues_by_class(QUEUE, count), MARK, MARK, name)
    undo.callback(made.stop)
    for protocol in (TCP, UDP, SCTP):
        addresses = socket.inet_pton(af, VIP[af]), socket.inet_pton(af, SERVER[af])
        made.add(Element("service", af, protocol, addresses[0], 80))
        made.add(Element("server", af, protocol, addresses[1], 8080))
    made.add(service(af, 0, ANOTHER_VIP[af]))
    made.add(server(af, 0, CLIENT[af][:-1] + "7"))
    made.add(Element("mark", af, mark=5))
    made.start()
    return Queues(made.plan.all_queues, undo)


@FAMILIES
@BY_BACKEND
@pytest.mark.parametrize("count", [1, 2])
def test_classes(net: Net, undo: contextlib.ExitStack, name: str, af: int, count: int) -> None:
    queues = divert(undo, name, af, count)
    vip, whole, rip = VIP[af], ANOTHER_VIP[af], SERVER[af]
    client = "client", CLIENT[af], 0
    server = "server", rip, 0
    real = "client", CLIENT[af][:-1] + "7", 0  # on every port
    director, answers = ("director", GATEWAY[af], 0), ("director", vip, 0)
    marked, ours = ("director", GATEWAY[af], 5), ("director", GATEWAY[af], MARK | 5)
    request, reply = partial(tcp, 1025, 80), partial(tcp, 8080, 1025)
    there = CLIENT[af]
    rows: list[tuple[str, tuple[str, str, int], str, Body, int | None, Class | None]] = [
        ("SYN", client, vip, request(SYN), LOCAL_IN, Class.SYN),
        ("SYN with ECN", client, vip, request(SYN | ECE | CWR), LOCAL_IN, Class.SYN),
        ("SYN with PSH", client, vip, request(SYN | PSH), LOCAL_IN, Class.SYN),
        ("SYN and ACK to a service", client, vip, request(SYN | ACK), LOCAL_IN, Class.REQUEST),
        ("SYN and FIN", client, vip, request(SYN | FIN), LOCAL_IN, Class.REQUEST),
        ("SYN and RST", client, vip, request(SYN | RST), LOCAL_IN, Class.REQUEST),
        ("ACK", client, vip, request(ACK), LOCAL_IN, Class.REQUEST),
        ("FIN", client, vip, request(FIN | ACK), LOCAL_IN, Class.REQUEST),
        ("RST", client, vip, request(RST), LOCAL_IN, Class.REQUEST),
        ("no flag at all", client, vip, request(0), LOCAL_IN, Class.REQUEST),
        ("another port", client, vip, tcp(1025, 81, SYN), None, None),
        ("UDP", client, vip, udp(1025, 80), LOCAL_IN, Class.OTHER),
        ("SCTP", client, vip, sctp(1025, 80), LOCAL_IN, Class.OTHER),
        ("SYN, port 0", client, whole, tcp(1025, 7, SYN), LOCAL_IN, Class.SYN),
        ("ACK, port 0", client, whole, tcp(1025, 7, ACK), LOCAL_IN, Class.REQUEST),
        ("UDP, port 0", client, whole, udp(1025, 7), LOCAL_IN, Class.OTHER),
        ("local client's SYN", director, vip, request(SYN), LOCAL_OUT, Class.SYN),
        ("local SYN, no service", director, there, request(SYN), None, None),
        ("local SYN, marked", marked, there, request(SYN), LOCAL_OUT, Class.SYN),
        ("local ACK, marked", marked, there, request(ACK), LOCAL_OUT, Class.REQUEST),
        ("local UDP, marked", marked, there, udp(1, 2), LOCAL_OUT, Class.OTHER),
        ("sent by us", ours, vip, request(SYN), None, None),
        ("reply", server, there, reply(ACK), FORWARD, Class.REPLY),
        ("SYN and ACK", server, there, reply(SYN | ACK), FORWARD, Class.REPLY),
        ("SYN of a server", server, there, reply(SYN), FORWARD, Class.REPLY),
        ("a server's SYN to a service", server, vip, tcp(8080, 80, SYN), LOCAL_IN, Class.SYN),
        ("another port's SYN", server, vip, tcp(8081, 80, SYN), LOCAL_IN, Class.SYN),
        ("UDP reply", server, there, udp(8080, 1025), FORWARD, Class.OTHER),
        ("SCTP reply", server, there, sctp(8080, 1025), FORWARD, Class.OTHER),
        ("reply, port 0", real, rip, tcp(7, 1025, ACK), FORWARD, Class.REPLY),
        ("UDP reply, port 0", real, rip, udp(7, 1025), FORWARD, Class.OTHER),
        ("reply from the service", answers, there, tcp(80, 1, ACK), LOCAL_OUT, Class.REPLY),
        ("ICMP error", client, vip, unreachable(af), LOCAL_IN, Class.OTHER),
        ("ICMP error forwarded", server, there, unreachable(af), FORWARD, Class.OTHER),
        ("ICMP error, port 0", real, rip, unreachable(af), FORWARD, Class.OTHER),
    ]
    for number, (_, (host, source, mark), to, body, _, _) in enumerate(rows):
        send(net, host, af, packet(af, source, to, body), number, mark)
    queues.wait(sum(hook is not None for *_, hook, _ in rows))
    got = {
        row[0]: [(hook, Class((queue - QUEUE) // count)) for hook, queue in queues.seen[number]]
        for number, row in enumerate(rows)
    }
    assert got == {shows: [] if hook is None else [(hook, each)] for shows, *_, hook, each in rows}


@FAMILIES
@BY_BACKEND
def test_several_queues_share_a_class(net: Net, undo: contextlib.ExitStack, name: str, af: int) -> None:
    """By addresses: what has the same goes the same way, at least while the director runs."""
    queues = divert(undo, name, af, 2)
    others = [CLIENT[af][:-1] + str(n) for n in range(20, 52)]
    kinds = [
        (Class.OTHER, "client", udp(1025, 80)),
        (Class.REQUEST, "client", tcp(1025, 80, ACK)),
        (Class.REPLY, "server", tcp(8080, 1025, ACK)),
        (Class.SYN, "client", tcp(1025, 80, SYN)),
    ]
    for each, host, body in kinds:
        for number, other in enumerate(others):
            ends = (other, VIP[af]) if host == "client" else (SERVER[af], other)
            for _ in range(3):
                send(net, host, af, packet(af, *ends, body), number)
        queues.wait(3 * len(others))
        ways = [{queue - QUEUE for _, queue in queues.seen[number]} for number in range(len(others))]
        assert [len(way) for way in ways] == [1] * len(others), each.name
        assert set.union(*ways) == {2 * each, 2 * each + 1}, each.name
        queues.seen.clear()


@FAMILIES
@BY_BACKEND
@pytest.mark.parametrize("together", [True, False], ids=["put together", "as they come"])
def test_fragments_of_tcp(
    net: Net,
    undo: contextlib.ExitStack,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    af: int,
    together: bool,
) -> None:
    """What has no ports, or not all of its data, is no packet of many segments: it comes with the others."""
    if not together:
        without_defragmentation(monkeypatch)
    queues = divert(undo, name, af, 1)
    rows = [
        ("client", CLIENT[af], ANOTHER_VIP[af], LOCAL_IN, Class.SYN),
        ("client", CLIENT[af][:-1] + "7", SERVER[af], FORWARD, Class.REPLY),
    ]
    for number, (host, source, to, *_) in enumerate(rows):
        for piece in pieces(af, source, to, tcp(7, 7, SYN)):
            send(net, host, af, piece, number)
    expected = {
        number: [(hook, QUEUE + each)]
        # The IPv4 stack has done it before LOCAL_IN.
        if together or (af, hook) == (AF_INET, LOCAL_IN)
        else [(hook, QUEUE + Class.OTHER)] * 2
        for number, (*_, hook, each) in enumerate(rows)
    }
    queues.wait(sum(map(len, expected.values())))
    assert queues.seen == expected
