"""A director while somebody looks: what is recorded and asked, and that nothing is when nobody does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.control import Running, running
from support.world import CIP, MASQ, RIP, VIP, tcp

from uvs.engine.trace import TRACERS
from uvs.web import live
from uvs.web.live import Director, Live

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "WALKS_S", 0.01)
    monkeypatch.setattr(live, "STATE_S", 0.02)


def service(director: Running) -> None:
    svc = director.world.service(VIP)
    director.world.server(svc, RIP[1], 80, MASQ)


def syn(director: Running, port: int = 1024) -> Callable[[], object]:
    return lambda: director.world.local_in(tcp(CIP, port, VIP, 80))


async def until(events: Any, name: str, meant: Callable[[Any], bool] = lambda _: True) -> Any:
    """The data of the first such event."""
    async with asyncio.timeout(PATIENCE_S):
        async for found, data in events:
            if found == name and meant(data):
                return data
    raise AssertionError(f"the events ended without {name}")


async def over(director: Running) -> None:
    """Nobody looks: nothing is traced."""
    async with asyncio.timeout(PATIENCE_S):
        while director.ipvs.tracers:
            await asyncio.sleep(0.01)


async def recording(director: Running) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not director.ipvs.tracers:
            await asyncio.sleep(0.01)


def test_walks_and_states(tmp_path: Path) -> None:
    async def look(director: Running) -> None:
        source = Live(Director(director.path))
        events = source.events()
        first = await until(events, "state")
        assert first["connections"] == []
        assert first["services"][0]["servers"][0]["address"] == RIP[1]
        await recording(director)
        director.do(syn(director))
        walk = await until(events, "walk")
        assert walk["why"] == "forwarded"
        assert [c["field"] for c in walk["sent"][0]["changes"]][:2] == ["dst", "dst"]
        state = await until(events, "state", lambda data: data["connections"])
        (conn,) = state["connections"]
        assert (conn["state"], conn["client"]["address"]) == ("SYN_RECV", CIP)
        assert 0 < conn["ms"] <= 60_000
        # A page that is opened later gets what is known, and then what comes.
        other = source.events()
        assert await until(other, "walk") == walk
        await other.aclose()
        await events.aclose()
        assert source._task
        await asyncio.wait_for(source._task, PATIENCE_S)
        await over(director)
        # Somebody comes back.
        again = source.events()
        await until(again, "walk")
        await recording(director)
        await again.aclose()

    with running(tmp_path) as director:
        director.do(lambda: service(director))
        asyncio.run(look(director))


def test_as_many_trace_as_may(tmp_path: Path) -> None:
    """The page has no walks then, but all else; and walks again when one of them has ended."""
    with running(tmp_path) as director:
        director.do(lambda: service(director))
        others = [director.client() for _ in range(TRACERS)]
        for other in others:
            other.trace("", 1)
        asked = Director(director.path)
        director.do(syn(director))
        assert asked.walks() == []
        assert asked.state()["services"]
        others.pop().close()
        asked.state()
        assert asked.walks() == []
        for n, port in enumerate((1025, 1026), 1):
            director.do(syn(director, port))
            assert [walk["number"] for walk in asked.walks()] == [n]
        asked.close()
        others.pop().close()
        assert asked.walks() == []
        director.do(syn(director))
        assert [walk["number"] for walk in asked.walks()] == [3], "the page's numbers go on"
        for each in (asked, *others):
            each.close()


def test_nothing_is_asked_unless_somebody_looks(tmp_path: Path) -> None:
    with running(tmp_path) as director:
        Live(Director(director.path))
        director.do(syn(director))
        assert not director.ipvs.tracers


def test_a_long_table_is_not_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "CONNS_MAX", 1)
    with running(tmp_path) as director:
        director.do(lambda: service(director))
        for port, expected in ((1024, 1), (1025, None)):
            director.do(syn(director, port))
            found = Director(director.path).state()["connections"]
            assert (found if found is None else len(found)) == expected


def test_a_director_that_goes_and_comes(tmp_path: Path) -> None:
    async def look() -> None:
        source = Live(Director(str(tmp_path / "control.sock")))
        events = source.events()
        assert "no director listens" in (await until(events, "absent"))["error"]
        with running(tmp_path):
            await until(events, "state")
        await until(events, "absent")
        reader = asyncio.create_task(until(events, "never"))
        source.close()
        with pytest.raises(AssertionError, match="ended"):
            await reader
        await source.ended()
        assert source._task
        assert source._task.done()
        assert [event async for event in source.events()] == [], "nor does it begin again"

    asyncio.run(look())


def test_a_reader_too_far_behind_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "BEHIND_MAX", 2)

    async def look() -> None:
        source = Live(Director("/nonexistent"))
        events = source.events()
        await until(events, "absent")
        for number in range(10):
            source._tell("walk", number)
        source.close()
        assert 2 <= len([event async for event in events]) <= 4

    asyncio.run(look())
