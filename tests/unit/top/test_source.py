"""A director asked again and again: one that goes away and comes back, one that refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.control import running
from support.world import CIP, MASQ, RIP, VIP, tcp

from uvs.control.client import Unreachable
from uvs.top.source import Source, rest


def test_what_it_asks(tmp_path: Path) -> None:
    with running(tmp_path) as director:

        def traffic() -> None:
            w = director.world
            web, other = w.service(VIP), w.service("198.18.0.99")
            for svc, rip in ((web, RIP[2]), (web, RIP[1]), (other, RIP[1])):
                w.server(svc, rip, 80, MASQ)
            w.local_in(tcp(CIP, 1024, VIP, 80))

        director.do(traffic)
        director.ipvs.queues = lambda: [{"queue": 3}]
        source = Source(director.path)
        first, second = source.take(), source.take()
        source.close()
    assert (first.first, second.first) == (True, False)
    assert second.at >= first.at + first.took
    assert [len(servers) for _, servers in first.services] == [1, 2]
    addresses = [server.spec.addr for server in first.services[1][1]]
    assert addresses == sorted(addresses)
    assert first.reasons["forwarded"] == 1
    assert first.queues == [{"queue": 3}]
    assert (first.table["conns"], first.table["dests"]) == (1, 3)


def test_a_director_that_goes_and_comes_back(tmp_path: Path) -> None:
    source = Source(str(tmp_path / "control.sock"))
    with pytest.raises(Unreachable, match="no director listens"):
        source.take()
    for _ in range(2):
        with running(tmp_path):
            assert source.take().first
            assert not source.take().first
        with pytest.raises(Unreachable):
            source.take()


# seconds between looks, seconds an answer took, seconds until the next question
@pytest.mark.parametrize(
    ("interval", "took", "pause"), [(2, 0.1, 1.9), (2, 0.5, 1.5), (2, 1, 3), (0.1, 4, 12)]
)
def test_a_director_has_three_quarters_of_its_time_for_others(
    interval: float, took: float, pause: float
) -> None:
    assert rest(interval, took) == pytest.approx(pause)
