"""Schedulers: the order of choice, ties, edits, additions and deletions in mid-sequence."""

from types import SimpleNamespace

import pytest
from support.packets import loaded
from support.world import RIP, packed, tcp, udp

from uvs.engine.core import Header
from uvs.ipvs import scheduling
from uvs.ipvs.scheduling import hashing, mh

ANY = Header()


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
    assert " ".join(scheduling.names()) == "dh fo lblc lblcr lc mh nq ovf rr sed sh twos wlc wrr"
    assert all(scheduling.find(n).name == n for n in scheduling.names())
    assert scheduling.find("none") is None
    assert scheduling.find("hashing") is None
    assert scheduling.find("locality") is None
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
    assert svc.scheduler.sched.last == 0
    assert (svc.scheduler.sched.di, svc.scheduler.sched.mw) == (1, 4)


def test_wrr_overloaded_servers_are_passed_over(world):
    svc = build(world, "wrr", (2, 1, 1))
    choose(svc, 3)
    svc.dests[0].rec.flags |= 2
    assert choose(svc, 4) in ("BCBC", "CBCB")
    for dest in svc.dests:
        dest.rec.flags |= 2
    assert choose(svc, 3) == "---"


def test_sh_table_of_huge_weights_is_no_larger(world):
    """ipvsadm takes weights up to 2^31 - 1."""
    svc = build(world, "sh", (3, 0x7FFFFFFF, 1))
    assert [svc.dests.index(d) for d in svc.scheduler.table] == [0] * 3 + [1] * 253


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
        # inactive ones do not count; the connection to come does
        ("sed", (1, 1, 1), ((1, 9), (0, 99), (0, 0)), "B"),
        ("sed", (1, 3, 1), ((0, 0), (1, 0), (0, 0)), "B"),
        ("sed", (1, 3, 1), ((0, 0), (2, 0), (0, 0)), "A"),
        ("sed", (0, 1, 0), ((0, 0), (9, 0), (0, 0)), "B"),
        # an idle one first, whatever its weight
        ("nq", (1, 9, 1), ((1, 0), (1, 0), (0, 50)), "C"),
        ("nq", (1, 9, 1), ((1, 0), (1, 0), (1, 0)), "B"),
        ("nq", (1, 9, 0), ((1, 0), (1, 0), (0, 0)), "B"),
        ("fo", (1, 9, 9), ((0, 0), (99, 0), (0, 0)), "B"),
        ("fo", (0, 0, 0), ((0, 0), (0, 0), (0, 0)), "-"),
        # active connections up to the weight, and one more
        ("ovf", (2, 3, 1), ((0, 0), (3, 9), (0, 0)), "B"),
        ("ovf", (2, 3, 1), ((0, 0), (4, 0), (0, 0)), "A"),
        ("ovf", (2, 3, 0), ((3, 0), (4, 0), (0, 0)), "-"),
    ],
)
def test_least_connection(world, sched, weights, load, chosen):
    svc = build(world, sched, weights)
    for dest, (active, inactive) in zip(svc.dests, load, strict=True):
        dest.rec.activeconns, dest.rec.inactconns = active, inactive
    assert choose(svc, 1) == chosen
    for dest in svc.dests:
        dest.rec.activeconns = dest.rec.inactconns = 0


def header(source, destination="198.18.0.100", sport=1024, protocol=6):
    """A header as the parser gives it."""
    pkt = loaded((tcp if protocol == 6 else udp)(source, sport, destination, 80))
    return pkt.iph


@pytest.mark.parametrize(
    ("addr", "plain", "with_port", "ten_bits"),
    [
        ("10.0.0.1", 39, 73, 159),
        ("192.168.1.5", 16, 50, 64),
        ("203.0.113.77", 57, 91, 230),
        ("2001:db8::1", 63, 97, 252),
    ],
)
def test_hash_32(addr, plain, with_port, ten_bits):
    folded = hashing.fold(packed(addr))
    assert hashing.hash_32(folded, 8) == plain
    assert hashing.hash_32(folded + 1024 & 0xFFFFFFFF, 8) == with_port
    assert hashing.hash_32(folded, 10) == ten_bits


