"""Random commands, packets and time over a whole director on paper: what must hold whatever happens.

Counters of each server equal what the table holds; each packet counts alike for server, service and total;
a scheduler gives no new connection to a server of weight 0 or over its threshold; everything ends; a director
that is killed and started again shows the same. And nothing ever raises but a refusal.
"""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support import invariants, traffic
from support.lasting import Director
from support.traffic import AH, ESP, SCTP, TCP, UDP
from support.world import CIP, CIP6, DIP, RIP, RIP6, VIP, VIP6, packed

from uvs.engine.core import AF_INET, AF_INET6, Conn, ConnFlag, Packet, Why
from uvs.ipvs import scheduling
from uvs.ipvs.services import Dest, DestSpec, ServiceKey, ServiceSpec
from uvs.ipvs.skb import Hook, Verdict
from uvs.ipvs.spec import SVC_F_ONEPACKET, SVC_F_PERSISTENT, SVC_F_SCHED1, SVC_F_SCHED2, IpvsError

MARK = 7
V4, V4B, V4C, V6 = packed(VIP), packed("198.18.0.101"), packed("198.18.0.102"), packed(VIP6)
PORTS = [(TCP, 80), (TCP, 21), (TCP, 0), (UDP, 53), (UDP, 500), (UDP, 0), (SCTP, 80)]
KEYS = [
    *(ServiceKey(AF_INET, protocol, V4, port) for protocol, port in PORTS),
    *(ServiceKey(AF_INET6, protocol, V6, port) for protocol, port in PORTS),
    ServiceKey(AF_INET, TCP, V4B, 80),
    ServiceKey(AF_INET, TCP, b"", 0, MARK),
    ServiceKey(AF_INET6, TCP, b"", 0, MARK),
]
SERVERS = [packed(a) for a in (*RIP.values(), DIP, *RIP6.values())]
CLIENTS = {
    4: [packed(CIP), packed("10.9.0.77"), packed("127.0.0.1")],
    16: [packed(CIP6), packed("2001:db8:9::2")],
}
ELSEWHERE = [packed("192.0.2.200"), packed("2001:db8:2::200")]
CLIENT_PORTS = [1024, 1025, 1026, 1027, 500, 20]

FLAGS = [0, SVC_F_PERSISTENT, SVC_F_ONEPACKET, SVC_F_PERSISTENT | SVC_F_ONEPACKET]
REFUSALS = {errno.EEXIST, errno.ESRCH, errno.ENOENT, errno.EINVAL, errno.ERANGE, errno.EOPNOTSUPP}
SYSCTLS = {
    "cache_bypass": [0, 1], "conn_reuse_mode": [0, 1, 2, 3], "drop_entry": [0, 1, 3], "drop_packet": [0, 1, 3],
    "expire_nodest_conn": [0, 1], "expire_quiescent_template": [0, 1], "nat_icmp_send": [0, 1],
    "pmtu_disc": [0, 1], "schedule_icmp": [0, 1], "secure_tcp": [0, 1, 3], "sloppy_sctp": [0, 1],
    "sloppy_tcp": [0, 1], "ignore_tunneled": [0, 1], "lblcr_expiration": [1, 86400], "conntrack": [0, 1],
    "snat_reroute": [0, 1],
}  # fmt: skip
SETTINGS = [(name, value) for name, values in SYSCTLS.items() for value in values]
PAYLOADS = [
    b"", b"x" * 8, b"x" * 1460, b"PASV\r\n", b"EPSV\r\n", b"PORT 10,9,0,1,7,8\r\n", b"EPRT |2|2001:db8:9::1|1800|\r\n",
    b"227 Entering Passive Mode (198,19,0,11,7,9)\r\n", b"229 Entering (|||1801|)\r\n",
    b"INVITE sip:a SIP/2.0\r\nCall-ID: one@here\r\n\r\n", b"INVITE sip:a SIP/2.0\r\nCall-ID: two\r\n\r\n",
]  # fmt: skip

scheds = st.sampled_from([*scheduling.names(), "none"])
pick = st.integers(0, 1 << 16)  # one of what there is
hooks = st.sampled_from([Hook.LOCAL_IN] * 4 + [Hook.LOCAL_OUT, Hook.FORWARD])
kinds = st.sampled_from([2, 2, 2, 16, 16, 24, 17, 1, 4, 18, 0, 7, 10, 11, 14, 255])  # TCP flags, or chunks
payloads = st.sampled_from(PAYLOADS)


