"""Who may control the director: the rule, the peer as the kernel tells it, the modes of socket and directory."""

import errno
import os
import socket
import stat
import subprocess
import sys

import pytest
from support.control import running

from uvs.control import credentials, netlink, server
from uvs.control.credentials import Access, Peer
from uvs.control.genetlink import IPVS_ID
from uvs.control.messages import Cmd

ME = os.geteuid()


@pytest.mark.parametrize(
    ("shows", "rule", "uid", "gid", "groups", "may"),
    [
        ("root", Access(), 0, 0, (), True),
        ("root in whatever group", Access(), 0, 7, (), True),
        ("the own user", Access(), ME, 7, (), True),
        ("somebody", Access(), 1001, 1001, (1001,), False),
        ("somebody in root's group", Access(), 1001, 0, (0,), False),
        ("the user", Access(user=1001), 1001, 1001, (), True),
        ("another user", Access(user=1001), 1002, 1001, (1001,), False),
        ("the group is the process's own", Access(group=50), 1001, 50, (), True),
        ("the group is among the others", Access(group=50), 1001, 1001, (4, 50, 60), True),
        ("another group", Access(group=50), 1001, 51, (4, 60), False),
        ("the group is no user", Access(group=1001), 1001, 50, (), False),
        ("user and group: either will do", Access(1001, 50), 1002, 50, (), True),
        ("user and group: neither", Access(1001, 50), 1002, 51, (52,), False),
    ],
)
def test_the_rule(shows, rule, uid, gid, groups, may):
    assert rule.allows(Peer(1, uid, gid, frozenset(groups))) is may


def test_the_peer_of_a_socket():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        found = credentials.peer(ours)
        assert (found.pid, found.uid, found.gid) == (os.getpid(), ME, os.getegid())
        assert found.groups == set(os.getgroups())


@pytest.mark.parametrize(
    ("user", "group", "what"),
    [
        ("no-such-user", None, "--control-user: there is no user 'no-such-user'"),
        (None, "no-such-group", "--control-group: there is no group 'no-such-group'"),
        (None, "65534", "'65534' is everybody whom a user namespace does not know"),
        (None, "", "there is no group ''"),
        ("-1", None, "there is no user '-1'"),
        ("4294967295", None, "no such number: 4294967295"),
    ],
)
def test_who_there_is_not(user, group, what):
    with pytest.raises(ValueError, match=what):
        credentials.access(user, group)


def test_by_name_and_by_number():
    assert credentials.access("root", "root") == Access(0, 0)
    assert credentials.access("12", "34") == Access(12, 34)
    assert credentials.access(None, None) == Access()


as_root = pytest.mark.skipif(ME != 0, reason="to become somebody else takes root")

PEER = """
import os, socket, sys
os.chdir(sys.argv[1])
os.setgroups([int(n) for n in sys.argv[4].split(",") if n])
os.setgid(int(sys.argv[3]))
os.setuid(int(sys.argv[2]))
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
try:
    s.connect("control.sock")
except OSError as e:
    sys.exit(f"connect: {e.strerror}")
s.send(bytes.fromhex(sys.argv[5]))
s.settimeout(15)
print(int.from_bytes(s.recv(1000)[16:20], sys.byteorder, signed=True))
"""
FLUSH = netlink.message(IPVS_ID, 5, 1, 0, Cmd.FLUSH, b"")


def act(directory, uid, gid, groups=()):
    """What somebody hears who asks for a flush: the errno, or why there is no connection."""
    words = (str(directory), str(uid), str(gid), ",".join(map(str, groups)), FLUSH.hex())
    command = [sys.executable, "-S", "-c", PEER, *words]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return (ran.stdout or ran.stderr).strip()


