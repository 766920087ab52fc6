"""The socket: who may use it, what a burst is, and that no client can hold up another."""

import asyncio
import errno
import itertools
import os
import select
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest
from support.control import Running, running
from support.sandbox import wait_for
from support.world import packed

from uvs.control import genetlink, limits, messages, netlink, server
from uvs.control.client import Client
from uvs.control.genetlink import GENL_ID_CTRL, IPVS_ID
from uvs.control.messages import Cmd
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)


PATIENCE_S = 15.0  # for what must come


def raw(director, timeout=PATIENCE_S):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(timeout)
    sock.connect(director.path)
    return sock


def request(command, payload=b"", seq=1, flags=5):
    return netlink.message(IPVS_ID, flags, seq, 0, command, payload)


# ------------------------------------------------------------ answers


def test_a_reply_and_its_ack_are_two_datagrams(director):
    with raw(director) as sock:
        sock.send(request(Cmd.GET_INFO, seq=77))
        (reply,) = netlink.messages(sock.recv(65536))
        assert (reply.type, reply.flags, reply.seq, reply.body[0]) == (IPVS_ID, 0, 77, Cmd.SET_INFO)
        ack = sock.recv(65536)
        assert len(ack) == 36
        (found,) = netlink.messages(ack)
        assert (found.type, found.errno, found.seq) == (netlink.NLMSG_ERROR, 0, 77)


def test_without_the_flag_there_is_no_ack(director):
    with raw(director) as sock:
        sock.send(request(Cmd.FLUSH, flags=1))
        sock.send(request(Cmd.FLUSH, seq=2))
        assert next(netlink.messages(sock.recv(65536))).seq == 2


def test_an_error_carries_the_whole_request(director):
    text = request(Cmd.DEL_SERVICE, messages.service_id(KEY), seq=5)
    with raw(director) as sock:
        sock.send(text)
        (found,) = netlink.messages(sock.recv(65536))
        assert (found.errno, found.seq, found.body[4:]) == (errno.ESRCH, 5, text)


def test_a_dump_ends_with_done_and_has_no_ack(director, client):
    client.add_service(ServiceSpec(KEY))
    with raw(director) as sock:
        sock.send(request(Cmd.GET_SERVICE, flags=0x305, seq=6))
        found = list(netlink.messages(sock.recv(65536)))
        assert [(m.type, m.flags, m.seq) for m in found] == [(IPVS_ID, 2, 6), (netlink.NLMSG_DONE, 2, 6)]
        sock.send(request(Cmd.FLUSH, seq=7))
        assert next(netlink.messages(sock.recv(65536))).seq == 7


def test_several_requests_in_one_datagram(director):
    with raw(director) as sock:
        sock.send(request(Cmd.FLUSH, seq=1) + request(Cmd.DEL_SERVICE, messages.service_id(KEY), seq=2))
        answers = [next(netlink.messages(sock.recv(65536))) for _ in range(2)]
        assert [(m.seq, m.errno) for m in answers] == [(1, 0), (2, errno.ESRCH)]


@pytest.mark.parametrize(
    ("shows", "text", "number"),
    [
        ("a family that is none", netlink.message(1100, 5, 1, 0, 1, b""), errno.ENOENT),
        ("no generic netlink header", netlink.HEADER.pack(18, IPVS_ID, 5, 1, 0) + b"\1\1", errno.EINVAL),
        ("a no-op is acknowledged", netlink.HEADER.pack(16, 1, 5, 1, 0), 0),
        ("what is no request is acknowledged", request(Cmd.FLUSH, flags=4), 0),
    ],
)
def test_oddities(director, shows, text, number):
    with raw(director) as sock:
        sock.send(text)
        assert next(netlink.messages(sock.recv(65536))).errno == number


@pytest.mark.parametrize("junk", [b"x", b"\xff" * 15, b"\0" * 64, b"\xff" * 40000])
def test_junk_is_passed_over(director, junk):
    with raw(director) as sock:
        sock.send(junk)
        sock.send(request(Cmd.GET_INFO))
        assert next(netlink.messages(sock.recv(65536))).body[0] == Cmd.SET_INFO