def test_maglev_hash_and_permutations():
    client = packed("192.168.1.5")
    assert mh.hash_of(client, 0, mh.KEY_1) == 0xF3E678E9
    assert mh.hash_of(client, 54321, mh.KEY_1) == 0x03303C46
    for addr, offset, skip in (("10.0.0.10", 910, 3575), ("10.0.0.11", 4032, 1541), ("10.0.0.12", 870, 874)):
        assert mh.hash_of(packed(addr), 80, mh.KEY_1) % mh.SIZE == offset
        assert mh.hash_of(packed(addr), 80, mh.KEY_2) % (mh.SIZE - 1) + 1 == skip


def maglev(world, weights=(1, 1, 1)):
    """10.0.0.10, .11, .12 added in this order: the list is .12, .11, .10."""
    svc = world.service(sched="mh")
    for last, weight in zip((10, 11, 12), reversed(weights), strict=True):
        world.server(svc, f"10.0.0.{last}", weight=weight)
    return svc


def test_maglev_table(world):
    svc = maglev(world)
    order = [svc.dests.index(d) for d in svc.scheduler.table]
    assert [order.count(i) for i in range(3)] == [1365, 1364, 1364]
    assert order[:24] == [2, 2, 1, 1, 0, 0, 1, 1, 2, 0, 0, 1, 1, 2, 0, 0, 2, 1, 2, 0, 1, 2, 0, 0]
    assert svc.scheduler.schedule(header("192.168.1.5")).spec.addr == packed("10.0.0.10")


def test_maglev_weights(world):
    svc = maglev(world, (1, 2, 4))
    assert [svc.scheduler.table.count(d) for d in svc.dests] == [585, 1170, 2338]


def test_maglev_a_quiesced_server_keeps_its_slots(world):
    svc = maglev(world)
    before = list(svc.scheduler.table)
    world.edit(svc, "10.0.0.10", weight=0)
    assert svc.scheduler.table == before
    assert svc.scheduler.schedule(header("192.168.1.5")) is None
    svc.spec.flags |= 8  # mh-fallback
    assert svc.scheduler.schedule(header("192.168.1.5")).spec.addr in (
        packed("10.0.0.11"),
        packed("10.0.0.12"),
    )


def test_source_hashing(world):
    svc = build(world, "sh", (2, 0, 1))
    assert [d.spec.addr[3] for d in svc.scheduler.table[:8]] == [11, 11, 12, 13, 11, 11, 12, 13]
    assert len(svc.scheduler.table) == 256
    for client in ("10.0.0.1", "192.168.1.5", "203.0.113.77"):
        at = hashing.hash_32(hashing.fold(packed(client)), 8)
        expected = svc.scheduler.table[at]
        chosen = svc.scheduler.schedule(header(client))
        assert chosen is (expected if expected.weight else None)
        svc.spec.flags |= 8  # sh-fallback: somebody takes it
        assert svc.scheduler.schedule(header(client)).weight
        svc.spec.flags &= ~8
    svc.spec.flags |= 16  # sh-port
    chosen = {svc.scheduler.schedule(header("10.0.0.1", sport=port)) for port in range(1024, 1124)}
    assert len(chosen) == 3  # A, C and nobody


def test_destination_hashing(world):
    svc = build(world, "dh", (1, 1, 0))
    assert [d.spec.addr[3] for d in svc.scheduler.table[:4]] == [11, 12, 13, 11]
    seen = {svc.scheduler.schedule(header("10.0.0.1", f"198.18.7.{i}")) for i in range(64)}
    assert seen == {svc.dests[0], svc.dests[1], None}


@pytest.mark.parametrize(
    ("picks", "active", "chosen"),
    [((0, 1), (0, 0, 0), "A"), ((1, 2), (0, 0, 0), "A"), ((2, 6), (0, 5, 0), "C"), ((4, 4), (0, 9, 0), "B")],
)
def test_two_choices(world, monkeypatch, picks, active, chosen):
    svc = build(world, "twos", (1, 3, 2))
    numbers = iter(picks)
    monkeypatch.setattr(svc.scheduler, "pick", lambda total: next(numbers))
    for dest, n in zip(svc.dests, active, strict=True):
        dest.rec.activeconns = n
    assert choose(svc, 1) == chosen
    for dest in svc.dests:
        dest.rec.activeconns = 0


SECOND = 10**9


def cached(svc, address):
    """Who serves a destination address, and who is in its set."""
    entry = svc.scheduler.bucket(packed(address)).get(packed(address))
    names = {RIP[i + 1]: "ABC"[i] for i in range(3)}
    dests = [] if entry is None else getattr(entry, "members", None) or [entry.dest]
    return "".join(names[".".join(map(str, d.spec.addr))] for d in dests)