@as_root
@pytest.mark.parametrize(
    ("shows", "rule", "uid", "gid", "groups", "heard"),
    [
        ("a member", Access(group=4242), 1001, 1001, (7, 4242), "0"),
        ("one whose own group it is", Access(group=4242), 1001, 4242, (), "0"),
        ("one of sixty groups more", Access(group=4242), 1001, 1001, (*range(5000, 5100), 4242), "0"),
        ("no member", Access(group=4242), 1001, 1001, (7,), "connect: Permission denied"),
        ("the user", Access(user=1001), 1001, 1001, (), "0"),
        ("not the user", Access(user=1001), 1002, 1001, (), "connect: Permission denied"),
        ("nobody else", Access(), 1001, 0, (0,), "connect: Permission denied"),
    ],
)
def test_who_comes_through_the_socket(tmp_path, shows, rule, uid, gid, groups, heard):
    with running(tmp_path, rule):
        os.chmod(tmp_path, 0o755)
        assert act(tmp_path, uid, gid, groups) == heard


@as_root
def test_who_gets_past_the_mode_is_refused_by_the_protocol(tmp_path, caplog):
    """EPERM for every request, one line for all of them."""
    with running(tmp_path, Access(group=4242)) as it:
        os.chmod(tmp_path, 0o755)
        os.chmod(it.path, 0o777)
        assert [act(tmp_path, 1001, 1001, (7,)) for _ in range(3)] == [str(-errno.EPERM)] * 3
        assert act(tmp_path, 1001, 1001, (4242,)) == "0"
    said = [text for r in caplog.records if (text := r.getMessage()).startswith("user ")]
    assert len(said) == 1
    assert said[0].startswith("user 1001, group 1001 (process ")
    assert said[0].endswith("may not control this director: its requests are refused")


@as_root
@pytest.mark.parametrize(
    ("rule", "mode", "owner"),
    [
        (Access(), 0o600, (0, 0)),
        (Access(group=4242), 0o660, (0, 4242)),
        (Access(user=1001), 0o600, (1001, 0)),
        (Access(1001, 4242), 0o660, (1001, 4242)),
    ],
)
def test_modes_of_socket_and_directory(tmp_path, rule, mode, owner):
    """A directory that the director makes lets through whom the socket lets in."""
    with running(tmp_path / "made", rule) as it:
        found = os.stat(it.path)
        assert (stat.S_IMODE(found.st_mode), (found.st_uid, found.st_gid)) == (mode, owner)
        assert stat.S_IMODE(os.stat(tmp_path / "made").st_mode) == (0o700 if rule == Access() else 0o711)


def test_the_directory_that_uvs_socket_names_is_not_changed(tmp_path, monkeypatch, caplog):
    """Somebody's home, for instance. /run/uvs is uvs's own, whoever made it."""
    os.chmod(tmp_path, 0o700)
    path = str(tmp_path / "control.sock")
    monkeypatch.setenv("UVS_SOCKET", path)
    server.listen(path, Access(group=os.getegid())).close()
    assert stat.S_IMODE(os.stat(tmp_path).st_mode) == 0o700
    assert f"chmod a+x {tmp_path}" in caplog.text
    monkeypatch.setattr(server, "usual_socket", lambda: path)
    os.unlink(path)
    server.listen(path, Access(group=os.getegid())).close()
    assert stat.S_IMODE(os.stat(tmp_path).st_mode) == 0o711


def test_a_directory_of_somebody_s_is_not_changed(tmp_path):
    os.chmod(tmp_path, 0o700)
    rule = Access(group=os.getegid())
    assert f"chmod a+x {tmp_path}" in rule.open_directory(str(tmp_path), ours=False)
    assert stat.S_IMODE(os.stat(tmp_path).st_mode) == 0o700
    os.chmod(tmp_path, 0o711)
    assert rule.open_directory(str(tmp_path), ours=False) == ""


def test_a_socket_that_cannot_be_given_away(tmp_path, monkeypatch):
    def refuse(path, uid, gid):
        raise PermissionError(errno.EPERM, "Operation not permitted", path)

    path = tmp_path / "control.sock"
    path.touch(0o600)
    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(PermissionError, match=f"{path} cannot be given to --control-user or --control-group"):
        Access(group=4242).open(str(path))
