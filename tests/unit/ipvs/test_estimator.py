"""Rates and counters as they are shown; the rows marked 6.1 are what that kernel's `ipvsadm --rate` said."""

import pytest
from support.world import CIP, RIP, VIP, tcp

from uvs.ipvs.estimator import AT_ONCE, PERIOD_NS, ROW_NS, ROWS, ZERO, Estimator, Rows


def run(*steps):
    """An estimator after intervals in which so many (connections, bytes) came; its rates after each."""
    est, total, shown = Estimator(), [0, 0], []
    for conns, octets in steps:
        total = [total[0] + conns, total[1] + octets]
        est.sample((total[0], total[0], 0, total[1], 0))
        shown.append((est.rates[0], est.rates[3]))
    return shown


QUIET = (0, 0)


@pytest.mark.parametrize(
    ("steps", "cps", "bps"),
    [
        # 6.1: a probe, then 100 connections of 40 bytes in one interval
        (
            [(1, 40), QUIET, (100, 4000), *[QUIET] * 12],
            [0, 0, 13, 9, 7, 5, 4, 3, 2, 2, 1, 1, 1, 1, 0],
            [5, 4, 503, 377, 283, 212, 159, 119, 89, 67, 50, 38, 28, 21, 16],
        ),
        # 6.1: 74 that came while estimation was off count as two seconds' worth
        ([(74, 2960), QUIET, QUIET], [9, 7, 5], [370, 277, 208]),
        # a steady rate is reached from below, a little of it short
        ([(100, 10**6)] * 40, None, None),
        ([(1, 1)], [0], [0]),
    ],
)
def test_rates(steps, cps, bps):
    shown = run(*steps)
    if cps is None:
        assert [rate for rate, _ in shown] == sorted(rate for rate, _ in shown)
        assert shown[-1] == (50, 499_995)
        return
    assert [rate for rate, _ in shown] == cps
    assert [rate for _, rate in shown] == bps


def test_counters_are_64_bits_wide():
    est = Estimator()
    big = (2**40, 2**41, 2**42, 2**62, 2**63 - 1)
    est.sample(big)
    assert est.counters == big
    assert est.zero() == big
    est.sample((1, 1, 1, 1, 1))
    assert est.counters == (1, 1, 1, 1, 1)
    assert est.rates == ZERO


def test_zero_counts_from_the_snapshot():
    """What came after the last snapshot is counted after the zeroing (ip_vs_zero_stats)."""
    est = Estimator()
    est.sample((10, 10, 10, 400, 400))
    assert est.zero() == (10, 10, 10, 400, 400)  # what is counted is less by that from now on
    assert (est.counters, est.rates) == (ZERO, ZERO)
    est.sample((64, 64, 0, 2560, 0))
    assert est.counters == (64, 64, 0, 2560, 0)
    assert est.rates[0] == 8


def test_what_an_earlier_run_counted_is_no_rate():
    est = Estimator((100, 100, 100, 4000, 4000))
    est.sample((100, 100, 100, 4000, 4000))
    assert est.counters == (100, 100, 100, 4000, 4000)
    assert est.rates == ZERO


@pytest.mark.parametrize(("name", "off", "on"), [("run_estimation", "0", "-1"), ("est_cpulist", "", "0")])
def test_switched_off_everything_stands(world, name, off, on):
    services, svc = world.ipvs.services, world.service()
    dest = world.server(svc, RIP[1])

    def syns(first, count):
        for port in range(first, first + count):
            world.local_in(tcp(CIP, port, VIP, 80))

    syns(1024, 100)
    services.estimate()
    shown = [(o.counters, o.rates) for o in (svc.est, dest.est, services.total)]
    assert shown == [((100, 100, 0, 4000, 0), (12, 12, 0, 500, 0))] * 3
    world.ipvs.sysctl.set(name, off)
    syns(2000, 64)
    services.estimate()
    assert [(o.counters, o.rates) for o in (svc.est, dest.est, services.total)] == shown
    services.zero(svc.key)
    assert [o.counters[0] for o in (svc.est, dest.est, services.total)] == [0, 0, 100]
    syns(3000, 10)
    services.estimate()
    world.ipvs.sysctl.set(name, on)
    services.estimate()
    assert [o.counters[0] for o in (svc.est, dest.est, services.total)] == [74, 74, 174]
    assert svc.est.rates == dest.est.rates == (9, 9, 0, 370, 0)


