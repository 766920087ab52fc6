"""The configuration that rules a director: checks begin and end with it, reloads come one by one."""

from __future__ import annotations

import asyncio

import pytest
from support.ruled import GOOD
from support.world import World

from uvs.config import load as loading
from uvs.errors import UserError
from uvs.layers import Layers
from uvs.rule import Rule

CHECKED = GOOD + '\n[[service.server.check]]\ntype = "ping"\ninterval = 3600\n'
OWN = CHECKED + '\n[monitor]\nprocess = "own"\n'


@pytest.fixture
def world():
    it = World()
    yield it
    it.close()


def rule_of(tmp_path, world, text=GOOD):
    path = tmp_path / "uvs.toml"
    path.write_text(text)
    rule = Rule(str(path))
    rule.begin(world.ipvs, Layers(world.ipvs.services))
    return rule, path


def test_checks_begin_and_end_with_the_configuration(tmp_path, world):
    async def story():
        rule, path = rule_of(tmp_path, world)
        rule.watch()
        assert rule.monitor is None
        path.write_text(CHECKED)
        assert await rule.reloading() == []
        async with asyncio.timeout(60):
            while rule.monitor is None:
                await asyncio.sleep(0.01)
        path.write_text(OWN)
        await rule.reloading()
        assert rule.monitor is None
        path.write_text(CHECKED)
        await rule.reloading()
        async with asyncio.timeout(60):
            while rule.monitor is None:
                await asyncio.sleep(0.01)
        monitor = rule.monitor
        path.write_text(CHECKED.replace("3600", "1800"))
        await rule.reloading()
        assert rule.monitor is monitor
        assert monitor.config is rule.config
        await rule.close()
        assert rule.monitor is None

    asyncio.run(story())


def test_of_many_hang_ups_one_waits_and_reads_the_file_as_it_is_then(tmp_path, world, monkeypatch):
    async def story():
        rule, path = rule_of(tmp_path, world)
        reads = []
        monkeypatch.setattr(loading, "load", lambda p, load=loading.load: (reads.append(1), load(p))[1])
        for _ in range(50):
            rule.hang_up()
        path.write_text(GOOD.replace("weight = 4", "weight = 9"))
        while rule._tasks:
            await asyncio.gather(*rule._tasks)
        assert len(reads) == 1
        (svc,) = world.ipvs.services
        assert sorted(dest.weight for dest in svc.dests) == [1, 9]

    asyncio.run(story())


def test_what_ipvs_refuses_at_the_start_is_told(tmp_path, world):
    world.routes.is_unicast = lambda af, addr: False
    with pytest.raises(UserError, match=r"uvs\.toml: server 198\.51\.100\.11:80: not a unicast address"):
        rule_of(tmp_path, world)
    assert len(world.ipvs.services) == 0


def test_whether_a_director_could_start_with_the_file(tmp_path, world):
    rule, path = rule_of(tmp_path, world)
    assert rule.refusal() == ""
    path.write_text("x = 1")
    assert "uvs.toml:1: x: no such key" in rule.refusal()
