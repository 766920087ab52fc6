"""The defence strategies: what each knob drops, and how the automatic ones turn themselves."""

import pytest
from support.world import CIP, RIP, VIP, S, tcp, udp

from uvs.engine.core import Why


def reasons(world, n, first=1024):
    return [world.local_in(tcp(CIP, first + i, VIP, 80)).why for i in range(n)]


def test_drop_packet_always_drops_one_in_am_droprate(world):
    world.server(world.service(), RIP[1])
    world.ipvs.sysctl.set("am_droprate", 3)
    world.ipvs.sysctl.set("drop_packet", 3)
    seen = reasons(world, 9)
    assert [why == Why.DROP_RATE for why in seen] == [True, False, False] * 3
    # neither what has a connection nor what has no service is touched
    assert world.local_in(tcp(CIP, 1025, VIP, 80, "A")).why == Why.FORWARDED
    assert world.local_in(tcp(CIP, 1, VIP, 81)).why == Why.NO_SERVICE
    world.ipvs.sysctl.set("drop_packet", 0)
    assert set(reasons(world, 9, 3000)) == {Why.FORWARDED}


def test_drop_packet_automatic_follows_the_memory(world):
    """rate = amemthresh / (amemthresh - available)"""
    world.server(world.service(), RIP[1])
    sysctl, defence = world.ipvs.sysctl, world.ipvs.defence
    sysctl.set("amemthresh", 1000)
    sysctl.set("drop_packet", 1)
    assert (sysctl.drop_packet, defence.drop_rate) == (1, 0)
    defence.run(world.now, 900)
    assert (sysctl.drop_packet, defence.drop_rate) == (2, 10)
    assert [why == Why.DROP_RATE for why in reasons(world, 20)] == ([False] * 9 + [True]) * 2
    defence.run(world.now, 1000)
    assert (sysctl.drop_packet, defence.drop_rate) == (1, 0)


@pytest.mark.parametrize("knob", ["drop_entry", "secure_tcp"])
@pytest.mark.parametrize(
    ("value", "available", "becomes", "on"),
    [(0, 10, 0, False), (1, 10, 2, True), (2, 10, 2, True), (2, 5000, 1, False), (3, 5000, 3, True)],
)
def test_the_automatic_knobs_turn_themselves(world, knob, value, available, becomes, on):
    sysctl, defence = world.ipvs.sysctl, world.ipvs.defence
    sysctl.set(knob, value)
    defence.run(world.now, available)
    assert getattr(sysctl, knob) == becomes
    if knob == "drop_entry":
        assert defence.drop_entry is on
    else:
        # secure_tcp: the client's ACK alone establishes nothing
        world.server(world.service(), RIP[1])
        world.local_in(tcp(CIP, 1024, VIP, 80))
        world.local_in(tcp(CIP, 1024, VIP, 80, "A"))
        assert world.entries[0][0] == ("SYN_RECV" if on else "ESTABLISHED")


def sweep(world):
    """As many looks as see every record once: each sees one in 32, from the given one on."""
    used = sum(world.table.info()[k] for k in ("conns", "templates", "dests", "services"))
    window = -(-used // 32)
    return sum(world.table.drop_entry(world.now, start) for start in range(0, used, window))


def test_drop_entry_half_open_goes_established_stays(world):
    world.server(world.service(), RIP[1])
    for i in range(40):
        world.local_in(tcp(CIP, 1024 + i, VIP, 80))
        if i < 10:
            world.forward(tcp(RIP[1], 80, CIP, 1024 + i, "SA"))
            world.local_in(tcp(CIP, 1024 + i, VIP, 80, "A"))
    assert sweep(world) == 30
    assert [state for state, _ in world.entries] == ["ESTABLISHED"] * 10
    world.now += 59 * S
    assert sweep(world) == 0, "refreshed within the last minute"


@pytest.mark.parametrize(("packets", "share"), [(1, 24), (2, 12), (8, 3), (9, 0)])
def test_drop_entry_of_those_with_few_packets_one_in_as_many(world, packets, share):
    """UDP: once a minute old, one of every in_pkts goes; nine packets are safe."""
    world.server(world.service(VIP, 53, 17), RIP[1], 53)
    for i in range(24):
        for _ in range(packets):
            world.local_in(udp(CIP, 1024 + i, VIP, 53))
    assert sweep(world) == 0
    world.now += 60 * S
    assert sweep(world) == share


def test_drop_entry_templates(world):
    """A template that no connection assured goes with its connection; an assured one stays."""
    svc = world.service(flags=1, timeout=300)
    world.server(svc, RIP[1])
    world.local_in(tcp(CIP, 1024, VIP, 80))
    world.local_in(tcp("10.9.0.2", 1024, VIP, 80))
    world.forward(tcp(RIP[1], 80, "10.9.0.2", 1024, "SA"))
    world.local_in(tcp("10.9.0.2", 1024, VIP, 80, "A"))
    assert [state for state, _ in world.entries] == ["ASSURED", "ESTABLISHED", "NONE", "SYN_RECV"]
    assert sweep(world) == 1
    assert [state for state, _ in world.entries] == ["ASSURED", "ESTABLISHED"]