def test_a_request_too_long_ends_the_connection(director, client):
    with raw(director) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        sock.send(b"x" * (server.MESSAGE_MAX + 1))
        assert sock.recv(100) == b""
    assert client.info()


def test_a_fault_of_ours_is_an_error_not_the_end(director, client, monkeypatch, caplog):
    monkeypatch.setattr(director.ipvs.services, "flushing", lambda: 1 / 0)
    with pytest.raises(IpvsError) as caught:
        client.flush()
    assert caught.value.errno == errno.EIO
    assert client.info()
    assert "ZeroDivisionError" in caplog.text


# ------------------------------------------------------------- families


def family(sock, attrs):
    sock.send(netlink.message(GENL_ID_CTRL, 5, 1, 0, 3, attrs))
    (found,) = netlink.messages(sock.recv(65536))
    if found.type == netlink.NLMSG_ERROR:
        return found.errno
    sock.recv(65536)
    return netlink.attributes(found.body, 4)


@pytest.mark.parametrize("name", ["IPVS", "UVS", "nlctrl"])
def test_families_are_found_by_name_and_id(director, name):
    with raw(director) as sock:
        by_name = family(sock, netlink.string(2, name))
        assert by_name[2] == name.encode() + b"\0"
        assert by_name[1] == {"IPVS": 1101, "UVS": 1102, "nlctrl": 16}[name].to_bytes(2, sys.byteorder)
        assert family(sock, netlink.attribute(1, by_name[1])) == by_name


def test_families_that_are_not_there(director):
    with raw(director) as sock:
        assert family(sock, netlink.string(2, "nl80211")) == errno.ENOENT
        assert family(sock, netlink.attribute(1, b"\x11\0")) == errno.ENOENT
        assert family(sock, netlink.attribute(1, b"\x11")) == errno.EINVAL
        assert family(sock, b"") == errno.EINVAL


def test_ids_cannot_be_the_kernel_s():
    assert min(genetlink.IPVS_ID, genetlink.UVS_ID) > 1023  # GENL_MAX_ID


# -------------------------------------------------------------- bursts


def test_a_burst_is_committed_once_before_it_is_acknowledged(director):
    """The commit sees all changes; no acknowledgement has left when it runs."""
    with raw(director) as sock:
        seen = []

        def commit():
            answered = select.select([sock], [], [], 0)[0]
            seen.append((len(director.ipvs.services), answered))

        director.on_commit = commit
        hold, held = threading.Event(), threading.Event()
        director._loop.call_soon_threadsafe(lambda: (held.set(), hold.wait(PATIENCE_S)))
        assert held.wait(PATIENCE_S)
        for port in range(1, 11):
            sock.send(
                request(Cmd.NEW_SERVICE, messages.service(ServiceSpec(KEY._replace(port=port))), seq=port)
            )
        hold.set()
        wait_for(lambda: seen, "the change is seen")
        assert seen == [(10, [])]
        assert [next(netlink.messages(sock.recv(100))).seq for _ in range(10)] == list(range(1, 11))


def test_what_changes_nothing_is_not_committed(director, client):
    client.info()
    client.services()
    with pytest.raises(OSError, match="No such process"):
        client.del_service(KEY)
    assert director.commits == 0


def test_a_failing_commit_is_logged_and_the_change_stays(director, client, caplog):
    def commit():
        raise OSError(errno.ENOSPC, "disk full")

    director.on_commit = commit
    client.add_service(ServiceSpec(KEY))
    assert "disk full" in caplog.text
    assert len(client.services()) == 1


# ------------------------------------------------- clients among themselves


def fill(director, services, servers):
    def work():
        for i in range(services):
            key = KEY._replace(port=i + 1)
            director.ipvs.services.add_service(ServiceSpec(key))
            for j in range(servers):
                director.ipvs.services.add_dest(key, DestSpec(2, packed(f"10.1.0.{j + 1}"), 80))

    director.do(work)


