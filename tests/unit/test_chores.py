"""Chores: how long they may take, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
import gc

import pytest

from uvs import chores

PATIENCE_S = 15.0  # for what must come


def test_packets_have_their_turn_after_each_slice(monkeypatch):
    """A slice ends with the step that reaches two milliseconds."""
    now, done = [0.0], []
    monkeypatch.setattr(chores.time, "monotonic", lambda: now[0])

    def steps():
        for n in range(5):
            now[0] += 0.00101
            done.append(n)
            yield

    async def turns():
        chores.in_slices(steps())
        seen = [len(done)]
        while len(done) < 5:
            await asyncio.sleep(0)
            seen.append(len(done))
        return seen

    assert asyncio.run(turns()) == [2, 4, 5]


def test_a_chore_that_fails_is_told_and_comes_again(caplog):
    async def run():
        loop, again = asyncio.get_running_loop(), asyncio.Event()
        calls = []

        def work():
            calls.append(loop.time())
            if len(calls) == 1:
                raise ZeroDivisionError
            again.set()

        stop = chores.every(loop, 0.001, work)
        await asyncio.wait_for(again.wait(), PATIENCE_S)
        stop()
        number = len(calls)
        await asyncio.sleep(0.02)
        return len(calls) - number

    assert asyncio.run(run()) == 0, "it was stopped"
    assert "work failed" in caplog.text
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
def thawed():
    yield
    gc.unfreeze()


def test_what_stays_is_not_looked_at_again(thawed):
    gc.unfreeze()
    chores.spare_collector()
    assert gc.get_freeze_count() > 1000
    assert len(gc.get_objects()) < 1000
