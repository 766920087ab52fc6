"""What is diverted as services and servers come and go: each element as long as somebody needs it."""

from __future__ import annotations

from collections import Counter

import pytest
from support.world import CIP, DROUTE, MASQ, RIP, VIP, World, packed, tcp

from uvs.diverted import Diverted
from uvs.netfilter.plan import AF_INET, Element

SERVICE = Element("service", AF_INET, 6, packed(VIP), 80)
SERVER = {i: Element("server", AF_INET, 6, packed(RIP[i]), 80) for i in RIP}


class Paper:
    """A `Diversion` that only counts."""

    def __init__(self):
        self.held = Counter()

    def add(self, element):
        self.held[element] += 1

    def discard(self, element):
        assert self.held[element] > 0
        self.held[element] -= 1


@pytest.fixture
def world():
    w = World()
    w.paper = Paper()
    w.diverted = Diverted(w.ipvs.services, w.paper)
    yield w
    w.close()


def held(world):
    world.diverted.release()
    return set(+world.paper.held)


@pytest.mark.parametrize(
    ("protocol", "port", "entries"),
    [
        (6, 80, {("services", 80), ("servers", 8080)}),
        (17, 80, {("services", 80), ("servers", 8080)}),
        (132, 80, {("services", 80), ("servers", 8080)}),
        (6, 0, {("vips", 0), ("reals", 0)}),
        (6, 21, {("vips", 0), ("reals", 0)}),
        (17, 500, {("vips", 0), ("reals", 0)}),  # AH and ESP follow it
        (50, 80, set()),  # no packet opens a connection
        (250, 80, set()),
    ],
)
def test_what_is_diverted(world, protocol, port, entries):
    """Whatever protocol a control program names (ip_vs takes any), the service is made."""
    world.server(world.service(VIP, port, protocol), RIP[1], 8080)
    assert {(e.set, e.port) for e in (element.entry() for element in held(world))} == entries


def test_until_the_last_connection_is_gone(world):
    svc = world.service()
    world.server(svc, RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.ipvs.services.del_service(svc.key)
    assert held(world) == {SERVICE, SERVER[1]}
    svc = world.service()  # and back, with its connection
    world.server(svc, RIP[1])
    world.pass_time(61)
    assert held(world) == {SERVICE, SERVER[1]}
    world.ipvs.services.del_service(svc.key)
    assert held(world) == set()
    assert world.diverted._stale == []


def test_another_method(world):
    svc = world.service()
    world.server(svc, RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    for method, there in ((DROUTE, {SERVICE, SERVER[1]}), (MASQ, {SERVICE, SERVER[1]}), (DROUTE, {SERVICE})):
        world.edit(svc, RIP[1], fwd=method)
        if there == {SERVICE}:
            world.pass_time(61)
        assert held(world) == there


def test_the_record_of_a_freed_server_is_not_looked_at(world):
    """Its place may be another's, whose connections are nothing to the element."""
    svc = world.service()
    other = world.service(VIP, 81)
    records = {world.server(svc, RIP[i]).rec.index for i in (1, 2)}
    for port in (1024, 1025):
        world.local_in(tcp(CIP, port, VIP, 80))
    world.local_in(tcp(CIP, 1024, VIP, 80, "A"))  # one stays
    world.ipvs.services.del_service(svc.key)
    world.pass_time(61)
    assert held(world) >= {SERVICE}
    for _ in range(4):
        world.now += 61 * 10**9
        world.ipvs.services.expire_trash(world.now)
    (freed,) = records - {d.index for d in world.table.dests()}
    assert world.server(other, RIP[3], 80).rec.index == freed
    world.pass_time(901)
    world.local_in(tcp(CIP, 1025, VIP, 81))
    assert SERVICE not in held(world)


def test_servers_of_a_fwmark_service_answer_from_where_the_connections_say(world):
    """DR: by virtual address and port, while the server has a connection; NAT servers answer as themselves."""
    world.ipvs.answers_from = world.diverted.answers_from
    svc = world.service(fwmark=7)
    world.server(svc, RIP[1], fwd=DROUTE)
    world.local_in(tcp(CIP, 1024, VIP, 80), mark=7)
    world.local_in(tcp(CIP, 1025, VIP, 80), mark=7)
    answer = Element("answer", AF_INET, 6, packed(VIP), 80)
    assert held(world) == {Element("mark", AF_INET, mark=7), answer}
    assert world.paper.held[answer] == 1
    again = Paper()
    Diverted(world.ipvs.services, again).adopt()
    assert again.held[answer] == 1, "after a restart too"
    world.ipvs.services.del_service(svc.key)
    assert answer in held(world)
    world.pass_time(1000)
    assert held(world) == set()


def test_a_nat_server_of_a_fwmark_service_answers_as_itself(world):
    world.ipvs.answers_from = world.diverted.answers_from
    world.server(world.service(fwmark=7), RIP[1], fwd=MASQ)
    world.local_in(tcp(CIP, 1024, VIP, 80), mark=7)
    assert {element.kind for element in held(world)} == {"mark", "server"}
