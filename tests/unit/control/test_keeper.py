"""When the table is saved: what a failure says, how it is tried again, and what waits for a pause."""

import asyncio
import os
import threading
from itertools import pairwise

import pytest
from support.world import World, packed

from uvs.control import keeper, state
from uvs.control.keeper import Keeper
from uvs.control.state import SavedTable
from uvs.ipvs.spec import ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)


class Kept:
    """A director's table that is kept, a loop, and a clock of the test's own."""

    def __init__(self, directory):
        self.world = World()
        self.now = 0.0
        self.saved = SavedTable(directory / "table", "boot")
        self.keeper = Keeper(self.saved, self.world.ipvs, lambda: self.now)
        self.loop = asyncio.new_event_loop()
        self.ports = 0

    def change(self, n=1):
        for _ in range(n):
            self.ports += 1
            self.world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=self.ports)))
        self.keeper.commit()

    def second(self):
        self.now += 1
        self.keeper.second()

    def settle(self):
        """Until the loop has no more steps to do, and the thread nothing."""
        while self.keeper._rewriting:
            self.loop.run_until_complete(asyncio.sleep(0))
        self.keeper._thread.submit(lambda: None).result(60)

    def on_disk(self):
        found = SavedTable(self.saved.path, "boot").load()
        assert found.whole
        return len(found.saved.services)


@pytest.fixture
def kept(tmp_path):
    it = Kept(tmp_path / "made")
    assert it.keeper.restore() == []
    it.keeper.begin(it.loop)
    yield it
    it.keeper.close()
    it.loop.close()
    it.world.close()


def files(kept):
    return sorted(path.name for path in kept.saved.path.parent.iterdir())


def test_a_change_is_written_before_it_is_acknowledged(kept):
    for n in range(1, 4):
        kept.change()
        assert kept.on_disk() == n


def test_the_disk_is_waited_for_in_a_thread_once_a_second(kept, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(threading.current_thread()))
    for _ in range(5):
        kept.change(3)
    assert synced == []
    kept.second()
    kept.settle()
    assert len(synced) == 1
    assert synced[0] is not threading.current_thread()
    kept.second()
    kept.settle()
    assert len(synced) == 1, "nothing has changed"


def test_a_slow_disk_is_not_asked_twice(kept, monkeypatch):
    go, asked = threading.Event(), []

    def slow(fd):
        asked.append(fd)
        assert go.wait(60)

    monkeypatch.setattr(os, "fdatasync", slow)
    try:
        for _ in range(5):
            kept.change()
            kept.second()
        assert len(asked) <= 1
    finally:
        go.set()
    kept.settle()
    kept.second()
    kept.settle()
    assert len(asked) == 2


def test_a_long_journal_waits_for_a_pause_but_not_for_ever(kept, monkeypatch):
    monkeypatch.setattr(state, "JOURNAL_MIN", 10)
    kept.change(11)
    kept.second()  # there was a change in this second
    kept.settle()
    assert files(kept) == ["table", "table.1", "table.lock"]
    kept.second()
    kept.settle()
    assert files(kept) == ["table", "table.2", "table.lock"]
    changes = 0
    while "table.3" not in files(kept):  # never a pause
        changes += 5
        assert changes <= 2 * keeper.BUSY * 10
        kept.change(5)
        kept.second()
        kept.settle()
    assert changes >= keeper.BUSY * 10
    assert kept.on_disk() == kept.ports


def test_a_table_is_written_in_steps_between_which_there_are_changes(kept, monkeypatch):
    monkeypatch.setattr(state, "JOURNAL_MIN", 20)
    monkeypatch.setattr(state, "STEP", 2)
    kept.change(60)
    kept.second()
    kept.settle()
    kept.second()
    steps = 0
    while kept.keeper._rewriting:
        kept.loop.run_until_complete(asyncio.sleep(0))
        kept.change()
        steps += 1
        assert kept.on_disk() == kept.ports
    assert steps >= 5
    kept.settle()
    assert kept.on_disk() == kept.ports
    assert files(kept) == ["table", "table.2", "table.lock"]


