"""New connections without Python are those that the hook path makes: the same servers in the same order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.sctp import SCTPChunkAbort, SCTPChunkInit, SCTPChunkShutdownComplete
from support.fastworld import FastWorld, everything, sctp, told
from support.world import CIP, CIP6, DROUTE, MASQ, RIP, RIP6, TUNNEL, VIP, VIP6, World, packed, tcp, udp

from uvs.engine.core import AF_INET, Kind, Why
from uvs.ipvs import scheduling
from uvs.ipvs.services import (
    SVC_F_ONEPACKET,
    SVC_F_PERSISTENT,
    DestSpec,
    IpvsError,
    Service,
    ServiceKey,
)
from uvs.ipvs.skb import Hook

IN_C = [name for name in scheduling.names() if scheduling.find(name).kind != Kind.NONE]
SCHEDULERS = [name for name in scheduling.names() if name != "twos"]  # which asks for random numbers
SCHED1, SCHED2 = 8, 16
CLIENTS = [f"10.9.0.{i}" for i in range(1, 5)]
PORTS = (20, 1024, 1025)
WEB, DNS, SIG = ((6, 80), (17, 53), (132, 80))


def key(protocol: int, port: int) -> ServiceKey:
    return ServiceKey(AF_INET, protocol, packed(VIP), port)


def director(sched: str, flags: int = 0) -> World:
    w = World()
    for protocol, port in (WEB, DNS, SIG):
        svc = w.service(VIP, port, protocol, sched, flags=flags)
        for i, rip in RIP.items():
            w.server(svc, rip, 8080, weight=i)
    w.server(w.service(VIP, 81, sched=sched, flags=flags), RIP[2], 81, DROUTE)
    w.server(w.service(VIP, 21, sched=sched, flags=flags), RIP[2], 21)
    w.server(w.service(fwmark=7, sched=sched, flags=flags), RIP[1], 0)
    w.server(w.service(fwmark=8, sched=sched, flags=flags), RIP[1], 0, DROUTE)
    w.server(w.service(fwmark=9, sched=sched, flags=flags), RIP[3], 90, TUNNEL)
    w.server(w.service(VIP6, 80, sched=sched, flags=flags), RIP6[1], 8080)
    return w


# ---- packets: hook, packet, mark, input device

clients = st.tuples(st.sampled_from(CLIENTS), st.sampled_from(PORTS))
flags = st.sampled_from(["S", "S", "S", "S", "A", "FA", "R", "SR", "SA"])
in_tcp = st.tuples(clients, st.sampled_from([80, 80, 80, 81, 21, 9]), flags).map(
    lambda t: tcp(*t[0], VIP, t[1], t[2])
)
in_other = st.one_of(
    clients.map(lambda c: udp(*c, VIP, 53)),
    clients.map(lambda c: udp(*c, VIP, 21)),
    st.tuples(clients, st.sampled_from([SCTPChunkInit, SCTPChunkAbort, SCTPChunkShutdownComplete])).map(
        lambda t: sctp(*t[0], VIP, 80, t[1]())
    ),
    flags.map(lambda f: tcp(CIP6, 1024, VIP6, 80, f)),
    st.just(tcp("127.0.0.1", 1024, VIP, 80)),
    st.just(tcp(CIP, 1024, VIP, 80, ttl=1)),
    st.just(tcp(CIP, 0, VIP, 80)),
    st.just(tcp(CIP, 1024, VIP, 80, "S", b"x" * 1470)),
)
requests = st.tuples(
    st.just(Hook.LOCAL_IN),
    in_tcp | in_tcp | in_other,
    st.sampled_from([0] * 6 + [7, 8, 9, 10]),
    st.sampled_from([2] * 6 + [1]),
)
replies = st.tuples(
    st.just(Hook.FORWARD),
    st.tuples(st.sampled_from(sorted(RIP.values())), clients, st.sampled_from(["SA", "A", "FA", "R"])).map(
        lambda t: tcp(t[0], 8080, *t[1], t[2])
    ),
    st.just(0),
    st.just(3),
)

# ---- what is done to the table between packets

servers = st.tuples(
    st.sampled_from([WEB, WEB, WEB, DNS, SIG]),
    st.sampled_from([RIP[1], RIP[2], RIP[3]]),
    st.sampled_from([MASQ, MASQ, MASQ, DROUTE, TUNNEL]),
    st.sampled_from([0, 1, 1, 2, 3, 6]),
    st.sampled_from([(0, 0), (0, 0), (1, 0), (2, 1)]),
)
dones = st.one_of(
    st.tuples(st.just("add"), servers),
    st.tuples(st.just("edit"), servers),
    st.tuples(st.just("edit"), servers),
    st.tuples(st.just("delete"), servers),
    st.tuples(st.just("sched"), st.sampled_from(SCHEDULERS)),
    st.tuples(st.just("flags"), st.sampled_from([0, 0, SVC_F_PERSISTENT, SVC_F_ONEPACKET, SCHED1, SCHED2])),
    st.tuples(st.just("service"), st.sampled_from([WEB, DNS])),
    st.tuples(
        st.just("sysctl"),
        st.sampled_from(
            [("conn_reuse_mode", 0), ("conn_reuse_mode", 1), ("conn_reuse_mode", 3), ("expire_nodest_conn", 1),
             ("sloppy_tcp", 1), ("sloppy_sctp", 1), ("drop_packet", 3), ("drop_packet", 0), ("expire_nodest_conn", 0)]
        ),
    ),
    st.tuples(st.just("route"), st.sampled_from([RIP[1], RIP[2]])),
    st.tuples(st.just("time"), st.sampled_from([1, 11, 61, 130])),
)  # fmt: skip


def spec_of(what: tuple[Any, ...]) -> tuple[ServiceKey, DestSpec]:
    which, rip, fwd, weight, (upper, lower) = what
    dest = DestSpec(AF_INET, packed(rip), 8080, fwd, weight, u_threshold=upper, l_threshold=lower)
    return key(*which), dest


def service_or_none(world: World, which: ServiceKey) -> Service | None:
    try:
        return world.ipvs.services.get(which)
    except IpvsError:
        return None


def do(world: World, what: str, arg: Any) -> None:
    services = world.ipvs.services
    if what == "time":
        world.pass_time(arg)
        services.expire_trash(world.now)
    elif what == "sysctl":
        world.ipvs.sysctl.set("am_droprate", 2)
        world.ipvs.sysctl.set(*arg)
    elif what == "route":
        world.routes.unreachable.symmetric_difference_update({packed(arg)})
    elif what in ("sched", "flags"):
        if svc := service_or_none(world, key(*WEB)):
            change = {"sched_name": arg, "timeout": 50} if what == "sched" else {"flags": arg, "timeout": 50}
            services.edit_service(replace(svc.spec, **change))
    elif what == "service":
        if svc := service_or_none(world, key(*arg)):
            services.del_service(svc.key)
        else:
            world.server(world.service(VIP, arg[1], arg[0]), RIP[1], 8080)
    else:
        which, dest = spec_of(arg)
        svc = service_or_none(world, which)
        there = svc is not None and svc.dest(*dest_id(dest)) is not None
        if svc is None or there == (what == "add"):
            return
        if what == "add":
            services.add_dest(which, dest)
        elif what == "edit":
            services.edit_dest(which, dest)
        else:
            services.del_dest(which, *dest_id(dest))
            world.ipvs.expire_nodest_conns()


def dest_id(dest: DestSpec) -> tuple[int, bytes, int]:
    return dest.af, dest.addr, dest.port


def turns(world: World) -> list[Any]:
    """What the schedulers remember."""
    return [
        (svc.scheduler.sched.last, svc.scheduler.sched.cw)
        for svc in world.ipvs.services
        if svc.scheduler and svc.scheduler.kind in (Kind.RR, Kind.WRR)
    ]


class Went(NamedTuple):
    """A packet: by the fast path? To which server?"""

    fast: bool
    to: str | None


def compare(sched: str, steps: list[tuple[Any, ...]], flags: int = 0) -> list[Went]:
    """Both ways."""
    slow, fast = director(sched, flags), FastWorld(director(sched, flags))
    went = []
    try:
        for step in steps:
            if isinstance(step[0], str):
                for world in (slow, fast):
                    do(world, *step)
            else:
                hook, packet, mark, indev = step
                before = fast.fast
                out = fast.at(hook, packet, mark, indev)
                assert told(out) == told(slow.at(hook, packet, mark, indev))
                went.append(Went(fast.fast > before, out.to))
            assert everything(fast) == everything(slow)
            assert turns(fast) == turns(slow)
        return went
    finally:
        slow.close()
        fast.close()


@pytest.mark.parametrize("sched", SCHEDULERS)
@settings(max_examples=60, deadline=None)
@given(
    st.lists(requests | requests | requests | replies | dones, min_size=1, max_size=60),
    st.sampled_from([0, SCHED1, SCHED2, SCHED1 | SCHED2]),
)
def test_random(sched: str, steps: list[tuple[Any, ...]], flags: int) -> None:
    compare(sched, steps, flags)


def syn(
    port: int = 1024, client: str = CIP, to: int = 80, flags: str = "S", mark: int = 0, indev: int = 2
) -> Any:
    return Hook.LOCAL_IN, tcp(client, port, VIP, to, flags), mark, indev


SIX = [syn(port) for port in range(2000, 2006)]


@pytest.mark.parametrize("sched", IN_C)
@pytest.mark.parametrize("flags", [0, SCHED2])
def test_it_takes_the_syns_of(sched: str, flags: int) -> None:
    """Once the way to a server is known; else the test above could compare the hook path with itself."""
    went = compare(sched, [syn(port, f"10.9.{port}.7") for port in range(1, 9)], flags)
    assert [w.fast for w in went] == [w.to in [v.to for v in went[:i]] for i, w in enumerate(went)]
    assert sum(w.fast for w in went) >= 5


@pytest.mark.parametrize("sched", ["sh", "mh"])
def test_it_falls_back(sched: str) -> None:
    """Where a client's own server has weight 0: to the one that the hook path chooses."""
    clients = [syn(1, f"10.8.0.{i}") for i in range(1, 60)]
    quiesce = "edit", (WEB, RIP[3], MASQ, 0, (0, 0))
    went = compare(sched, [*clients, quiesce, *[syn(2, f"10.8.0.{i}") for i in range(1, 60)]], SCHED1)
    assert all(w.fast for w in went[60:])
    assert {w.to for w in went[60:]} == {RIP[1], RIP[2]}


