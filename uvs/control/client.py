"""A synchronous client of the control socket: for `uvsadm`, `uvs sysctl`, the lab.

Light to import (no engine, no asyncio). Nothing waits longer than `timeout` seconds for a director that
is stopped, frozen or gone.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from uvs.control import extension, messages, netlink
from uvs.control.connect import Unreachable as Unreachable
from uvs.control.connect import connect
from uvs.control.connfilter import ConnFilter
from uvs.control.messages import Attr, Cmd, DestEntry, ServiceEntry, Stats
from uvs.control.netlink import NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, Attrs
from uvs.control.paths import default_socket
from uvs.ipvs.spec import DestSpec, IpvsError, QueueRow, ServiceKey, ServiceSpec

if TYPE_CHECKING:
    from uvs.layers import Health, ServerId

GENL_ID_CTRL, CTRL_CMD_GETFAMILY, CTRL_ATTR_FAMILY_ID, CTRL_ATTR_FAMILY_NAME = 0x10, 3, 1, 2
DATAGRAM_MAX = 1 << 20
EVERY = ConnFilter()
PACKED_MIN = 3500  # bytes of a batch's requests in a datagram: with the kernel's own a page
WINDOW = 24  # such datagrams under way
DUMPS = 50  # listings asked for at once


class Timeouts(NamedTuple):
    """Seconds, as `ipvsadm --set` has them."""

    tcp: int
    tcp_fin: int
    udp: int


class About(NamedTuple):
    """A director's version, and when it began to serve, in seconds since 1970; of an older one: nothing."""

    version: str
    started: int


class TraceCounts(NamedTuple):
    """Packets that a trace's filter took; of them, those that are not shown."""

    matched: int
    suppressed: int


# A change may wait in the director for a firewall's programs and for the lock that they share.
TIMEOUT_S = 20.0