def test_a_client_that_does_not_read_stalls_nobody(director, client):
    fill(director, 2000, 0)
    with raw(director) as stuck:
        stuck.setblocking(False)
        with suppress(BlockingIOError):  # asks for listings until the server takes no more from it
            for seq in range(100_000):
                stuck.send(request(Cmd.GET_SERVICE, flags=0x305, seq=seq))
            pytest.fail("the server took everything")
        began = time.monotonic()
        for _ in range(20):
            assert client.info()
        assert time.monotonic() - began < server.STUCK_S / 2
        clients = director.server.clients
        wait_for(lambda: any(c._waits is server.Waits.ROOM for c in list(clients.values())), "it waits")
        (held,) = [c for c in director.server.clients.values() if c._waits is server.Waits.ROOM]
        assert len(held._out) <= server.BURST  # bounded, and its listings are not made yet
        # once it reads it gets them all
        stuck.settimeout(PATIENCE_S)
        found = 0
        while found < 2000:
            found += sum(m.type == IPVS_ID for m in netlink.messages(stuck.recv(1 << 20)))


def test_a_client_that_stays_stuck_is_let_go(director, monkeypatch, caplog):
    monkeypatch.setattr(server, "STUCK_S", 0.2)
    fill(director, 2000, 0)
    with raw(director) as stuck:
        with suppress(BrokenPipeError, ConnectionResetError):  # it may be let go while it asks
            for seq in range(20):
                stuck.send(request(Cmd.GET_SERVICE, flags=0x305, seq=seq))
        wait_for(lambda: "has read nothing" in caplog.text, "it is said")
        wait_for(lambda: not director.server.clients, "the client is gone")


def test_a_listing_while_the_table_changes(director, client):
    """Services and destinations that go while a listing is under way are left out, and nothing breaks."""
    fill(director, 2000, 1)
    listing = client.dump("IPVS", Cmd.GET_SERVICE)
    first = next(listing)
    with director.client() as other:
        other.flush()
    found = [first, *listing]
    assert 1 <= len(found) < 2000
    assert client.services() == []


def test_clients_that_vanish_in_mid_answer(director, client):
    fill(director, 2000, 0)
    for _ in range(20):
        with raw(director) as sock:
            sock.send(request(Cmd.GET_SERVICE, flags=0x305))
            sock.recv(1000)
    wait_for(lambda: len(director.server.clients) == 1, "the others are gone")
    assert client.info()


def test_many_clients_at_once(director):
    clients = [director.client() for _ in range(100)]
    for n, one in enumerate(clients):
        one.add_service(ServiceSpec(KEY._replace(port=n + 1)))
    assert {len(one.services()) for one in clients} == {100}
    for one in clients:
        one.close()


def test_more_clients_than_there_is_room_for(director, client, monkeypatch, caplog):
    monkeypatch.setattr(limits, "CLIENTS_MAX", 1)
    with raw(director) as sock:
        assert sock.recv(100) == b""
    assert "turned away" in caplog.text
    assert client.info()


def test_no_descriptor_left_for_a_client(director, client, monkeypatch, caplog):
    """Said once a second, and the loop rests meanwhile."""

    class Exhausted:
        def __init__(self, sock):
            self.fileno, self.close, self.accept, self.tries = sock.fileno, sock.close, self.refuse, 0

        def refuse(self):
            self.tries += 1
            raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(server, "ACCEPT_AGAIN_S", 0.2)
    listener = director.server._listener
    director.server._listener = exhausted = Exhausted(listener)
    began = time.monotonic()
    with raw(director) as sock:
        wait_for(lambda: exhausted.tries >= 2, "it is tried again")
        assert exhausted.tries <= 2 + (time.monotonic() - began) / 0.2
        director.server._listener = listener
        sock.send(request(Cmd.GET_INFO))
        assert sock.recv(65536)
    assert "Too many open files" in caplog.text


# ---------------------------------------------------------------- the path


