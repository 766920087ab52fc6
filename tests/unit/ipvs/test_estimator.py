"""Rates and counters as they are shown; the rows marked 6.1 are what that kernel's `ipvsadm --rate` said."""

import pytest
from support.world import CIP, RIP, VIP, tcp

from uvs.ipvs.estimator import ZERO, Estimator


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
    est.zero()
    est.sample(tuple(n + 1 for n in big))
    assert est.counters == (1, 1, 1, 1, 1)
    assert est.rates == ZERO


def test_zero_counts_from_the_snapshot():
    """What came after the last snapshot is counted after the zeroing (ip_vs_zero_stats)."""
    est = Estimator()
    est.sample((10, 10, 10, 400, 400))
    est.zero()
    assert (est.counters, est.rates) == (ZERO, ZERO)
    est.sample((74, 74, 10, 2960, 400))
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