@pytest.mark.parametrize("sched", sorted(set(SCHEDULERS) - set(IN_C)))
def test_it_leaves_the_syns_of(sched: str) -> None:
    assert not any(w.fast for w in compare(sched, SIX))


def _udp(port: int) -> Any:
    return Hook.LOCAL_IN, udp(CIP, port, VIP, 53), 0, 2


def _init(port: int) -> Any:
    return Hook.LOCAL_IN, sctp(CIP, port, VIP, 80, SCTPChunkInit()), 0, 2


FIN = [syn(flags="S"), (Hook.FORWARD, tcp(RIP[3], 8080, CIP, 1024, "SA"), 0, 3), syn(flags="A"), syn(flags="FA"),
       (Hook.FORWARD, tcp(RIP[3], 8080, CIP, 1024, "FA"), 0, 3)]  # fmt: skip
SERVER_FIN = [*FIN[:3], FIN[4]]  # FIN_WAIT
FIN_81 = [syn(to=81, flags=flags) for flags in ("S", "A", "FA")]  # FIN_WAIT, replies not seen
DATAGRAMS = [_udp(1), _udp(2), _udp(3), _udp(4)]


# What was sent and done, and whether the fast path takes the last packet.
TAKES: dict[str, tuple[list[Any], bool]] = {
    "udp": ([_udp(port) for port in range(1, 5)], True),
    "sctp": ([_init(port) for port in range(1, 5)], True),
    "dr": ([syn(1, to=81), syn(2, to=81)], True),
    "mark": ([syn(1, mark=7), syn(2, mark=7)], True),
    "another mark": ([syn(1, mark=10), *SIX, syn(2, mark=10)], True),
    "mark, dr": ([syn(1, mark=8), syn(2, mark=8)], False),
    "ftp": ([syn(1, to=21), syn(2, to=21)], False),
    "client port 20": ([*SIX, syn(20)], False),
    "loopback": ([*SIX, syn(indev=1)], False),
    "no service": ([*SIX, syn(to=9)], False),
    "not a syn": ([*SIX, syn(flags="A")], True),
    "sloppy": ([*SIX, ("sysctl", ("sloppy_tcp", 1)), syn(flags="A")], True),
    "drop_packet": ([*SIX, ("sysctl", ("drop_packet", 3)), syn()], False),
    "retransmission": ([*SIX, syn(), syn()], True),
    "port used again": ([*SIX, *FIN, syn()], True),
    "not to be used again": ([*SIX, *FIN, ("sysctl", ("conn_reuse_mode", 0)), syn()], True),
    "nodest": ([*SIX, *FIN, ("sysctl", ("expire_nodest_conn", 1)), syn()], True),
    "nodest, weight 0": ([*SIX, ("sysctl", ("expire_nodest_conn", 1)), ("edit", (WEB, RIP[3], MASQ, 0, (0, 0))), SIX[0]], False),
    "controlled": ([("flags", SVC_F_PERSISTENT), *FIN, ("flags", 0), *SIX, syn()], True),
    "nat in fin_wait": ([*SERVER_FIN, ("sysctl", ("conn_reuse_mode", 3)), *SIX, syn()], True),
    "dr in fin_wait": ([*FIN_81, *SIX, syn(to=81)], True),
    "dr in fin_wait, to be used again": ([*FIN_81, ("sysctl", ("conn_reuse_mode", 3)), syn(to=81)], True),
    "persistent": ([*SIX, ("flags", SVC_F_PERSISTENT), syn()], False),
    "one packet": ([*DATAGRAMS, ("flags", SVC_F_ONEPACKET), syn()], False),
    "scheduler changed": ([*SIX, ("sched", "wlc"), syn(1), syn(2)], True),
    "scheduler of the hook path": ([*SIX, ("sched", "lblc"), syn()], False),
    "server deleted": ([*SIX, ("delete", (WEB, RIP[1], 0, 0, (0, 0))), syn(1), syn(2)], True),
    "server added": (
        [*SIX, ("delete", (WEB, RIP[1], 0, 0, (0, 0))), ("add", (WEB, RIP[1], MASQ, 1, (0, 0))), syn(1)], False,
    ),
    "weight 0": ([*SIX, *(("edit", (WEB, rip, MASQ, 0, (0, 0))) for rip in RIP.values()), syn(1)], False),
    "no route": ([*SIX, ("route", RIP[1]), syn(1), syn(2), syn(3)], False),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKES)
def test_what_it_takes(case: str) -> None:
    steps, last = TAKES[case]
    assert compare("rr", steps)[-1].fast is last


def test_a_full_table() -> None:
    """The hook path says so; that it was asked before is not counted."""
    world = FastWorld(director("rr"))
    for port in range(1, 7):
        assert world.local_in(tcp(CIP, port, VIP, 80)).to
    ends = AF_INET, 6, packed(CIP), 9, packed(VIP), 9, AF_INET, packed(VIP), 9
    while world.table.conn_new(*ends, 0, 0, 0, world.now):
        pass
    before = world.table.info()["full"]
    assert world.local_in(tcp(CIP, 7, VIP, 80)).why == Why.TABLE_FULL
    assert world.table.info()["full"] == before + 1
    world.close()