def test_modes(tmp_path):
    it = Running(tmp_path / "made" / "run")
    it.start()
    try:
        assert stat.S_IMODE(os.stat(tmp_path / "made" / "run").st_mode) == 0o700
        assert stat.S_IMODE(os.stat(it.path).st_mode) == 0o600
    finally:
        it.stop()
    assert not os.path.exists(it.path)


def test_the_socket_of_a_dead_director_is_replaced(tmp_path):
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    dead.bind(str(tmp_path / "control.sock"))
    dead.listen()
    dead.close()
    with running(tmp_path) as it, it.client() as client:
        assert client.info()


def test_a_live_director_is_not_replaced(director, client):
    with pytest.raises(server.SocketInUse, match=f"another director listens on {director.path}"):
        server.listen(director.path)
    assert client.info()


def test_another_s_socket_is_left_alone_at_the_end(tmp_path):
    with running(tmp_path) as it:
        os.unlink(it.path)
        other = server.listen(it.path)
    assert os.path.exists(it.path)
    other.close()


def test_a_file_in_the_way_is_kept(tmp_path):
    path = tmp_path / "control.sock"
    path.write_text("mine")
    with pytest.raises(OSError, match="is no socket"):
        server.listen(str(path))
    assert path.read_text() == "mine"


def test_a_path_that_no_socket_can_have(tmp_path):
    """Nothing is made for it."""
    path = tmp_path / "made" / ("x" * 108)
    with pytest.raises(OSError, match="a socket's path has at most 107 bytes: choose another"):
        server.listen(str(path))
    assert not path.parent.exists()


def test_a_directory_that_others_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="chmod"):
        server.listen(str(tmp_path / "control.sock"))


PEER = """
import os, socket, sys
os.chdir(sys.argv[1])  # while its directories may still be entered
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect("control.sock")
s.send(bytes.fromhex(sys.argv[3]))
s.settimeout(15)
print(int.from_bytes(s.recv(1000)[16:20], sys.byteorder, signed=True))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="to become somebody else takes root")
@pytest.mark.parametrize(("uid", "answer"), [(0, 0), (65533, -errno.EPERM)])
def test_the_peer_s_user_is_asked(director, tmp_path, uid, answer):
    """Even where the mode of the socket lets somebody else connect, only root and the own user may act."""
    os.chmod(director.path, 0o777)
    os.chmod(tmp_path, 0o755)
    ran = subprocess.run(
        [sys.executable, "-S", "-c", PEER, str(tmp_path), str(uid), request(Cmd.FLUSH).hex()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.stdout.strip() == str(answer), ran.stderr


def test_a_socketpair_can_be_adopted(director):
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    director.do(lambda: director.server.adopt(theirs))
    ours.settimeout(PATIENCE_S)
    ours.send(request(Cmd.GET_INFO))
    assert next(netlink.messages(ours.recv(1000))).body[0] == Cmd.SET_INFO
    ours.close()


def test_the_client_hears_of_the_end(tmp_path):
    with running(tmp_path) as it:
        client = Client(it.path)
        assert client.info()
    with pytest.raises(OSError, match="gone away"):
        client.info()
    client.close()


def test_handed_over_while_a_client_goes_on_asking(director):
    """What is under way is committed; what comes after that need not be waited for."""
    ports = itertools.count(1)
    with raw(director) as sock:
        sock.setblocking(False)

        def ask():
            key = ServiceKey(2, 6, packed("10.0.0.1"), next(ports))
            sock.send(request(Cmd.NEW_SERVICE, messages.service(ServiceSpec(key, "rr"))))

        async def more_comes():
            with suppress(BlockingIOError):
                while sock.recv(65536):
                    pass
            ask()
            await asyncio.sleep(0.01)

        director.on_commit = more_comes
        ask()
        wait_for(lambda: director.commits > 3, "commits")
        leaving = asyncio.run_coroutine_threadsafe(director.server.hand_over(), director._loop)
        wait_for(leaving.done, "the end of commits")
        os.close(leaving.result())
        director.server._listener = None
