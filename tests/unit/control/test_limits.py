"""Turns, places and warnings: who is served when, by counts on a clock of the test's own."""

import errno
import select
import socket
import threading

import pytest
from support.world import packed

from uvs.control import limits, messages, netlink, server
from uvs.control.genetlink import IPVS_ID
from uvs.control.messages import Cmd
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

MS = 0.001
KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)


class Loop:
    """call_soon, and a clock that only work moves."""

    def __init__(self):
        self.soon, self.now = [], 0.0

    def call_soon(self, callback):
        self.soon.append(callback)

    def turn(self):
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def clock(self):
        return self.now


class Flooder:
    """Always has more to do, and uses all the time it gets, in steps."""

    def __init__(self, loop, turns, name, served, step=0.5 * MS):
        self.loop, self.turns, self.name, self.served, self.step = loop, turns, name, served, step

    def turn(self, end):
        self.served.append(self.name)
        while True:
            self.loop.now += self.step
            if self.loop.now >= end:
                break
        self.turns.wait(self)


class Quick:
    def __init__(self, loop):
        self.loop, self.turns_had = loop, 0

    def turn(self, end):
        self.loop.now += 0.01 * MS
        self.turns_had += 1


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def turns(loop):
    return limits.Turns(loop, loop.clock)


def test_who_is_alone_is_served_at_once_and_in_every_turn(loop, turns):
    one = Quick(loop)
    for had in range(1, 5):
        turns.ask(one)
        assert one.turns_had == had
        loop.turn()
        loop.turn()
    assert loop.soon == []  # an idle director sleeps


def test_a_turn_of_the_loop_costs_the_budget_and_one_share_at_most(loop, turns):
    served = []
    crowd = [Flooder(loop, turns, n, served) for n in range(100)]
    for turn in range(60):
        began = loop.now
        for one in crowd:
            turns.ask(one)
        loop.turn()
        assert loop.now - began <= limits.BUDGET_S * 2 + limits.SHARE_S, f"turn {turn}"
        assert len(loop.soon) == 1
    counts = [served.count(n) for n in range(100)]
    assert min(counts) >= 1
    assert max(counts) - min(counts) <= 1  # in rotation


def test_work_longer_than_the_budget_leaves_one_served_in_a_turn(loop, turns):
    """A commit may take 50 ms: then each turn of the loop has one client, and another each time."""
    served = []
    crowd = [Flooder(loop, turns, n, served, step=50 * MS) for n in range(5)]
    for one in crowd:
        turns.ask(one)
    for _ in range(9):
        before = len(served)
        loop.turn()
        assert len(served) == before + 1
    assert served == [0, *[0, 1, 2, 3, 4] * 2][:10]  # the first was alone when it asked


def test_who_comes_last_waits_for_each_of_the_others_once(loop, turns):
    served = []
    for n in range(20):
        turns.ask(Flooder(loop, turns, n, served))
    one = Quick(loop)
    turns.ask(one)
    served.clear()
    while not one.turns_had:
        turns_before = len(served)
        loop.turn()
    assert sorted(served[:20]) == list(range(20))
    assert turns_before <= 20  # it came in the turn of the loop in which the last of them did, or the next


def test_who_has_gone_has_no_turn(loop, turns):
    served = []
    first, second = Flooder(loop, turns, 1, served, 10 * MS), Quick(loop)
    turns.ask(first)
    turns.ask(second)
    turns.forget(second)
    turns.forget(first)
    turns.forget(first)
    loop.turn()
    loop.turn()
    assert (served, second.turns_had, loop.soon) == ([1], 0, [])


def test_who_is_ended_by_another_s_turn_has_none(loop, turns):
    class Ender(Quick):
        def turn(self, end):
            super().turn(end)
            turns.forget(victim)

    served = []
    busy, ender, victim = Flooder(loop, turns, 1, served, 10 * MS), Ender(loop), Quick(loop)
    for one in (busy, ender, victim):
        turns.ask(one)
    turns.forget(busy)
    loop.turn()
    assert (ender.turns_had, victim.turns_had) == (1, 0)


# ---------------------------------------------------------------- places


def test_a_user_has_not_all_places_and_root_finds_one(monkeypatch):
    """Nor have many users together: the rest is kept for root."""
    monkeypatch.setattr(limits, "PER_USER_MAX", 3)
    monkeypatch.setattr(limits, "CLIENTS_MAX", 10)
    monkeypatch.setattr(limits, "KEPT", 3)
    places = limits.Places()
    for uid, got in ((1000, 3), (1001, 3), (1002, 1), (1003, 0)):
        assert [places.take(uid, favoured=False) for _ in range(4)].count(True) == got
    assert [places.take(0, favoured=True) for _ in range(4)] == [True, True, True, False]
    places.leave(1000, favoured=False)
    assert [places.take(1002, favoured=False), places.take(1003, favoured=False)] == [True, False]
    places.leave(0, favoured=True)
    assert not places.take(1003, favoured=False)
    assert places.take(0, favoured=True)