class Client:
    """One connection to a director."""

    def __init__(self, path: str | None = None, timeout: float = TIMEOUT_S) -> None:
        """Connect. Unreachable: nobody listens at `path` (None: the default), or not for us."""
        self.path = path or default_socket()
        self.timeout = timeout
        self._seq = 0
        self._families: dict[str, int] = {}
        self._sock = connect(self.path, timeout)

    def close(self) -> None:
        """Hang up."""
        self._sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- requests

    def request(self, family: str, command: int, payload: bytes = b"") -> list[Attrs]:
        """Send a request and wait for its acknowledgement. IpvsError: refused; Unreachable."""
        self._send(family, command, payload, NLM_F_REQUEST | NLM_F_ACK)
        return [netlink.attributes(body, netlink.GENL_SIZE) for body in self._answers()]

    def dump(self, family: str, command: int, payload: bytes = b"") -> Iterator[bytes]:
        """The attributes of each message of a listing, undecoded."""
        self._send(family, command, payload, NLM_F_REQUEST | NLM_F_DUMP)
        for body in self._answers():
            yield body[netlink.GENL_SIZE :]

    def batch(self, requests: Iterable[tuple[int, bytes]], failed: Callable[[int, IpvsError], None]) -> None:
        """Send many IPVS requests without waiting for each; `failed` gets the number of a refused one."""
        family = self._family(messages.FAMILY_NAME)
        first = settled = self._seq + 1
        flags = NLM_F_REQUEST | NLM_F_ACK
        datagram, ends = b"", deque[int]()  # what is not sent yet; the last request of each that is

        def send() -> None:
            """Without waiting while answers are owed to us: until we read them the director reads nothing."""
            nonlocal datagram, settled
            while ends and (len(ends) == WINDOW or not self._try_send(datagram)):
                settled = self._settle(settled, ends.popleft(), first, failed)
            if not ends:
                self._transmit(datagram)
            ends.append(self._seq)
            datagram = b""

        for command, payload in requests:
            self._seq += 1
            datagram += netlink.message(family, flags, self._seq, 0, command, payload)
            if len(datagram) >= PACKED_MIN:
                send()
        if datagram:
            send()
        self._settle(settled, self._seq, first, failed)

    def _settle(self, start: int, end: int, first: int, failed: Callable[[int, IpvsError], None]) -> int:
        """Take the acknowledgements of requests `start` to `end`; returns the next one's number."""
        while start <= end:
            datagram = self._datagram()
            if netlink.is_ack(datagram, start):  # most are
                start += 1
                continue
            for message in netlink.messages(datagram):
                if message.seq == start and message.type == netlink.NLMSG_ERROR:
                    if message.errno:
                        failed(start - first, IpvsError(message.errno, os.strerror(message.errno)))
                    start += 1
        return start

    def dumps(self, family: str, command: int, payloads: list[bytes]) -> Iterator[list[bytes]]:
        """What `dump` gives, for many payloads, asked for ahead: a list for each."""
        number = self._family(family)
        flags = NLM_F_REQUEST | NLM_F_DUMP
        for at in range(0, len(payloads), DUMPS):
            datagram, first = b"", self._seq + 1
            for payload in payloads[at : at + DUMPS]:
                self._seq += 1
                datagram += netlink.message(number, flags, self._seq, 0, command, payload)
            self._transmit(datagram)
            for seq in range(first, self._seq + 1):
                yield [body[netlink.GENL_SIZE :] for body in self._answers(seq)]

    def _family(self, name: str) -> int:
        if name not in self._families:
            self._seq += 1
            self._transmit(
                netlink.message(
                    GENL_ID_CTRL,
                    NLM_F_REQUEST | NLM_F_ACK,
                    self._seq,
                    0,
                    CTRL_CMD_GETFAMILY,
                    netlink.string(CTRL_ATTR_FAMILY_NAME, name),
                )
            )
            (body,) = list(self._answers())
            attrs = netlink.attributes(body, netlink.GENL_SIZE)
            self._families[name] = messages.number(attrs, CTRL_ATTR_FAMILY_ID, 2)
        return self._families[name]

    def _send(self, family: str, command: int, payload: bytes, flags: int) -> None:
        number = self._family(family)
        self._seq += 1
        self._transmit(netlink.message(number, flags, self._seq, 0, command, payload))

    def _transmit(self, datagram: bytes) -> None:
        try:
            self._sock.send(datagram, socket.MSG_NOSIGNAL)
        except OSError as e:
            raise self._lost(e) from None

    def _try_send(self, datagram: bytes) -> bool:
        """Send it, unless there is no room."""
        self._sock.settimeout(0)  # with a time-out, send() itself waits for room
        try:
            self._sock.send(datagram, socket.MSG_NOSIGNAL)
        except BlockingIOError:
            return False
        except OSError as e:
            raise self._lost(e) from None
        finally:
            self._sock.settimeout(self.timeout)
        return True

    def _answers(self, seq: int | None = None) -> Iterator[bytes]:
        """Bodies of the answers to request `seq` (the last), up to its ACK or DONE."""
        seq = self._seq if seq is None else seq
        while True:
            for message in self._receive():
                if message.seq != seq:
                    continue
                if message.type == netlink.NLMSG_ERROR:
                    if message.errno:
                        raise IpvsError(message.errno, os.strerror(message.errno))
                    return
                if message.type == netlink.NLMSG_DONE:
                    return
                yield message.body

    def _receive(self) -> Iterator[netlink.Message]:
        """The messages of the next datagram."""
        return netlink.messages(self._datagram())

    def _datagram(self) -> bytes:
        try:
            datagram = self._sock.recv(DATAGRAM_MAX)
        except OSError as e:
            raise self._lost(e) from None
        if not datagram:
            raise Unreachable(errno.ECONNRESET, f"the director at {self.path} has gone away")
        return datagram

    def _lost(self, e: OSError) -> Unreachable:
        if isinstance(e, TimeoutError | BlockingIOError):
            return Unreachable(
                errno.ETIMEDOUT, f"the director at {self.path} does not answer: is it stopped?"
            )
        return Unreachable(e.errno, f"the director at {self.path} has gone away ({e.strerror})")

    # ---- IPVS

    def _ipvs(self, command: int, payload: bytes = b"") -> list[Attrs]:
        return self.request(messages.FAMILY_NAME, command, payload)

    def info(self) -> tuple[int, int]:
        """Version code and size of the connection table."""
        (attrs,) = self._ipvs(Cmd.GET_INFO)
        return messages.number(attrs, 1, 4), messages.number(attrs, 2, 4)

    def services(self) -> list[ServiceEntry]:
        """All services."""
        return [
            messages.parse_service_entry(netlink.attributes(body))
            for body in self.dump(messages.FAMILY_NAME, Cmd.GET_SERVICE)
        ]

    def service(self, key: ServiceKey) -> ServiceEntry:
        """One service; ESRCH."""
        (attrs,) = self._ipvs(Cmd.GET_SERVICE, messages.service_id(key))
        return messages.parse_service_entry(attrs)

    def dests(self, key: ServiceKey) -> list[DestEntry]:
        """A service's destinations in list order; none if there is no such service."""
        return [
            messages.dest_entry_in(body, key.af)
            for body in self.dump(messages.FAMILY_NAME, Cmd.GET_DEST, messages.service_id(key))
        ]

    def all_dests(self, keys: list[ServiceKey]) -> Iterator[list[DestEntry]]:
        """The destinations of many services, a list for each."""
        payloads = [messages.service_id(key) for key in keys]
        found = self.dumps(messages.FAMILY_NAME, Cmd.GET_DEST, payloads)
        for key, bodies in zip(keys, found, strict=True):
            yield [messages.dest_entry_in(body, key.af) for body in bodies]

    def add_service(self, spec: ServiceSpec) -> None:
        """EEXIST, ENOENT, EINVAL..."""
        self._ipvs(Cmd.NEW_SERVICE, messages.service(spec))

    def edit_service(self, spec: ServiceSpec) -> None:
        """ESRCH, ENOENT, EINVAL..."""
        self._ipvs(Cmd.SET_SERVICE, messages.service(spec))

    def del_service(self, key: ServiceKey) -> None:
        """ESRCH."""
        self._ipvs(Cmd.DEL_SERVICE, messages.service_id(key))

    def add_dest(self, key: ServiceKey, spec: DestSpec) -> None:
        """ESRCH, EEXIST, ERANGE, EINVAL..."""
        self._ipvs(Cmd.NEW_DEST, messages.service_id(key) + messages.dest(spec))

    def edit_dest(self, key: ServiceKey, spec: DestSpec) -> None:
        """ESRCH, ENOENT, ERANGE, EINVAL..."""
        self._ipvs(Cmd.SET_DEST, messages.service_id(key) + messages.dest(spec))

    def del_dest(self, key: ServiceKey, af: int, addr: bytes, port: int) -> None:
        """ESRCH, ENOENT."""
        self._ipvs(Cmd.DEL_DEST, messages.service_id(key) + messages.dest_id(af, addr, port))

    def daemons(self) -> list[Attrs]:
        """Sync daemons that run, as DAEMON nests."""
        return [
            messages.nest(netlink.attributes(body), Attr.DAEMON)
            for body in self.dump(messages.FAMILY_NAME, Cmd.GET_DAEMON)
        ]

    def flush(self) -> None:
        """Delete every service."""
        self._ipvs(Cmd.FLUSH)

    def zero(self, key: ServiceKey | None = None) -> None:
        """Zero the counters of one service, or all."""
        self._ipvs(Cmd.ZERO, messages.service_id(key) if key else b"")

    def timeouts(self) -> Timeouts:
        """The three time-outs."""
        (attrs,) = self._ipvs(Cmd.GET_CONFIG)
        return Timeouts(
            *(
                messages.number(attrs, kind, 4)
                for kind in (Attr.TIMEOUT_TCP, Attr.TIMEOUT_TCP_FIN, Attr.TIMEOUT_UDP)
            )
        )

    def set_timeouts(self, tcp: int, tcp_fin: int, udp: int) -> None:
        """Set them; 0 keeps one as it is. EINVAL."""
        self._ipvs(Cmd.SET_CONFIG, messages.config(tcp, tcp_fin, udp))

    # ---- UVS

    def _uvs(self, command: int, payload: bytes = b"") -> list[Attrs]:
        return self.request(extension.FAMILY_NAME, command, payload)

    def _uvs_dump(self, command: int, payload: bytes = b"") -> Iterator[bytes]:
        return self.dump(extension.FAMILY_NAME, command, payload)

    def sysctls(self) -> dict[str, str]:
        """All sysctls."""
        found = (netlink.attributes(body) for body in self._uvs_dump(extension.Cmd.GET_SYSCTL))
        return {_name(a): _value(a) for a in found}

    def sysctl(self, name: str) -> str:
        """One value; ENOENT."""
        (attrs,) = self._uvs(extension.Cmd.GET_SYSCTL, extension.name(name))
        return _value(attrs)

    def set_sysctl(self, name: str, value: str) -> None:
        """ENOENT: no such name; EINVAL: no such value."""
        self._uvs(extension.Cmd.SET_SYSCTL, extension.name(name) + extension.value(value))

    def conns(self, wanted: ConnFilter = EVERY) -> Iterator[extension.ConnEntry]:
        """All connections and templates that are meant, as they arrive."""
        for body in self._uvs_dump(extension.Cmd.GET_CONNS, extension.filter(wanted)):
            for payload in netlink.every(body, extension.Attr.CONN):
                yield extension.parse_conn(payload)

    def flush_conns(self, wanted: ConnFilter = EVERY) -> int:
        """Drop the connections and templates that are meant; returns how many."""
        (body,) = self._uvs_dump(extension.Cmd.FLUSH_CONNS, extension.filter(wanted))
        return extension.parse_count(netlink.attributes(body)[extension.Attr.COUNT])

    def counters(self) -> dict[str, int]:
        """Verdicts by reason (`Why.label`)."""
        found = (netlink.attributes(body) for body in self._uvs_dump(extension.Cmd.GET_COUNTERS))
        return {_name(a): extension.parse_count(a[extension.Attr.COUNT]) for a in found}

    def queues(self) -> list[QueueRow]:
        """What each queue has counted, by the names of GET_QUEUES; of a director that is older: none."""
        try:
            found = list(self._uvs_dump(extension.Cmd.GET_QUEUES))
        except IpvsError as error:
            if error.errno == errno.EOPNOTSUPP:
                return []
            raise
        return [json.loads(netlink.attributes(body)[extension.Attr.JSON]) for body in found]

    def set_health(self, service: ServiceKey, server: ServerId, health: Health | None) -> None:
        """What checks say of a server, in the table or not; None: it is not checked (any more)."""
        from uvs.control import rows  # what few programs need

        told = None if health is None else rows.health_row(health)
        self._layer(extension.Cmd.SET_HEALTH, service, server=server, health=told)

    def set_fallback(self, service: ServiceKey, dest: DestSpec | None) -> None:
        """The server of last resort, in the table while it is set. EEXIST: it is a server of the service."""
        from uvs.control import rows

        told = None if dest is None else rows.dest_row(dest)
        self._layer(extension.Cmd.SET_FALLBACK, service, dest=told)

    def get_health(self) -> list[dict[str, Any]]:
        """Every server and what lies over it: rows as in docs/reference/control-protocol.md, GET_HEALTH."""
        return list(self._objects(extension.Cmd.GET_HEALTH))

    def drain(
        self, service: ServiceKey, server: ServerId, deadline: float | None = None, cancel: bool = False
    ) -> None:
        """Take a server out gently, `deadline` seconds from now at the latest; or cancel that.

        ESRCH no such service; ENOENT no such server, or it is not being drained.
        """
        self._layer(extension.Cmd.DRAIN, service, server=server, deadline=deadline, cancel=cancel)

    def reload(self) -> list[dict[str, Any]]:
        """Converge to the configuration: a row for each change, or with `fault`. ENOENT: there is none."""
        return list(self._objects(extension.Cmd.RELOAD))

    def diff(self) -> list[dict[str, Any]]:
        """What `reload` would do, rows as there. ENOENT: no configuration."""
        return list(self._objects(extension.Cmd.DIFF))

    def _layer(
        self, command: int, service: ServiceKey, server: ServerId | None = None, **what: object
    ) -> None:
        from uvs.control import rows
        from uvs.layers import text

        if server is not None:
            what["server"] = text(server)
        self._uvs(command, extension.json_text({"service": rows.service_text(service), **what}))

    def _objects(self, command: int) -> Iterator[dict[str, Any]]:
        for body in self._uvs_dump(command):
            yield json.loads(netlink.attributes(body)[extension.Attr.JSON])

    def total(self) -> tuple[Stats, str]:
        """Counters of everything, and the table's figures as JSON text."""
        (attrs,) = self._uvs(extension.Cmd.GET_TOTAL)
        return messages.parse_stats(attrs, extension.Attr.STATS64), attrs[extension.Attr.JSON].decode()

    def about(self) -> About:
        """Which director this is."""
        (attrs,) = self._uvs(extension.Cmd.GET_TOTAL)
        if extension.Attr.VALUE not in attrs:
            return About("", 0)
        return About(_value(attrs), extension.parse_count(attrs[extension.Attr.COUNT]))

    def record(self, count: int) -> None:
        """Record the walks of the next `count` packets."""
        self._uvs(extension.Cmd.RECORD, extension.count(count))

    def walks(self) -> list[str]:
        """The walks recorded since the last call, as JSON texts."""
        return [
            netlink.attributes(body)[extension.Attr.JSON].decode()
            for body in self._uvs_dump(extension.Cmd.GET_WALKS)
        ]

    def trace(self, words: str, rate: int) -> str:
        """Trace what a filter takes, `rate` walks a second, until this connection ends; how it was read.

        `walks` are those of the trace from now on. EINVAL: no such filter or rate; EBUSY: four others trace;
        EOPNOTSUPP: the director is older.
        """
        (attrs,) = self._uvs(extension.Cmd.TRACE, extension.text(words) + extension.count(rate))
        return attrs[extension.Attr.TEXT].decode()

    def traced(self) -> TraceCounts:
        """What the trace has come to."""
        (attrs,) = self._uvs(extension.Cmd.GET_TRACE)
        told = json.loads(attrs[extension.Attr.JSON])
        return TraceCounts(told["matched"], told["suppressed"])

    def proc(self, name: str) -> Iterator[str]:
        """The text of /proc/net/NAME, in pieces; ENOENT."""
        for body in self.dump(extension.FAMILY_NAME, extension.Cmd.GET_PROC, extension.name(name)):
            for text in netlink.every(body, extension.Attr.TEXT):
                yield text.decode(errors="surrogateescape")

    def set_sockopt(self, option: int, value: bytes) -> None:
        """setsockopt(IPPROTO_IP, IP_VS_SO_SET_*)."""
        self._uvs(extension.Cmd.SET_SOCKOPT, extension.sockopt(option, len(value), value))

    def get_sockopt(self, option: int, size: int, head: bytes) -> bytes:
        """getsockopt(IPPROTO_IP, IP_VS_SO_GET_*) with a buffer of `size` bytes that begins with `head`."""
        request = extension.sockopt(option, size, head)
        found = self.dump(extension.FAMILY_NAME, extension.Cmd.GET_SOCKOPT, request)
        return b"".join(data for body in found for data in netlink.every(body, extension.Attr.DATA))


def _name(attrs: Attrs) -> str:
    return messages.text(attrs, extension.Attr.NAME, 255)


def _value(attrs: Attrs) -> str:
    return messages.text(attrs, extension.Attr.VALUE, 1023)
