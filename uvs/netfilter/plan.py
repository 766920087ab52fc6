"""What is diverted, as data: the back ends turn a plan into sets and rules.

A packet is diverted

* at LOCAL_IN and LOCAL_OUT if its destination is a virtual service or its mark one of a fwmark service (a
  request);
* at LOCAL_IN, FORWARD and LOCAL_OUT if its source is a NAT server, or the virtual service itself, since DR
  and TUN servers answer with its address (a reply);
* at all three if it is an ICMP error, while a service of its family exists

but never at LOCAL_OUT and LOCAL_IN if it bears our own mark: we sent or handled it (`ipvs_property`). Traffic
from and to the servers is not tracked. ip_vs registers at the same hooks (net/netfilter/ipvs/ip_vs_core.c,
ip_vs_ops4).

Only the first fragment of a datagram has ports. Where the kernel does not put fragments together for us, all
those of hosts that we know are diverted, and the hook path does it.

Each packet belongs to a class, and each class may have queues of its own. Only TCP may come to a queue that
takes packets of many segments (F_GSO); replies are answered one by one and requests dropped in batches; and a
flood of SYNs is to fill no queue but its own. Several queues of a class share its packets by their addresses.
"""

from __future__ import annotations

import enum
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from uvs.ipvs.ipproto import IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP

AF_INET = int(socket.AF_INET)
AF_INET6 = int(socket.AF_INET6)
FTP_PORT = 21

PROTOCOLS = {IPPROTO_TCP: "tcp", IPPROTO_UDP: "udp", IPPROTO_SCTP: "sctp"}

# ICMP errors that IPVS handles: unreachable, source quench, time exceeded; of ICMPv6 every type below 128.
ICMP_ERRORS = (3, 4, 11)
ICMPV6_INFORMATIONAL = 128


class Class(enum.IntEnum):
    """Classes of packets; the order of their queues."""

    OTHER = 0  # whatever is not TCP, ICMP errors too, and fragments of anything
    REQUEST = 1  # TCP to services
    REPLY = 2  # TCP from servers
    SYN = 3  # TCP to services that opens a connection: SYN without ACK, FIN and RST


Queues = Mapping[Class, range]  # the queues of each class, by number; none may be empty


def one_queue(number: int) -> dict[Class, range]:
    """All classes in one queue."""
    return dict.fromkeys(Class, range(number, number + 1))


def queues_by_class(first: int, count: int = 1) -> dict[Class, range]:
    """`count` queues for each class, one class after the other from number `first` on."""
    return {each: range(first + each * count, first + (each + 1) * count) for each in Class}


class Set(enum.StrEnum):
    """The sets of one family."""

    SERVICES = "services"  # address, protocol, port of virtual services
    VIPS = "vips"  # addresses of services on every port
    SERVERS = "servers"  # address, protocol, port of real servers
    REALS = "reals"  # addresses of real servers on every port
    MARKS = "marks"  # marks of fwmark services
    ANSWERS = "answers"  # address, protocol, port that DR and TUN servers of fwmark services answer from
    HOSTS = "hosts"  # addresses of all of the above: what fragments can be matched by

    @property
    def is_service(self) -> bool:
        """Does a member mean that the family has a service?"""
        return self in (Set.SERVICES, Set.VIPS, Set.MARKS)


class Entry(NamedTuple):
    """One member of one set; what the set does not look at is zero."""

    set: Set
    af: int
    addr: bytes = b""
    protocol: int = 0
    port: int = 0
    mark: int = 0

    @property
    def text(self) -> str:
        """The address in its usual notation."""
        return socket.inet_ntop(self.af, self.addr)