@pytest.mark.parametrize(
    ("limit", "held", "after", "clients"),
    [
        ((20_000, 20_000), 0, 20_000, 19_900),
        ((1024, 1 << 20), 0, 1100, 1000),
        ((1024, 1024), 0, 1024, 924),  # more would leave none to start ipset with
        ((1024, 1024), 512, 1024, 412),  # --queues 64
        ((1024, 1 << 20), 512, 1612, 1000),
        ((64, 64), 0, 64, 1),
    ],
)
def test_descriptors(limit, held, after, clients, monkeypatch):
    now = [limit]
    monkeypatch.setattr(limits.os, "listdir", lambda path: ["x"] * held)
    monkeypatch.setattr(limits.resource, "getrlimit", lambda which: now[0])
    monkeypatch.setattr(limits.resource, "setrlimit", lambda which, wanted: now.__setitem__(0, wanted))
    assert limits.room() == clients
    assert now[0] == (after, limit[1])


def test_no_more_places_than_descriptors():
    places = limits.Places(2)
    assert [places.take(0, favoured=True) for _ in range(3)] == [True, True, False]


def test_a_warning_that_others_cause_comes_seldom(loop, caplog):
    seldom = limits.Seldom(loop.clock)
    for _ in range(1000):
        seldom.warn("somebody knocks")
        loop.now += 0.02
    assert [r.getMessage() for r in caplog.records] == [
        "somebody knocks",
        "somebody knocks (and 500 more such)",
    ]


# ---------------------------------------------------------------- on a socket


def request(command, payload=b"", seq=1, flags=5):
    return netlink.message(IPVS_ID, flags, seq, 0, command, payload)


def new_dest(n):
    spec = DestSpec(2, packed(f"10.1.{n >> 8 & 255}.{n & 255}"), 80)
    return request(Cmd.NEW_DEST, messages.service_id(KEY) + messages.dest(spec), seq=n)


FLOODS = {
    "NEW_DEST": lambda n: new_dest(n & 0xFFFF),
    "a datagram full of GET_INFO": lambda n: request(Cmd.GET_INFO, seq=n) * (server.MESSAGE_MAX // 20),
    "listings": lambda n: request(Cmd.GET_SERVICE, flags=0x305, seq=n),
    "refusals": lambda n: request(Cmd.DEL_SERVICE, b"\0" * 60000, seq=n),
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_client_that_floods_stalls_neither_the_loop_nor_another(director, client, flood):
    """Three clients ask as fast as they can, and read; meanwhile the loop turns and another is answered."""
    client.add_service(ServiceSpec(KEY))
    ticks, stop, answered = [0], threading.Event(), [0, 0, 0]

    def tick():
        ticks[0] += 1
        director._loop.call_soon(tick)

    def ask(which):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
            sock.connect(director.path)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
            sock.setblocking(False)
            n = which << 14
            while not stop.is_set():
                readable, writable, _ = select.select([sock], [sock], [], 1)
                if writable:
                    n += 1
                    sock.send(FLOODS[flood](n))
                if readable:
                    answered[which] += bool(sock.recv(1 << 20))

    def in_between(count=20):
        """Turns of the loop between two answers to us."""
        found = []
        for _ in range(count):
            before = ticks[0]
            assert client.info()
            found.append(ticks[0] - before)
        return found

    threads = [threading.Thread(target=ask, args=(which,)) for which in range(3)]
    for thread in threads:
        thread.start()
    try:
        while not all(answered):
            assert client.info()
        director.do(tick)
        assert sum(in_between()) >= 10  # an answer may come in the same turn as the one before
        before = list(answered)
        while any(now == then for now, then in zip(answered, before, strict=True)):
            assert client.info()
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_datagram_of_many_requests_is_answered_in_several_turns(director, client, monkeypatch):
    """With no budget at all a turn of the loop has one request; all are answered, in order."""
    monkeypatch.setattr(limits, "BUDGET_S", 0.0)
    turns = [0]

    def tick():
        turns[0] += 1
        director._loop.call_soon(tick)

    director.do(tick)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.settimeout(60)
        sock.connect(director.path)
        before = turns[0]
        sock.send(b"".join(request(Cmd.DEL_SERVICE, seq=n) for n in range(100)))
        answers = [next(netlink.messages(sock.recv(1000))) for _ in range(100)]
        assert [(m.seq, m.errno) for m in answers] == [(n, errno.EINVAL) for n in range(100)]
        assert turns[0] - before >= 99


def test_what_waits_for_a_client_is_bounded_in_bytes(director, client):
    """A refusal repeats the request: who sends long ones and reads nothing is owed little more than a megabyte."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        sock.connect(director.path)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.setblocking(False)
        text = FLOODS["refusals"](1)
        while not any(c._waits is server.Waits.ROOM for c in list(director.server.clients.values())):
            if select.select([], [sock], [], 0.1)[1]:
                sock.send(text)
        assert client.info()

        def owed():
            waiting = ([*c._out, c._pending or b""] for c in director.server.clients.values())
            return max(sum(map(len, answers)) for answers in waiting)

        assert 0 < director.do(owed) <= server.OWED_BYTES + 2 * server.MESSAGE_MAX