def full(*_, **__):
    raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_once_and_tried_ever_more_seldom(kept, monkeypatch, caplog):
    tries = []
    with monkeypatch.context() as m:
        m.setattr(os, "write", lambda fd, text: (tries.append(kept.now), full()))
        for _ in range(100):
            kept.change()
            kept.second()
    assert kept.on_disk() == 0
    said = [r.getMessage() for r in caplog.records]
    assert len(said) == 1
    assert "cannot be saved to" in said[0]
    assert "No space left on device: changes are in force, but a restart would lose them" in said[0]
    gaps = [b - a for a, b in pairwise(tries)]
    assert gaps == [1, 2, 4, 8, 16, 32]
    kept.now += keeper.AGAIN_MAX_S
    with caplog.at_level("INFO"):
        kept.second()
    assert kept.on_disk() == 100
    assert caplog.records[-1].getMessage() == "the table is saved again"


def test_a_table_that_cannot_be_written_anew_leaves_the_journals(kept, monkeypatch, caplog):
    monkeypatch.setattr(state, "JOURNAL_MIN", 10)
    kept.change(20)
    kept.second()
    kept.settle()
    with monkeypatch.context() as m:
        m.setattr(os, "fsync", full)
        kept.second()
        kept.settle()
    assert "the table was not brought to the disk: No space left on device" in caplog.text
    kept.change()
    assert kept.on_disk() == 21


def test_two_tables_are_never_written_at_once(kept, monkeypatch):
    """The journal is lost while the thread brings a new table into its place: both have one name until then."""
    monkeypatch.setattr(state, "JOURNAL_MIN", 10)
    kept.change(20)
    kept.second()
    kept.settle()
    go, fsync = threading.Event(), os.fsync

    def slow(fd):
        if threading.current_thread() is not threading.main_thread():
            assert go.wait(60)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", slow)
    try:
        kept.second()
        while kept.keeper._rewriting:
            kept.loop.run_until_complete(asyncio.sleep(0))
        with monkeypatch.context() as m:
            m.setattr(os, "write", full)
            m.setattr(os, "ftruncate", full)
            kept.change()
        kept.second()
        assert kept.on_disk() == 20
    finally:
        go.set()
    kept.settle()
    kept.second()
    assert kept.on_disk() == 21


def test_what_waited_is_written_at_the_end(tmp_path, monkeypatch):
    it = Kept(tmp_path)
    it.keeper.restore()
    it.keeper.begin(it.loop)
    with monkeypatch.context() as m:
        m.setattr(os, "write", full)
        it.change()
    assert it.on_disk() == 0
    it.keeper.close()
    assert it.on_disk() == 1
    it.loop.close()
    it.world.close()


def test_a_director_that_did_not_start_leaves_the_files_alone(tmp_path):
    one = Kept(tmp_path)
    one.keeper.restore()
    one.keeper.begin(one.loop)
    one.change(3)
    one.keeper.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    other = Kept(tmp_path)
    other.saved.boot = "another boot"
    assert len(other.keeper.restore()) == 1
    other.keeper.close()
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after.pop("table.before-boot")
    assert after == before
    for it in (one, other):
        it.loop.close()
        it.world.close()


def test_a_second_director_and_an_open_directory_are_refused(kept, tmp_path):
    other = Kept(tmp_path / "made")
    with pytest.raises(OSError, match="another director keeps its table in"):
        other.keeper.restore()
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    third = Kept(tmp_path / "open")
    with pytest.raises(PermissionError, match="chmod go-w"):
        third.keeper.restore()
    for it in (other, third):
        it.keeper.close()
        it.loop.close()
        it.world.close()


def test_a_directory_that_cannot_be_made_is_a_failure_like_a_full_disk(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(os, "makedirs", full)
    it = Kept(tmp_path / "made")
    assert it.keeper.restore() == []
    it.keeper.begin(it.loop)
    it.change()
    assert "cannot be saved to" in caplog.text
    it.keeper.close()
    it.loop.close()
    it.world.close()