def test_a_deleted_server_keeps_what_it_had(world):
    """In the trash its rates stand; added again it goes on with them and its counters (6.1)."""
    services, svc = world.ipvs.services, world.service()
    dest = world.server(svc, RIP[1])
    for port in range(1024, 1064):
        world.local_in(tcp(CIP, port, VIP, 80))
    services.estimate()
    assert dest.est.rates[:2] == svc.est.rates[:2] == (5, 5)
    world.delete(svc, RIP[1])
    services.estimate()
    services.estimate()
    dest = world.server(svc, RIP[1])
    assert (dest.est.counters[0], dest.est.rates[0], svc.est.rates[0]) == (40, 5, 3)
    services.estimate()
    assert (dest.est.counters[0], dest.est.rates[0]) == (40, 4)


class Ticking:
    """Counts a connection a millisecond of its clock, and notes when it is asked."""

    def __init__(self):
        self.now, self.asked = 0, []

    @property
    def stats(self):
        self.asked.append(self.now)
        return (self.now // 10**6, 0, 0, 0, 0)


def spread(count, counted):
    rows, ests = Rows(0), [Estimator() for _ in range(count)]
    for est in ests:
        rows.add(est, counted)
    return rows, ests


def test_each_has_its_turn_every_two_seconds():
    """In whatever row; the rates are the formula's, as if there were no rows."""
    sources = [Ticking() for _ in range(200)]
    rows, ests = Rows(0), [Estimator() for _ in sources]
    for est, source in zip(ests, sources, strict=True):
        rows.add(est, source)
    for now in range(0, 10 * 10**9, ROW_NS):
        for source in sources:
            source.now = now
        for _ in rows.due(now):
            pass
    firsts = set()
    for est, source in zip(ests, sources, strict=True):
        first, *later = source.asked
        assert source.asked == [first + i * PERIOD_NS for i in range(5)]
        firsts.add(first)
        alone = Estimator()
        for at in source.asked:
            alone.sample((at // 10**6, 0, 0, 0, 0))
        assert est.rates == alone.rates
        assert later
    assert len(firsts) == 4, "as many as fill rows of 64"


@pytest.mark.parametrize(("count", "in_a_row"), [(1, 1), (64, 64), (65, 64), (5000, 250)])
def test_many_are_spread_evenly_and_few_are_together(count, in_a_row):
    counted = Ticking()
    rows, _ = spread(count, counted)
    sizes = []
    for now in range(0, PERIOD_NS, ROW_NS):
        counted.asked.clear()
        steps = sum(1 for _ in rows.due(now))
        assert steps == len(counted.asked) // AT_ONCE, "others may come between"
        sizes.append(len(counted.asked))
    assert (max(sizes), sum(sizes), len(sizes)) == (in_a_row, count, ROWS)


@pytest.mark.parametrize(
    ("late", "asked"), [(0.1, 1), (0.35, 3), (1.95, 19), (2.0, 20), (60.0, 20), (3600.05, 20)]
)
def test_turns_that_were_missed_come_late_but_not_twice(late, asked):
    counted = Ticking()
    rows, _ = spread(5000, counted)
    for _ in rows.due(0):
        pass
    counted.asked.clear()
    now = int(late * 10**9)
    for _ in rows.due(now):
        pass
    assert len(counted.asked) == 250 * asked
    counted.asked.clear()
    for _ in rows.due(now + ROW_NS):
        pass
    assert len(counted.asked) == 250


def test_turns_do_not_overtake_each_other():
    """What comes while the last is under way waits for it."""
    counted = Ticking()
    rows, _ = spread(5000, counted)
    steps = rows.due(0)
    next(steps)
    assert list(rows.due(ROW_NS)) == []
    assert len(counted.asked) == AT_ONCE
    list(steps)
    assert len(counted.asked) == 250
    list(rows.due(2 * ROW_NS))
    assert len(counted.asked) == 750
    next(rows.due(3 * ROW_NS))  # given up
    list(rows.due(4 * ROW_NS))
    assert len(counted.asked) == 750 + AT_ONCE + 250


def test_one_that_goes_between_two_steps_is_not_asked():
    """Its record may be another's by then."""
    counted = Ticking()
    rows, ests = spread(64 * ROWS * 4, counted)
    steps = rows.due(0)
    next(steps)
    for est in ests[AT_ONCE:]:
        rows.remove(est)
    for _ in steps:
        pass
    assert (len(counted.asked), len(rows)) == (AT_ONCE, AT_ONCE)


def test_a_director_samples_what_is_there(world):
    """Services and servers come into rows and leave them."""
    services, svc = world.ipvs.services, world.service()
    dest = world.server(svc, RIP[1])
    assert len(services.rows) == 3
    world.local_in(tcp(CIP, 1024, VIP, 80))
    for _ in range(ROWS):
        world.pass_time(0.1)
        for _ in services.estimating():
            pass
    assert [o.counters[0] for o in (svc.est, dest.est, services.total)] == [1, 1, 1]
    services.del_service(svc.key)
    assert len(services.rows) == 1
