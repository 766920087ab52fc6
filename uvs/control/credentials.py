"""Who may control the director: root, its own user, and the user and group that `uvs run` was given."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import socket
import stat
import struct
from dataclasses import dataclass
from typing import NamedTuple

SO_PEERGROUPS = 59  # asm-generic/socket.h
NGROUPS_MAX = 65536
_UCRED = struct.Struct("=iII")
_OVERFLOW = 65534  # who this user namespace does not know looks like this (kernel.overflowuid, overflowgid)


class Peer(NamedTuple):
    """The process at the other end when it connected, as this user namespace sees it."""

    pid: int
    uid: int
    gid: int
    groups: frozenset[int]  # supplementary

    def __str__(self) -> str:
        return f"user {self.uid}, group {self.gid} (process {self.pid})"


def peer(sock: socket.socket) -> Peer:
    """Who is connected: SO_PEERCRED, SO_PEERGROUPS."""
    pid, uid, gid = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    size = 64
    while True:
        try:
            found = sock.getsockopt(socket.SOL_SOCKET, SO_PEERGROUPS, 4 * size)
            break
        except OSError as e:
            if e.errno != errno.ERANGE or size > NGROUPS_MAX:
                found = b""  # of a socket pair, or an old kernel: the group itself must do
                break
            size *= 4
    return Peer(pid, uid, gid, frozenset(n for (n,) in struct.iter_unpack("=I", found)))


@dataclass(frozen=True, slots=True)
class Access:
    """The rule. `user`, `group`: ids besides root and the director's own user; None: nobody else."""

    user: int | None = None
    group: int | None = None

    def favours(self, who: Peer) -> bool:
        """root or this process's own user; the kernel asks for CAP_NET_ADMIN in the network's namespace."""
        return who.uid in (0, os.geteuid())

    def allows(self, who: Peer) -> bool:
        """May `who` use the families IPVS and UVS?"""
        if self.favours(who) or (self.user is not None and who.uid == self.user):
            return True
        return self.group is not None and (who.gid == self.group or self.group in who.groups)

    def open(self, path: str) -> None:
        """Let the user and the group connect to the socket at `path`. OSError: says why not."""
        if self.user is None and self.group is None:
            return
        try:
            os.chown(path, -1 if self.user is None else self.user, -1 if self.group is None else self.group)
            os.chmod(path, 0o600 if self.group is None else 0o660)
        except OSError as e:
            raise OSError(
                e.errno, f"{path} cannot be given to --control-user or --control-group: {e.strerror}"
            ) from None

    def open_directory(self, path: str, ours: bool) -> str:
        """Let them through the socket's directory, if it is `ours` to change.

        What else lies in it has modes of its own. Returns what to do if they cannot pass, else nothing.
        """
        mode = stat.S_IMODE(os.stat(path).st_mode)
        if (self.user is None and self.group is None) or mode & stat.S_IXOTH:
            return ""
        if ours:
            os.chmod(path, mode | 0o011)
            return ""
        return f"{path} lets only its owner through: chmod a+x {path}, or name another place with --socket"


def access(user: str | None, group: str | None) -> Access:
    """The rule for a user and a group by name or number; ValueError: says which there is not."""
    return Access(_id("user", user), _id("group", group))


def _id(kind: str, name: str | None) -> int | None:
    if name is None:
        return None
    try:
        number = int(name) if name.isascii() and name.isdigit() else _by_name(kind, name)
    except KeyError:
        raise ValueError(f"--control-{kind}: there is no {kind} {name!r}") from None
    if number == _OVERFLOW:
        raise ValueError(
            f"--control-{kind}: {name!r} is everybody whom a user namespace does not know: name another"
        )
    if number >= 0xFFFF_FFFF:
        raise ValueError(f"--control-{kind}: no such number: {name}")
    return number


def _by_name(kind: str, name: str) -> int:
    return pwd.getpwnam(name).pw_uid if kind == "user" else grp.getgrnam(name).gr_gid