@dataclass(frozen=True, slots=True)
class Element:
    """Something whose packets are to be diverted.

    `kind`: "service" (`addr`, `protocol`, `port`), "server" (a NAT real server: the same), "answer" (an
    address that servers of a fwmark service answer from: the same) or "mark" (a fwmark service of family
    `af`). `addr` is packed, ports are host-order numbers. Port 0 means every port, and so
    does 21: FTP's data connections use ports nobody knows beforehand. A server of such a service, or of a
    mark service without ports, is to be given with port 0.
    """

    kind: Literal["service", "server", "answer", "mark"]
    af: int
    protocol: int = 0
    addr: bytes = b""
    port: int = 0
    mark: int = 0

    def entry(self) -> Entry:
        """The set member that stands for it. Raises ValueError for what no set can hold."""
        if self.af not in (AF_INET, AF_INET6):
            raise ValueError(f"unknown address family {self.af}")
        if self.kind == "mark":
            if not 0 < self.mark < 1 << 32:
                raise ValueError(f"mark {self.mark} is not within 1..2^32-1")
            return Entry(Set.MARKS, self.af, mark=self.mark)
        if len(self.addr) != (4 if self.af == AF_INET else 16):
            raise ValueError(f"an address of {len(self.addr)} bytes is not of family {self.af}")
        if self.port in (0, FTP_PORT) and self.kind != "answer":
            return Entry(Set.VIPS if self.kind == "service" else Set.REALS, self.af, self.addr)
        if self.protocol not in PROTOCOLS or not 0 < self.port < 65536:
            raise ValueError(f"protocol {self.protocol}, port {self.port} is no service")
        return Entry(_BY_PORT[self.kind], self.af, self.addr, self.protocol, self.port)

    def entries(self) -> list[Entry]:
        """All set members that it needs."""
        entry = self.entry()
        return [entry, Entry(Set.HOSTS, self.af, self.addr)] if self.addr else [entry]


_BY_PORT = {"service": Set.SERVICES, "server": Set.SERVERS, "answer": Set.ANSWERS}


class Plan:
    """Everything that the sets and rules depend on.

    `queues` is the one place that says which class of packets goes to which queues. `mark` under `mask` is on
    the packets that we sent ourselves.
    """

    def __init__(self, queues: Queues, mark: int, mask: int) -> None:
        self.queues = queues
        self.mark = mark
        self.mask = mask
        self.entries: set[Entry] = set()
        self.counts: Counter[tuple[Set, int]] = Counter()  # of entries, by set and family
        self._services = {AF_INET: 0, AF_INET6: 0}
        self._marks: dict[int, set[int]] = {AF_INET: set(), AF_INET6: set()}

    @property
    def all_queues(self) -> set[int]:
        """Every queue's number."""
        return {number for queues in self.queues.values() for number in queues}

    def requests(self, syn: str, tcp: str) -> list[tuple[str, range]]:
        """What sorts requests into their queues: (match, queues), the first that matches.

        `syn` and `tcp` are the back end's matches of Class.SYN and of TCP; "" matches everything.
        """
        return _without_idle(
            (syn, self.queues[Class.SYN]),
            (tcp, self.queues[Class.REQUEST]),
            ("", self.queues[Class.OTHER]),
        )

    def replies(self, tcp: str) -> list[tuple[str, range]]:
        """The same for replies."""
        return _without_idle((tcp, self.queues[Class.REPLY]), ("", self.queues[Class.OTHER]))

    def include(self, entry: Entry) -> None:
        """Add an entry that is not there."""
        self.entries.add(entry)
        self.counts[entry.set, entry.af] += 1
        self._services[entry.af] += entry.set.is_service
        if entry.set is Set.MARKS:
            self._marks[entry.af].add(entry.mark)

    def exclude(self, entry: Entry) -> None:
        """Take out an entry that is there."""
        self.entries.remove(entry)
        self.counts[entry.set, entry.af] -= 1
        self._services[entry.af] -= entry.set.is_service
        if entry.set is Set.MARKS:
            self._marks[entry.af].remove(entry.mark)

    def has_service(self, af: int) -> bool:
        """Only then do ICMP errors of the family matter."""
        return self._services[af] > 0

    def marks(self, af: int) -> list[int]:
        """Marks of the fwmark services of one family, sorted."""
        return sorted(self._marks[af])


def _without_idle(*rules: tuple[str, range]) -> list[tuple[str, range]]:
    """Rules, each of which matches all that those before it do, without those that the next makes idle."""
    kept: list[tuple[str, range]] = []
    for rule in reversed(rules):
        if not kept or rule[1] != kept[0][1]:
            kept.insert(0, rule)
    return kept


def by_set(entries: Iterable[Entry]) -> dict[tuple[Set, int], list[Entry]]:
    """Entries grouped by (set, family)."""
    groups: dict[tuple[Set, int], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.set, entry.af), []).append(entry)
    return groups
