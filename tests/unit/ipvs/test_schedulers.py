"""Schedulers: the order of choice, ties, edits, additions and deletions in mid-sequence."""

import pytest
from support.world import RIP, World

from uvs.engine.core import Header
from uvs.ipvs import scheduling

ANY = Header()


@pytest.fixture
def world():
    w = World()
    yield w
    w.close()


def build(world, sched, weights):
    """A service whose list order is A, B, C (the newest destination comes first)."""
    svc = world.service(sched=sched)
    for name, weight in reversed(list(zip("ABC", weights, strict=False))):
        world.server(svc, RIP["ABC".index(name) + 1], weight=weight)
    return svc


def choose(svc, n):
    names = {RIP[i + 1]: "ABC"[i] for i in range(3)}
    out = ""
    for _ in range(n):
        dest = svc.scheduler.schedule(ANY)
        out += names[str(".".join(map(str, dest.spec.addr)))] if dest else "-"
    return out


def test_found_by_name():
    assert scheduling.names() == ["lc", "rr", "wlc", "wrr"]
    assert all(scheduling.find(n).name == n for n in scheduling.names())
    assert scheduling.find("none") is None
    assert scheduling.find("../core") is None


@pytest.mark.parametrize(
    ("weights", "first"),
    [
        # A service built server by server starts with the cw left over from building (1 here).
        ((4, 3, 2), "ABC" + "AABABCABC" * 2),
        ((10, 5), "AB" + "AAB" * 3),
        ((5, 0, 1), "AC" + "AAAAAC" * 2),
        ((4, 2, 2), "ABC" + "AABC" * 3),
        ((1, 1, 1), "ABC" * 3),
        ((0, 0, 0), "----"),
        ((0, 7, 0), "BBBB"),
    ],
)
def test_wrr_sequences(world, weights, first):
    assert choose(build(world, "wrr", weights), len(first)) == first


def test_wrr_starts_again_after_an_edit(world):
    svc = build(world, "wrr", (4, 3, 2))
    choose(svc, 5)
    world.edit(svc, RIP[2], weight=1)
    assert svc.scheduler.cl is None
    assert (svc.scheduler.di, svc.scheduler.mw) == (1, 4)


def test_wrr_overloaded_servers_are_passed_over(world):
    svc = build(world, "wrr", (2, 1, 1))
    choose(svc, 3)
    svc.dests[0].rec.flags |= 2
    assert choose(svc, 4) in ("BCBC", "CBCB")
    for dest in svc.dests:
        dest.rec.flags |= 2
    assert choose(svc, 3) == "---"


def test_rr_goes_round_in_list_order(world):
    svc = build(world, "rr", (1, 5, 1))
    assert choose(svc, 7) == "ABCABCA"


def test_rr_passes_over_weight_0_and_overload(world):
    svc = build(world, "rr", (1, 0, 1))
    assert choose(svc, 4) == "ACAC"
    svc.dests[0].rec.flags |= 2
    assert choose(svc, 3) == "CCC"


def test_rr_delete_of_the_last_chosen_falls_back_to_its_predecessor(world):
    svc = build(world, "rr", (1, 1, 1))
    assert choose(svc, 2) == "AB"
    world.delete(svc, RIP[2])
    assert choose(svc, 3) == "CAC"


def test_rr_a_new_server_is_served_after_wrap_around(world):
    svc = world.service(sched="rr")
    world.server(svc, RIP[2])
    world.server(svc, RIP[1])
    assert choose(svc, 1) == "A"
    world.server(svc, RIP[3])  # at the head: C A B
    assert choose(svc, 4) == "BCAB"


def test_rr_without_servers(world):
    svc = world.service(sched="rr")
    assert choose(svc, 2) == "--"


@pytest.mark.parametrize(
    ("sched", "weights", "load", "chosen"),
    [
        # (active, inactive) of A, B, C; an active connection counts 256 inactive ones
        ("lc", (1, 1, 1), ((0, 0), (0, 0), (0, 0)), "A"),
        ("lc", (1, 9, 1), ((1, 0), (1, 0), (0, 255)), "C"),
        ("lc", (1, 1, 1), ((1, 0), (0, 256), (2, 0)), "A"),
        ("lc", (0, 1, 1), ((0, 0), (2, 0), (1, 1)), "C"),
        ("wlc", (1, 3, 1), ((0, 0), (0, 0), (0, 0)), "A"),
        ("wlc", (1, 3, 1), ((1, 0), (0, 0), (9, 0)), "B"),
        ("wlc", (1, 3, 1), ((1, 0), (2, 0), (9, 0)), "B"),
        ("wlc", (1, 3, 1), ((1, 0), (3, 0), (9, 0)), "A"),
        ("wlc", (0, 3, 1), ((0, 0), (3, 0), (1, 0)), "B"),
        ("wlc", (0, 0, 0), ((0, 0), (0, 0), (0, 0)), "-"),
    ],
)
def test_least_connection(world, sched, weights, load, chosen):
    svc = build(world, sched, weights)
    for dest, (active, inactive) in zip(svc.dests, load, strict=True):
        dest.rec.activeconns, dest.rec.inactconns = active, inactive
    assert choose(svc, 1) == chosen
    for dest in svc.dests:
        dest.rec.activeconns = dest.rec.inactconns = 0