def send(svc, address):
    dest = svc.scheduler.schedule(header("10.0.0.1", address))
    return "-" if dest is None else "ABC"[svc.dests.index(dest)]


def load(svc, *active):
    for dest, n in zip(svc.dests, active, strict=True):
        dest.rec.activeconns = n


@pytest.mark.parametrize("sched", ["lblc", "lblcr"])
def test_locality(world, sched):
    """An address stays with its server, also under more load than others; a new one goes to the least loaded."""
    svc = build(world, sched, (10, 10, 10))
    assert send(svc, "198.18.1.1") == "A"
    load(svc, 9, 0, 0)
    assert send(svc, "198.18.1.1") == "A"
    assert send(svc, "198.18.1.2") == "B"
    # more than its weight, and another has less than half of its own
    load(svc, 11, 5, 5)
    assert send(svc, "198.18.1.1") == "A"
    load(svc, 11, 4, 5)
    assert send(svc, "198.18.1.1") == "B"
    assert cached(svc, "198.18.1.1") == ("B" if sched == "lblc" else "BA")
    load(svc, 0, 0, 0)


@pytest.mark.parametrize("sched", ["lblc", "lblcr"])
def test_locality_quiesced_and_deleted_servers(world, sched):
    svc = build(world, sched, (1, 1, 1))
    assert send(svc, "198.18.1.1") == "A"
    world.edit(svc, RIP[1], weight=0)
    assert send(svc, "198.18.1.1") == "B"
    world.delete(svc, RIP[2])
    assert send(svc, "198.18.1.1") == "B"  # C, now second in the list
    assert cached(svc, "198.18.1.1")[0] == "C"
    for dest in svc.dests:
        dest.rec.weight = 0
    assert send(svc, "198.18.1.1") == "-"


def test_lblc_does_not_ask_the_cached_server_for_overload(world):
    svc = build(world, "lblc", (1, 1, 1))
    assert send(svc, "198.18.1.1") == "A"
    svc.dests[0].rec.flags |= 2
    assert send(svc, "198.18.1.1") == "A"
    assert send(svc, "198.18.1.2") == "B"


def test_lblcr_a_set_shrinks_by_its_most_loaded_member(world):
    world.ipvs.sysctl.set("lblcr_expiration", 100)
    svc = build(world, "lblcr", (10, 10, 10))
    send(svc, "198.18.1.1")
    load(svc, 11, 0, 0)
    send(svc, "198.18.1.1")
    assert cached(svc, "198.18.1.1") == "BA"
    world.now += 100 * SECOND
    send(svc, "198.18.1.1")
    assert cached(svc, "198.18.1.1") == "BA"  # not older than that
    world.now += 1
    send(svc, "198.18.1.1")
    assert cached(svc, "198.18.1.1") == "B"
    load(svc, 0, 0, 0)


@pytest.mark.parametrize("sched", ["lblc", "lblcr"])
def test_locality_forgets_what_is_unused_at_every_thirtieth_look(world, sched):
    world.ipvs.sysctl.set(f"{sched}_expiration", 600)
    svc = build(world, sched, (1, 1, 1))
    send(svc, "198.18.1.1")
    for look in range(1, 31):
        assert cached(svc, "198.18.1.1") == "A", look
        if look == 25:
            send(svc, "198.18.1.2")
        world.now += 60 * SECOND
        world.ipvs.services.tick_schedulers(world.now)
    assert cached(svc, "198.18.1.1") == ""
    assert cached(svc, "198.18.1.2") == "A"
    assert svc.scheduler.entries == 1


def test_locality_collects_when_there_are_too_many(world):
    svc = build(world, "lblc", (1, 1, 1))
    for i in range(17_000):
        address = (0x0A000000 + i).to_bytes(4, "big")
        svc.scheduler.bucket(address)[address] = SimpleNamespace(dest=svc.dests[0], lastuse=SECOND)
        svc.scheduler.entries += 1
    world.now += 400 * SECOND
    world.ipvs.services.tick_schedulers(world.now)
    goal = (17_000 - 16_384) * 4 // 3
    assert 17_000 - svc.scheduler.entries >= goal
    assert 17_000 - svc.scheduler.entries < goal + 60  # a bucket at a time
