"""The client never hangs, and says what is wrong."""

import errno
import os
import socket

import pytest

from uvs.control import messages
from uvs.control.client import Client, Unreachable
from uvs.control.messages import Cmd
from uvs.control.paths import default_socket
from uvs.ipvs.spec import ServiceKey, ServiceSpec


@pytest.mark.parametrize(
    ("environment", "uid", "path"),
    [
        ({"UVS_SOCKET": "/x/y.sock"}, 1000, "/x/y.sock"),
        ({}, 0, "/run/uvs/control.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/0"}, 0, "/run/uvs/control.sock"),
        ({"XDG_RUNTIME_DIR": "/run/user/1000"}, 1000, "/run/user/1000/uvs/control.sock"),
        ({}, 1000, "/tmp/uvs-1000/control.sock"),
    ],
)
def test_the_default_path(monkeypatch, environment, uid, path):
    for name in ("UVS_SOCKET", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert default_socket() == path


def test_a_path_that_no_socket_can_have():
    with pytest.raises(Unreachable) as raised:
        Client("/" + "x" * 107)
    assert raised.value.strerror.endswith(
        ": a socket's path has at most 107 bytes: choose another (--socket, UVS_SOCKET)"
    )


def listener(path, backlog=8):
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(path)
    sock.listen(backlog)
    return sock


def test_nobody_listens(tmp_path):
    with pytest.raises(Unreachable, match="start one with `uvs run`"):
        Client(str(tmp_path / "control.sock"))
    listener(str(tmp_path / "control.sock")).close()
    with pytest.raises(Unreachable, match="start one with `uvs run`"):
        Client(str(tmp_path / "control.sock"))


def test_a_frozen_director_that_accepts_no_more(tmp_path):
    path = str(tmp_path / "control.sock")
    frozen = listener(path, 0)
    fills_the_backlog = Client(path, 0.2)
    with fills_the_backlog, pytest.raises(Unreachable, match="does not answer"):
        Client(path, 0.2)
    frozen.close()


def test_a_frozen_director_that_does_not_answer(tmp_path):
    path = str(tmp_path / "control.sock")
    frozen = listener(path)
    with Client(path, 0.2) as client, pytest.raises(Unreachable, match="does not answer"):
        client.info()
    frozen.close()


def test_a_director_that_hangs_up(tmp_path):
    path = str(tmp_path / "control.sock")
    sock = listener(path)
    with Client(path, 15) as client:
        sock.accept()[0].close()
        with pytest.raises(Unreachable, match="gone away"):
            client.info()
    sock.close()


def test_a_file_is_no_director(tmp_path):
    (tmp_path / "control.sock").write_text("")
    with pytest.raises(Unreachable):
        Client(str(tmp_path / "control.sock"))


def test_a_listing_left_half_read_does_not_mix_with_the_next_answer(director):
    from uvs.control.messages import Cmd
    from uvs.ipvs.spec import ServiceKey, ServiceSpec

    with director.client() as client:
        for port in range(1, 500):
            director.do(
                lambda p=port: director.ipvs.services.add_service(
                    ServiceSpec(ServiceKey(2, 6, b"\1\2\3\4", p))
                )
            )
        next(client.dump("IPVS", Cmd.GET_SERVICE))
        assert client.info() == (0x010201, 4096)


def test_a_batch_larger_than_the_sockets_hold(director):
    keys = [ServiceKey(socket.AF_INET, 6, i.to_bytes(4, "big"), 80) for i in range(1, 3001)]
    refused = []
    with director.client() as client:
        requests = [(Cmd.NEW_SERVICE, messages.service(ServiceSpec(key))) for key in keys]
        requests.insert(1500, requests[0])
        client.batch(requests, lambda number, error: refused.append((number, error.errno)))
        assert refused == [(1500, errno.EEXIST)]
        assert {entry.spec.key for entry in client.services()} == set(keys)
        assert [len(dests) for dests in client.all_dests(keys)] == [0] * len(keys)
