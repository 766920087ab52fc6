"""The control socket: Unix SEQPACKET, many clients, none of which can hold up the packet loop or another.

Clients have their turns (limits.py); what follows from a client's requests is done once for all that wait.
What it has not read yet bounds what it may ask: while its answers wait, no more is read from it, and dumps
are made datagram by datagram as it reads them.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import fcntl
import logging
import os
import socket
import stat
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping

from uvs.control.commits import Commits
from uvs.control.credentials import Access, Peer, peer
from uvs.control.genetlink import PAUSE, Answer, Dispatcher, Op, log
from uvs.control.ipvs_family import IpvsFamily
from uvs.control.limits import Places, Seldom, Turns, room
from uvs.control.paths import check_socket, private_directory, usual_socket
from uvs.control.uvs_family import UvsFamily
from uvs.ipvs.skb import NetnsIpvs

MESSAGE_MAX = 65536  # a longer request is refused by closing the connection
BURST = 64  # datagrams taken from one client, or clients accepted, in one turn
GATHER_S = 0.1  # for so long the changes of a client that goes on asking become one commit
OWED_MAX = 4096  # answers that wait for a commit, at most
OWED_BYTES = 1 << 20  # and so much of them: a refusal repeats the whole request
DATAGRAMS_PER_TURN = 4  # of a dump, before the loop goes round
SENDS_PER_TURN = 256  # of anything
STUCK_S = 60.0  # a client that reads nothing of what waits for it for so long is let go
ACCEPT_AGAIN_S = 1.0  # after there was no descriptor left for a client


class SocketInUse(OSError):
    """Another director listens there."""


class Waits(enum.Enum):
    """What a client waits for, one thing at a time; answers that a commit holds back hinder no request."""

    REQUESTS = enum.auto()
    ROOM = enum.auto()  # in the socket, or its next turn to send
    COMMIT = enum.auto()  # so many answers wait for one that no more is taken


class Client:
    """One connection."""

    def __init__(self, server: Server, sock: socket.socket, who: Peer, admin: bool) -> None:
        self.server, self.sock, self.who, self.admin = server, sock, who, admin
        self.fd = sock.fileno()
        self._out: deque[Answer | int] = deque()  # a number: what follows waits for that commit
        self._owed = 0  # bytes in it
        self._commit = 0  # the last such number
        self._answers: list[Answer] = []  # of the request that is being handled
        self._work: Iterator[bool] = iter(())  # what is left of the datagram that was taken last
        self._pending: bytes | None = None  # a datagram the socket had no room for
        self._waits = Waits.REQUESTS
        self._changed: float | None = None  # since when there are changes that no commit was asked for
        self._stuck: asyncio.TimerHandle | None = None
        server.loop.add_reader(self.fd, server.turns.ask, self)

    @property
    def _asks(self) -> bool:
        """Is it to be read from?"""
        return self._waits is Waits.REQUESTS and not self._gone and not self.server.leaving

    @property
    def _gone(self) -> bool:
        return self.server.clients.get(self.fd) is not self

    def close(self) -> None:
        """Forget it."""
        if self._gone:
            return
        del self.server.clients[self.fd]
        self.server.uvs.gone(self)
        self.server.places.leave(self.who.uid, self.server.access.favours(self.who))
        self.server.turns.forget(self)
        self.server.held.discard(self)
        self._calm()
        self.server.loop.remove_reader(self.fd)
        self.server.loop.remove_writer(self.fd)
        self._out.clear()
        self.sock.close()

    def turn(self, end: float) -> None:
        """Send what waits, or take requests until `end`."""
        if self._asks:
            self._read(end)
            return
        self._write()
        if self._asks:
            self.server.turns.wait(self)  # it may have asked for more long ago

    def _read(self, end: float) -> None:
        """Take requests; when no more wait, or some have waited for long: commit, then answer."""
        closed = drained = False
        for taken in range(BURST):
            if not self._handle(end) or self._too_much or (taken and time.monotonic() >= end):
                break
            try:
                datagram, _, flags, _ = self.sock.recvmsg(MESSAGE_MAX)
            except BlockingIOError:
                drained = True
                break
            except OSError:
                closed = True
                break
            if not datagram or flags & socket.MSG_TRUNC:
                closed = True
                break
            self._work = self.server.dispatcher.answer(datagram, self.admin, self._answers, self)
        self.server.handled()
        if self._changed is not None:
            long = time.monotonic() - self._changed > GATHER_S
            if drained or closed or long or self._too_much:
                self._commit_changes()
        if closed:
            self.close()
            return
        self._write()
        if self._asks and not drained:
            self.server.turns.wait(self)

    def _commit_changes(self) -> None:
        if self._changed is not None:
            self._changed = None
            self.server.commits.start()

    @property
    def _too_much(self) -> bool:
        return len(self._out) > OWED_MAX or self._owed > OWED_BYTES

    def _handle(self, end: float) -> bool:
        """Answer the messages of the datagram until `end`, one at least; are all of them answered?"""
        for changed in self._work:
            if changed:
                if self._commit != self.server.commits.next:
                    self._commit = self.server.commits.next
                    self._out.append(self._commit)
                if self._changed is None:
                    self._changed = time.monotonic()
            self._put()
            if time.monotonic() >= end:
                return False
        self._put()  # of messages that were no requests
        return True

    def _put(self) -> None:
        self._out.extend(self._answers)
        self._owed += sum(len(answer) for answer in self._answers if isinstance(answer, bytes))
        self._answers.clear()

    def _next(self) -> bytes | None:
        """The datagram to send next."""
        while self._out:
            head = self._out[0]
            if isinstance(head, bytes):
                self._owed -= len(head)
                return self._out.popleft()  # type: ignore[return-value]
            if isinstance(head, int):
                if not self.server.commits.covers(head):
                    return None
            elif (datagram := next(head, None)) is not None:
                return datagram
            self._out.popleft()
        return None

    def _write(self) -> None:
        """Send what waits, until the socket is full, others are due, or a commit has not ended yet."""
        dumped = sent = 0
        while dumped < DATAGRAMS_PER_TURN and sent < SENDS_PER_TURN:
            datagram = self._pending or self._next()
            if datagram is None:
                self._calm()
                if self._out:
                    self.server.held.add(self)
                self._wait_for(Waits.COMMIT if self._too_much else Waits.REQUESTS)
                return
            if datagram == PAUSE:
                self._wait_for(Waits.ROOM)
                return
            try:
                self.sock.send(datagram, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                self._pending = datagram
                break
            except OSError:
                self._commit_changes()  # it is gone, they are in force
                self.close()
                return
            self._pending = None
            self._calm()
            sent += 1
            dumped += bool(self._out) and not isinstance(self._out[0], bytes | int)
        if self._stuck is None:
            self._stuck = self.server.loop.call_later(STUCK_S, self._give_up)
        self._wait_for(Waits.ROOM)

    def _calm(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None

    def _give_up(self) -> None:
        log.warning("a control client has read nothing for %.0f s: closed", STUCK_S)
        self._commit_changes()
        self.close()

    def _wait_for(self, what: Waits) -> None:
        if what is self._waits:
            return
        self._waits = what
        loop = self.server.loop
        loop.remove_reader(self.fd)
        loop.remove_writer(self.fd)
        if what is Waits.REQUESTS:
            loop.add_reader(self.fd, self.server.turns.ask, self)
        elif what is Waits.ROOM:
            loop.add_writer(self.fd, self.server.turns.ask, self)


class Server:
    """Listens for control clients of one director.

    `commit` is awaited after every burst of requests that changed something, before they are
    acknowledged. `handled` is called after every burst, before any of it is answered. `more` are commands
    of the family UVS that others do (`layer_ops`).
    """

    def __init__(
        self,
        ipvs: NetnsIpvs,
        path: str,
        commit: Callable[[], Awaitable[None]],
        access: Access | None = None,
        handled: Callable[[], None] = lambda: None,
        more: Mapping[int, Op] | None = None,
    ) -> None:
        self.path, self.handled = path, handled
        self.access = access or Access()
        self.commits = Commits(commit, self._committed)
        self.held: set[Client] = set()  # whose answers wait for a commit
        self.leaving = False  # no request is taken any more: commit would follow commit
        self.uvs = UvsFamily(ipvs, more, lambda: self.dispatcher.asking)
        self.dispatcher = Dispatcher([IpvsFamily(ipvs.services, ipvs.table).family(), self.uvs.family()])
        self.clients: dict[int, Client] = {}
        self.places = Places(room())
        self.turns: Turns
        self.loop: asyncio.AbstractEventLoop
        self._refusals, self._turned_away = Seldom(), Seldom()
        self._listener: socket.socket | None = None
        self._inode = 0
        self._pause: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop, listener: int = -1) -> None:
        """Listen. SocketInUse: another director does; OSError: the path cannot be used.

        `listener`: a descriptor of a socket that listens there already.
        """
        self.loop = loop
        self.turns = Turns(loop)
        if listener >= 0 and not os.path.exists(self.path):  # somebody has cleared it away
            os.close(listener)
            listener = -1
        self._listener = listen(self.path, self.access) if listener < 0 else socket.socket(fileno=listener)
        self._inode = os.stat(self.path).st_ino
        self._listen()

    def close(self) -> None:
        """Stop listening, close all clients, remove the socket."""
        for client in list(self.clients.values()):
            client.close()
        if self._pause is not None:
            self._pause.cancel()
        if self._listener is not None:
            self.loop.remove_reader(self._listener.fileno())
            self._listener.close()
            self._listener = None
            with contextlib.suppress(OSError):
                if os.stat(self.path).st_ino == self._inode:
                    os.unlink(self.path)

    async def hand_over(self) -> int:
        """Let all clients go, once their changes are committed; the listening descriptor, for another."""
        assert self._listener is not None
        self.loop.remove_reader(self._listener.fileno())
        self.leaving = True
        await self.commits.ended()
        for client in list(self.clients.values()):
            client.close()
        return self._listener.detach()

    def _committed(self) -> None:
        held, self.held = self.held, set()
        for client in held:
            if self.clients.get(client.fd) is client:
                self.turns.wait(client)

    def adopt(self, sock: socket.socket) -> None:
        """Serve a connected socket, or close it if there are too many."""
        sock.setblocking(False)
        who = peer(sock)
        if not self.places.take(who.uid, self.access.favours(who)):
            self._turned_away.warn(f"{len(self.clients)} control clients: one of {who} was turned away")
            sock.close()
            return
        admin = self.access.allows(who)
        if not admin:
            self._refusals.warn(f"{who} may not control this director: its requests are refused")
        client = Client(self, sock, who, admin)
        self.clients[client.fd] = client

    def _listen(self) -> None:
        assert self._listener is not None
        self.loop.add_reader(self._listener.fileno(), self._accept)

    def _accept(self) -> None:
        assert self._listener is not None
        for _ in range(BURST):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as e:
                if e.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                    log.warning("no control client can be accepted: %s", e.strerror)
                    self.loop.remove_reader(self._listener.fileno())  # it stays readable: not again at once
                    self._pause = self.loop.call_later(ACCEPT_AGAIN_S, self._listen)
                return
            self.adopt(sock)


def listen(path: str, access: Access | None = None) -> socket.socket:
    """A listening socket at `path`, mode 0600 unless `access` says more; a dead director's is replaced.

    SocketInUse if another director listens; OSError with a text that says what to do.
    """
    check_socket(path)
    directory = os.path.dirname(path) or "."
    made = private_directory(directory, "--socket", sticky=True)
    lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two directors that start at once must not unlink each other's
        _clear(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        umask = os.umask(0o177)
        try:
            listener.bind(path)
            if access is not None:
                access.open(path)
                ours = made or directory == os.path.dirname(usual_socket())
                if advice := access.open_directory(directory, ours):
                    log.warning("%s", advice)
            listener.listen(128)
        except OSError as e:
            listener.close()
            raise OSError(e.errno, f"cannot listen on {path}: {e.strerror or e}") from None
        finally:
            os.umask(umask)
        listener.setblocking(False)
        return listener
    finally:
        os.close(lock)


def _clear(path: str) -> None:
    """Remove the socket of a dead director."""
    probe = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        probe.setblocking(False)
        probe.connect(path)
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise FileExistsError(
                errno.EEXIST, f"{path} is no socket: move it away, or name another with --socket"
            ) from None
        logging.getLogger("uvs.control").info("replacing the socket of a dead director: %s", path)
        os.unlink(path)
        return
    except BlockingIOError:
        pass  # its backlog is full: it lives, if it moves or not
    except OSError as e:
        raise OSError(e.errno, f"{path} is in the way: {e.strerror}; remove it or set --socket") from None
    finally:
        probe.close()
    raise SocketInUse(
        errno.EADDRINUSE, f"another director listens on {path}: stop it, or give this one --socket"
    )