def refused(change: Callable[[], object]) -> None:
    """Make a change, which may be refused as IPVS refuses."""
    try:
        change()
    except IpvsError as error:
        if error.errno not in REFUSALS:
            raise


def templates_of(conns: list[Conn]) -> set[tuple[Any, ...]]:
    return {
        (c.af, c.protocol, c.caddr, c.vaddr, c.vport, c.dest) for c in conns if c.flags & ConnFlag.TEMPLATE
    }


class Invariants(RuleBasedStateMachine):
    """Each rule is one thing that a person, the net or the clock does."""

    @initialize(
        chosen=st.lists(st.sampled_from(KEYS), min_size=1, max_size=4, unique=True),
        method=st.sampled_from([0, 2, 3]), knobs=st.lists(st.sampled_from(SETTINGS), max_size=4),
    )  # fmt: skip
    def start(self, chosen: list[ServiceKey], method: int, knobs: list[tuple[str, int]]) -> None:
        self.dir = tempfile.TemporaryDirectory()
        self.w = Director(self.dir.name, 1000 * 10**9)
        self.keys = chosen
        self.strangers = 0
        for n, key in enumerate(chosen):
            servers = [] if key.fwmark else [4, 5, 6]
            self.add_service(
                n, "wlc", SVC_F_PERSISTENT * (key.port == 0), 0, 60, False, servers, method, False
            )
        for what in knobs:
            self.sysctl(what)

    def teardown(self) -> None:
        if not hasattr(self, "dir"):
            return
        self.everything_ends()
        self.w.close()
        self.dir.cleanup()

    # ---- commands

    def key(self, n: int) -> ServiceKey:
        """One of the few services that this run is about; seldom another one."""
        return KEYS[n % len(KEYS)] if n % 16 == 15 else self.keys[n % len(self.keys)]

    def spec(self, key: ServiceKey, sched: str, flags: int, timeout: int, narrow: bool) -> ServiceSpec:
        full, some = (0xFFFFFFFF, 0xFFFFFF00) if key.af == AF_INET else (128, 64)
        return ServiceSpec(key, sched, flags, timeout, some if narrow else full)

    @rule(
        key=pick, sched=scheds, flags=st.sampled_from(FLAGS), more=st.sampled_from([0, SVC_F_SCHED1, SVC_F_SCHED2]),
        timeout=st.sampled_from([0, 1, 60, 360]), narrow=st.booleans(), servers=st.lists(pick, max_size=4),
        method=st.sampled_from([0, 0, 2, 3]), bad=st.sampled_from([False] * 9 + [True]),
    )  # fmt: skip
    def add_service(
        self, key: int, sched: str, flags: int, more: int, timeout: int, narrow: bool, servers: list[int],
        method: int, bad: bool,
    ) -> None:  # fmt: skip
        name = self.key(key)
        if name.port == 0 and not name.fwmark and not bad:
            flags |= SVC_F_PERSISTENT  # as ipvsadm demands
        spec = self.spec(name, "nonsuch" if bad else sched, flags | more, timeout, narrow)
        refused(lambda: self.w.ipvs.services.add_service(spec))
        for n in servers:
            self.add_dest(key, n, method, 1 + n % 3, 0, 0, 0)

    @rule(
        key=pick,
        sched=scheds,
        flags=st.sampled_from(FLAGS),
        timeout=st.sampled_from([1, 360]),
        narrow=st.booleans(),
    )
    def edit_service(self, key: int, sched: str, flags: int, timeout: int, narrow: bool) -> None:
        refused(
            lambda: self.w.ipvs.services.edit_service(self.spec(self.key(key), sched, flags, timeout, narrow))
        )

    @rule(key=pick)
    def del_service(self, key: int) -> None:
        refused(lambda: self.w.ipvs.services.del_service(self.key(key)))

    @rule()
    def flush(self) -> None:
        self.w.ipvs.services.flush()

    def dest_spec(
        self, key: ServiceKey, n: int, method: int, weight: int, u: int, low: int, tun: int
    ) -> DestSpec:
        same = [a for a in SERVERS if (len(a) == 4) == (key.af == AF_INET)]
        addr = (SERVERS if method == 2 and n % 4 == 0 else same)[n % len(same)]
        port = key.port if method else 8080 + n % 2
        return DestSpec(
            AF_INET if len(addr) == 4 else AF_INET6, addr, port, method, weight, u, low, tun, 6080 * (tun == 1), 0
        )  # fmt: skip

    weights = st.sampled_from([0, 1, 1, 2, 5, 100, 65535, 0x7FFFFFFF])
    methods = st.sampled_from([0, 0, 2, 3])
    uppers, lowers = st.sampled_from([0, 0, 1, 2, 4]), st.sampled_from([0, 0, 1, 3])
    tunnels = st.sampled_from([0, 0, 0, 1, 2])

    @rule(key=pick, n=pick, method=methods, weight=weights, u=uppers, low=lowers, tun=tunnels)
    def add_dest(self, key: int, n: int, method: int, weight: int, u: int, low: int, tun: int) -> None:
        spec = self.dest_spec(self.key(key), n, method, weight, u, low, tun if method == 2 else 0)
        refused(lambda: self.w.ipvs.services.add_dest(self.key(key), spec))

    def some_dest(self, n: int) -> Dest | None:
        dests = [d for svc in self.w.ipvs.services for d in svc.dests]
        return dests[n % len(dests)] if dests else None

    @rule(n=pick, method=methods, weight=weights, u=uppers, low=lowers)
    def edit_dest(self, n: int, method: int, weight: int, u: int, low: int) -> None:
        if dest := self.some_dest(n):
            af, addr, port = dest.id
            spec = DestSpec(af, addr, port, method, weight, u, low)
            refused(lambda: self.w.ipvs.services.edit_dest(dest.svc.key, spec))

    @rule(key=pick, weight=st.sampled_from([0, 0, 1]), u=st.sampled_from([0, 1, 1]))
    def edit_all(self, key: int, weight: int, u: int) -> None:
        """Every server of a service: quiesced, or soon full."""
        for svc in self.w.ipvs.services:
            for dest in svc.dests if svc.key == self.key(key) else []:
                spec = replace(dest.spec, weight=weight, u_threshold=u, l_threshold=0)
                self.w.ipvs.services.edit_dest(svc.key, spec)

    @rule(n=pick)
    def del_dest(self, n: int) -> None:
        if dest := self.some_dest(n):
            self.w.ipvs.services.del_dest(dest.svc.key, *dest.id)

    @rule(key=st.none() | pick)
    def zero(self, key: int | None) -> None:
        refused(lambda: self.w.ipvs.services.zero(None if key is None else self.key(key)))

    @rule(what=st.sampled_from(SETTINGS))
    def sysctl(self, what: tuple[str, int]) -> None:
        self.w.ipvs.sysctl.set(*what)

    @rule(
        protocol=st.sampled_from([TCP, UDP]),
        seconds=st.sampled_from([1, 300, 2**22]),
    )
    def set_timeout(self, protocol: int, seconds: int) -> None:
        self.w.table.set_timeout(protocol, 1 if protocol == TCP else 0, seconds * 1000)

    # ---- time

    def chores(self, pages: int = 1 << 20) -> None:
        """What the director does every second or two."""
        ipvs, now = self.w.ipvs, self.w.now
        ipvs.expire_nodest_conns()
        ipvs.services.expire_trash(now)
        ipvs.services.tick_schedulers(now)
        ipvs.defence.run(now, pages)
        ipvs.services.estimate()

    @rule(
        seconds=st.sampled_from([0.05, 1, 2, 3, 10, 61, 121, 400, 1000]),
        pages=st.sampled_from([1 << 20, 500]),
    )
    def pass_time(self, seconds: float, pages: int) -> None:
        self.w.pass_time(seconds)
        self.chores(pages)

    # ---- packets

    def play(self, hook: Hook, data: bytes, mark: int = 0, indev: int = 2, watched: bool = False) -> Why:
        """One packet, and what it may and may not change."""
        w = self.w
        w.ipvs.recorder.want = int(watched)
        dests = {
            d.rec.index: (d, d.rec.stats, d.rec.weight, d.overloaded, d.available)
            for d in invariants.dests(w)
        }
        services = [(svc, svc.rec.stats) for svc in w.ipvs.services]
        templates, total = templates_of(list(w.table.conns())), w.table.total.raw
        out = w.at(hook, data, mark=mark, indev=indev)
        assert out.verdict in Verdict
        assert out.why != Why.NONE
        assert (out.verdict == Verdict.ACCEPT) or out.content is None
        for _, sent in w.skb.sends:
            assert Packet().load(sent) == 0
        added = [new - old for old, new in zip(total, w.table.total.raw, strict=True)]
        for rows in (
            [(old, svc.rec.stats) for svc, old in services],
            [(old, d.rec.stats) for d, old, *_ in dests.values()],
        ):
            sums = [sum(new[i] - old[i] for old, new in rows) for i in range(5)]
            assert sums == added
        assert added[0] <= 1
        fresh = templates_of(list(w.table.conns())) - templates
        for dest, old, weight, overloaded, available in dests.values():
            if dest.rec.stats[0] > old[0]:
                self.may_have(dest, weight, overloaded, available, any(t[5] == dest.rec.index for t in fresh))
        return out.why

    def may_have(self, dest: Dest, weight: int, overloaded: bool, available: bool, template: bool) -> None:
        """A new connection went to `dest`, with these facts when the packet came."""
        assert available
        svc = dest.svc
        if svc.persistent and not template:  # by one that was there already
            assert weight > 0 or not self.w.ipvs.sysctl.expire_quiescent_template
            return
        assert weight > 0, svc.spec.sched_name
        # lblc does not ask it of a server that it remembers (ip_vs_lblc_schedule).
        assert not overloaded or svc.spec.sched_name == "lblc", svc.spec.sched_name

    def some_conn(self, n: int, method: int | None = None) -> Conn | None:
        conns = [c for c in self.w.table.conns() if not c.flags & ConnFlag.TEMPLATE]
        conns = [c for c in conns if c.flags & ConnFlag.FWD_MASK == method] or conns
        return conns[n % len(conns)] if conns else None

    @rule(
        n=pick, client=pick, port=st.sampled_from(CLIENT_PORTS), kind=kinds, data=payloads, hook=hooks,
        mark=st.sampled_from([0, 0, MARK]), dport=st.sampled_from([0, 0, 0, 20, 2000]),
        ttl=st.sampled_from([64, 64, 64, 1]), watched=st.booleans(), indev=st.sampled_from([2, 2, 1, 0]),
    )  # fmt: skip
    def new_packet(
        self, n: int, client: int, port: int, kind: int, data: bytes, hook: Hook, mark: int, dport: int,
        ttl: int, watched: bool, indev: int,
    ) -> None:  # fmt: skip
        """Of a client that may be new, to a service that may not be there."""
        key = self.key(n)
        vip = key.addr or (ELSEWHERE[0] if key.af == AF_INET else ELSEWHERE[1])
        mark = mark or key.fwmark
        clients = CLIENTS[len(vip)]
        body = traffic.segment(key.protocol, port, dport or key.port or 4000, kind, data)
        packet = traffic.ip(clients[client % len(clients)], vip, key.protocol, body, ttl, df=client % 2 == 0)
        self.play(hook, traffic.filled(packet), mark, 0 if hook == Hook.LOCAL_OUT else indev, watched)

    @rule(n=pick, kind=kinds, data=payloads, ttl=st.sampled_from([64, 64, 1]), watched=st.booleans())
    def known_packet(self, n: int, kind: int, data: bytes, ttl: int, watched: bool) -> None:
        if conn := self.some_conn(n):
            self.play(Hook.LOCAL_IN, traffic.request(conn, kind, data, ttl), conn.fwmark, watched=watched)

    @rule(n=pick, kind=kinds, data=payloads, hook=st.sampled_from(list(Hook)), watched=st.booleans())
    def reply(self, n: int, kind: int, data: bytes, hook: Hook, watched: bool) -> None:
        if conn := self.some_conn(n):
            self.play(hook, traffic.reply(conn, kind, data), watched=watched)

    @rule(
        n=pick,
        server=pick,
        hook=st.sampled_from(list(Hook)),
        protocol=st.sampled_from([TCP, UDP, SCTP]),
        kind=kinds,
    )
    def stray_reply(self, n: int, server: int, hook: Hook, protocol: int, kind: int) -> None:
        """Of a real server, of no connection (nat_icmp_send, SIP)."""
        src = SERVERS[server % len(SERVERS)]
        clients = CLIENTS[len(src)]
        body = traffic.segment(protocol, 8080 + n % 2, CLIENT_PORTS[n % 6], kind, PAYLOADS[n % len(PAYLOADS)])
        self.play(hook, traffic.filled(traffic.ip(src, clients[n % len(clients)], protocol, body)))

    @rule(
        n=pick, inward=st.booleans(), hook=hooks, kind=st.sampled_from([3, 11, 4, 1, 2, 8, 128]),
        code=st.sampled_from([0, 1, 3, 4]), mtu=st.sampled_from([0, 68, 576, 1280, 1400, 0xFFFFFFFF]),
        keep=st.sampled_from([1500, 1500, 28, 24, 48, 19]), sum_right=st.sampled_from([True, True, True, False]),
        watched=st.booleans(), wrapped=st.booleans(),
    )  # fmt: skip
    def error(
        self, n: int, inward: bool, hook: Hook, kind: int, code: int, mtu: int, keep: int, sum_right: bool,
        watched: bool, wrapped: bool,
    ) -> None:  # fmt: skip
        """An ICMP error about a connection: of the client's side about replies, of the server's about requests."""
        conn = self.some_conn(n, ConnFlag.TUNNEL if wrapped else None)
        if conn is None:
            return
        masq = conn.flags & ConnFlag.FWD_MASK == ConnFlag.MASQ
        if inward and not wrapped:
            quote = traffic.ip(
                conn.vaddr, conn.caddr, conn.protocol, traffic.segment(conn.protocol, conn.vport, conn.cport, 16, b"")
            )  # fmt: skip
            src, dst = conn.caddr, conn.vaddr
        else:
            server, port = (conn.daddr, conn.dport) if masq else (conn.vaddr, conn.vport)
            if len(server) != len(conn.caddr):
                server = conn.vaddr
            quote = traffic.ip(
                conn.caddr, server, conn.protocol, traffic.segment(conn.protocol, conn.cport, port, 16, b"")
            )
            src, dst = server, conn.caddr
            if wrapped and conn.daf == AF_INET:  # about the tunnel packet, told to the director
                inner = traffic.request(conn, 16, bytes(8))
                src, dst, hook = conn.daddr, packed(DIP), Hook.LOCAL_IN
                quote = traffic.ip(dst, src, 4 if conn.af == AF_INET else 41, inner)
        packet = traffic.icmp_error(src, dst, kind, code, mtu, quote[:keep])
        self.play(hook, packet if sum_right else packet[:-1] + bytes([packet[-1] ^ 1]), watched=watched)

    @rule(n=pick, protocol=st.sampled_from([AH, ESP]), hook=hooks, back=st.booleans())
    def ipsec(self, n: int, protocol: int, hook: Hook, back: bool) -> None:
        """AH and ESP of a connection's ends."""
        if (conn := self.some_conn(n)) and conn.af == conn.daf:
            src, dst = (conn.daddr, conn.caddr) if back else (conn.caddr, conn.vaddr)
            self.play(hook, traffic.filled(traffic.ip(src, dst, protocol, bytes(24))))

    @rule(
        n=pick,
        word=st.sampled_from([0x2000, 0x2005, 5, 8, 9, 1]),
        hook=hooks,
        mark=st.sampled_from([0, MARK]),
    )
    def fragment(self, n: int, word: int, hook: Hook, mark: int) -> None:
        """A part of a datagram, alone."""
        if conn := self.some_conn(n):
            body = traffic.segment(conn.protocol, conn.cport, conn.vport, 2, bytes(64))
            self.play(hook, traffic.ip(conn.caddr, conn.vaddr, conn.protocol, body, frag=word), mark)

    @rule(
        n=pick, back=st.booleans(), kind=kinds, hook=hooks, mark=st.sampled_from([0, MARK]), cut=st.integers(0, 40),
        changes=st.lists(st.tuples(st.integers(0, 80), st.integers(0, 255)), max_size=4), watched=st.booleans(),
    )  # fmt: skip
    def garbage(
        self, n: int, back: bool, kind: int, hook: Hook, mark: int, cut: int, changes: list[tuple[int, int]], watched: bool
    ) -> None:  # fmt: skip
        """Something like a packet."""
        conn = self.some_conn(n)
        data = (traffic.reply if back else traffic.request)(conn, kind, b"abc") if conn else b"E"
        self.play(hook, traffic.bent(data, changes, cut), mark, watched=watched)

    # ---- the table's end

    @rule(
        left=st.integers(0, 3), flags=st.sampled_from(FLAGS), protocol=st.sampled_from([TCP, UDP, SCTP]), n=pick,
        kind=kinds, data=payloads,
    )  # fmt: skip
    def full(self, left: int, flags: int, protocol: int, n: int, kind: int, data: bytes) -> None:
        """All records but `left` are in use: a new client is refused, and is served once there is room."""
        services, sysctl = self.w.ipvs.services, self.w.ipvs.sysctl
        key = ServiceKey(AF_INET, protocol, V4C, 8000)
        services.add_service(ServiceSpec(key, "rr", flags, 60, 0xFFFFFFFF))
        services.add_dest(key, DestSpec(AF_INET, SERVERS[0], 8000, 0, 1))
        if flags & SVC_F_ONEPACKET and protocol == UDP:
            left = 0  # each is over before the next
        drop_packet = sysctl.get("drop_packet")
        sysctl.set("drop_packet", "0")

        def stranger() -> Why:
            self.strangers += 1
            first = traffic.segment(protocol, 1024, 8000, 2 if protocol == TCP else 1, b"")
            client = packed("10.20.0.0")[:2] + self.strangers.to_bytes(2, "big")
            return self.play(Hook.LOCAL_IN, traffic.filled(traffic.ip(client, V4C, protocol, first)))

        with invariants.full(self.w.table, left):
            assert [stranger() for _ in range(left + 2)][-1] == Why.TABLE_FULL
            invariants.counters_equal_the_table(self.w)
            self.known_packet(n, kind, data, 64, False)
            self.reply(n, kind, data, Hook.FORWARD, False)
            self.new_packet(n, n, CLIENT_PORTS[n % 6], kind, data, Hook.LOCAL_IN, 0, 0, 64, False, 2)
            self.pass_time(61, 1 << 20)
            invariants.counters_equal_the_table(self.w)
        assert stranger() == Why.FORWARDED
        sysctl.set("drop_packet", drop_packet)
        services.del_service(key)

    # ---- the process

    @rule()
    def kill(self) -> None:
        """Killed after the acknowledgement of its last change, and started again."""
        self.w.saved.save(self.w.ipvs)
        self.w.ipvs.expire_nodest_conns()
        before = self.w.listing()
        self.w.close()
        self.w = Director(self.dir.name, self.w.now)
        after = self.w.listing()
        for name in before:
            assert after[name] == before[name], name

    # ---- what must hold

    @invariant()
    def counters_equal_the_table(self) -> None:
        invariants.counters_equal_the_table(self.w)

    @invariant()
    def records_have_owners(self) -> None:
        invariants.records_have_owners(self.w)

    def everything_ends(self) -> None:
        w = self.w
        for name in ("drop_entry", "drop_packet"):
            w.ipvs.sysctl.set(name, 0)
        for _ in range(4):
            w.pass_time(2**22 + 3600)
            self.chores()
        assert w.entries == []
        for _ in range(4):
            w.pass_time(61)
            self.chores()
        assert list(w.ipvs.services.trash) == []
        self.records_have_owners()


Invariants.TestCase.settings = settings(stateful_step_count=60)
test_invariants = Invariants.TestCase


def test_the_table_is_full() -> None:
    """What chance may leave out."""
    machine = Invariants()
    machine.start(KEYS[:4], 0, [("drop_packet", 3)])
    try:
        for left in range(4):
            for flags in FLAGS:
                for protocol in TCP, UDP, SCTP:
                    machine.full(left, flags, protocol, left, 2, b"x")
                    machine.counters_equal_the_table()
                    machine.records_have_owners()
        machine.kill()
    finally:
        machine.teardown()
