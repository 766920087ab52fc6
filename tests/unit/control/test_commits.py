"""What waits for a commit, and what goes on meanwhile."""

import asyncio
import errno
import select
import socket
import threading

import pytest
from support.sandbox import wait_for
from support.world import packed

from uvs.control import messages, netlink, server
from uvs.control.genetlink import IPVS_ID
from uvs.control.messages import Cmd
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)
PATIENCE_S = 15.0  # for what must come


def request(command, payload=b"", seq=1):
    return netlink.message(IPVS_ID, 5, seq, 0, command, payload)


def new_service(port):
    return request(Cmd.NEW_SERVICE, messages.service(ServiceSpec(KEY._replace(port=port))), seq=port)


def answer(sock):
    (found,) = netlink.messages(sock.recv(65536))
    return found.seq, found.errno


@pytest.fixture
def sock(director):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as made:
        made.settimeout(PATIENCE_S)
        made.connect(director.path)
        yield made


class Gate:
    """Commits that end when they are let; `seen`: how many services there were when each began."""

    def __init__(self, director):
        self.seen, self.began = [], threading.Semaphore(0)
        self._director, self._open = director, asyncio.Semaphore(0)
        director.on_commit = self._commit

    async def _commit(self):
        self.seen.append(len(self._director.ipvs.services))
        self.began.release()
        await self._open.acquire()

    def wait(self):
        assert self.began.acquire(timeout=PATIENCE_S)

    def let(self):
        self._director.do(self._open.release)


def test_while_a_commit_is_under_way_others_and_the_client_itself_go_on(director, client, sock):
    """What changes meanwhile is acknowledged after the next commit; answers keep their order."""
    gate = Gate(director)
    sock.send(new_service(1))
    gate.wait()
    assert client.info()
    sock.send(request(Cmd.DEL_SERVICE, seq=2))
    sock.send(new_service(3))
    while len(client.services()) < 2:
        pass
    assert not select.select([sock], [], [], 0)[0]
    gate.let()
    assert [answer(sock), answer(sock)] == [(1, 0), (2, errno.EINVAL)]
    gate.wait()
    assert not select.select([sock], [], [], 0)[0]
    gate.let()
    assert answer(sock) == (3, 0)
    assert gate.seen == [1, 2]


def test_one_commit_answers_all_clients_whose_changes_it_covers(director, client, sock):
    gate = Gate(director)
    sock.send(new_service(1))
    gate.wait()
    socks = []
    for port in range(2, 12):
        one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one.settimeout(PATIENCE_S)
        one.connect(director.path)
        one.send(new_service(port))
        socks.append((port, one))
    while len(client.services()) < 11:
        pass
    gate.let()
    gate.let()
    for port, one in [(1, sock), *socks]:
        assert answer(one) == (port, 0)
    for _, one in socks:
        one.close()
    assert gate.seen == [1, 11]


def test_a_client_that_goes_away_leaves_its_changes(director, client, sock):
    gate = Gate(director)
    sock.send(new_service(1))
    gate.wait()
    sock.send(new_service(2))
    sock.close()
    while len(director.server.clients) > 1:
        client.info()
    gate.let()
    gate.wait()
    gate.let()
    assert gate.seen == [1, 2]
    gate.let()
    client.add_service(ServiceSpec(KEY))


def test_one_that_is_killed_leaves_its_changes_too(director, client, sock, monkeypatch):
    """An answer finds nobody, before the end of what was asked is seen."""
    monkeypatch.setattr(server, "BURST", 1)
    hold = threading.Event()
    director._loop.call_soon_threadsafe(hold.wait, PATIENCE_S)
    sock.send(request(Cmd.GET_INFO) + new_service(2))
    sock.send(request(Cmd.GET_INFO))
    sock.close()
    hold.set()
    while len(director.server.clients) > 1:
        client.info()
    assert len(client.services()) == 1
    wait_for(lambda: director.commits, "the change is committed")


def test_what_waits_for_a_commit_is_bounded(director, client, sock, monkeypatch):
    """Then no more is taken, until it has ended; and the loop does not spin."""
    monkeypatch.setattr(server, "OWED_MAX", 10)
    gate = Gate(director)
    sock.send(new_service(1))
    gate.wait()
    asking = threading.Thread(target=lambda: [sock.send(new_service(port)) for port in range(2, 101)])
    asking.start()
    while not any(c._waits is server.Waits.COMMIT for c in list(director.server.clients.values())):
        client.info()
    assert len(client.services()) <= 10 + server.BURST
    turns = []

    def served(client, end, turn=server.Client.turn):
        turns.append(client)
        turn(client, end)

    monkeypatch.setattr(server.Client, "turn", served)
    client.info()
    assert len(set(turns)) == 1, "only the other has turns"
    for _ in range(100):
        gate.let()
    assert [answer(sock) for _ in range(100)] == [(port, 0) for port in range(1, 101)]
    asking.join()


def test_a_flush_lets_the_loop_turn(director, client, sock):
    def fill():
        for port in range(1, 501):
            key = KEY._replace(port=port)
            director.ipvs.services.add_service(ServiceSpec(key))
            director.ipvs.services.add_dest(key, DestSpec(2, packed("10.1.0.1"), 80))

    director.do(fill)
    director.do(lambda: setattr(director.server.turns, "_clock", lambda: 0.0))  # every turn's time is over
    seen = []

    def tick():
        seen.append(len(director.ipvs.services))
        if seen[-1]:
            director._loop.call_soon(tick)

    director.do(tick)
    sock.send(request(Cmd.FLUSH, seq=1) + new_service(2))
    assert [answer(sock), answer(sock)] == [(1, 0), (2, 0)]
    assert len(set(seen)) > 100, "a service or a few at a time"
    assert [entry.spec.key.port for entry in client.services()] == [2]
    assert client.dests(KEY._replace(port=2)) == []


def test_a_commit_that_fails_in_a_way_nobody_foresaw_is_no_end(director, client, caplog):
    def commit():
        raise ZeroDivisionError

    director.on_commit = commit
    client.add_service(ServiceSpec(KEY))
    assert "ZeroDivisionError" in caplog.text
    director.on_commit = lambda: None
    client.del_service(KEY)
