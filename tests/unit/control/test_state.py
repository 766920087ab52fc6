"""The saved table: what comes back, and what becomes of files that are damaged."""

import errno
import os
import stat
from pathlib import Path

import pytest
from support.world import World, packed

from uvs.control import state, stateformat
from uvs.control.ipvs_family import set_timeouts, timeouts
from uvs.control.stateformat import Saved
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

KEY = ServiceKey(2, 6, packed("10.0.0.1"), 80)
DESTS = [DestSpec(2, packed(f"10.0.1.{i}"), 80 + i, i % 2 * 3, i, 20 * i, i) for i in range(1, 5)]


@pytest.fixture
def world():
    w = World()
    yield w
    w.close()


@pytest.fixture
def other():
    w = World()
    yield w
    w.close()


@pytest.fixture
def saved(tmp_path):
    return state.SavedTable(tmp_path / "table")


def furnish(world):
    services = world.ipvs.services
    services.add_service(ServiceSpec(KEY, "wlc", 1, 360, 0xFFFFFF00))
    services.add_service(ServiceSpec(ServiceKey(10, 17, packed("2001:db8::1"), 53), "rr", 4, netmask=128))
    services.add_service(ServiceSpec(ServiceKey(2, 6, bytes(4), 0, 7), "wrr"))
    for dest in DESTS:
        services.add_dest(KEY, dest)
    services.add_dest(KEY, DestSpec(10, packed("2001:db8::9"), 80, 2, 0))
    set_timeouts(world.table, 100, 50, 25)
    world.ipvs.sysctl.set("expire_nodest_conn", 1)
    world.ipvs.sysctl.set("sync_threshold", "4 0")
    world.ipvs.sysctl.set("sync_qlen_max", "18446744073709551615")
    world.ipvs.sysctl.set("est_cpulist", "")


def everything(world):
    return (
        [(svc.spec, [dest.spec for dest in svc.dests]) for svc in world.ipvs.services],
        timeouts(world.table),
        {name: world.ipvs.sysctl.get(name) for name in world.ipvs.sysctl.names()},
    )


def files(saved):
    return sorted(path.name for path in saved.path.parent.iterdir())


def again(saved, boot="", **options):
    """The files as a director finds them that is started now."""
    return state.SavedTable(saved.path, boot, **options)


# ---------------------------------------------------------------- what comes back


def test_all_of_it_comes_back_in_order(world, other, saved):
    furnish(world)
    saved.save(world.ipvs)
    assert again(saved).restore(other.ipvs) == []
    assert everything(other) == everything(world)


def test_only_the_owner_reads_it_and_nothing_else_is_left(world, saved):
    old = os.umask(0)
    try:
        saved.restore(world.ipvs)
        furnish(world)
        saved.save(world.ipvs)
        saved.rewrite(world.ipvs)
        saved.lock()
    finally:
        os.umask(old)
    assert files(saved) == ["table", "table.1", "table.2", "table.lock"]
    for path in saved.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


def test_no_file_is_an_empty_table(world, saved):
    assert saved.restore(world.ipvs) == []
    assert everything(world)[0] == []


def test_a_change_costs_a_line(world, saved):
    """The table is written once; a change is appended to the journal, and nothing without one."""
    saved.restore(world.ipvs)
    saved.save(world.ipvs)
    furnish(world)
    saved.save(world.ipvs)
    table, journal = saved.path.stat(), saved.path.with_name("table.1")
    saved.save(world.ipvs)
    before = journal.stat().st_size
    world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=81)))
    saved.save(world.ipvs)
    assert 0 < journal.stat().st_size - before < 300
    assert saved.path.stat() == table


def test_a_restart_writes_nothing_and_goes_on_with_the_journal(journalled, saved, other):
    before = {path.name: path.read_bytes() for path in saved.path.parent.iterdir()}
    new = again(saved)
    assert new.restore(other.ipvs) == []
    assert not new.pending
    new.save(other.ipvs)
    assert {path.name: path.read_bytes() for path in saved.path.parent.iterdir()} == before
    other.ipvs.services.del_service(KEY)
    new.save(other.ipvs)
    found = again(saved).load()
    assert (found.whole, len(found.saved.services)) == (True, 3)


def test_two_directors_do_not_share_it(saved):
    saved.lock()
    with pytest.raises(OSError, match=f"another director keeps its table in {saved.path.parent}: stop it"):
        again(saved).lock()
    saved.close()
    again(saved).lock()


# ---------------------------------------------------------------- a long journal


@pytest.fixture
def journalled(world, saved):
    """A table with one service, and a journal with the others."""
    saved.restore(world.ipvs)
    world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=79)))
    saved.save(world.ipvs)
    furnish(world)
    saved.save(world.ipvs)
    return saved.path.with_name("table.1")


def test_a_journal_is_long_when_it_is_longer_than_the_table(world, saved, monkeypatch):
    monkeypatch.setattr(state, "JOURNAL_MIN", 20)
    saved.restore(world.ipvs)
    saved.save(world.ipvs)
    for port in range(1, 50):
        assert saved.long == (port - 1) // 20
        world.ipvs.services.add_service(ServiceSpec(KEY._replace(port=port)))
        saved.save(world.ipvs)
    for _ in saved.rewrite(world.ipvs).steps():
        pass
    for n in range(1, 99):  # the table has 49 rows
        assert saved.long == (n - 1) // 49
        world.ipvs.sysctl.set("drop_entry", n % 2)
        saved.save(world.ipvs)


@pytest.mark.parametrize("until", ["begun", "written", "in place", "cleaned"])
def test_whenever_the_director_dies_while_it_writes_a_table(
    world, other, saved, journalled, monkeypatch, until
):
    """Changes made meanwhile go to the next journal, which is read after the old one or with the new table."""
    monkeypatch.setattr(state, "STEP", 1)
    rewriting = saved.rewrite(world.ipvs)
    steps = rewriting.steps()
    next(steps)
    world.ipvs.services.del_dest(KEY, 2, packed("10.0.1.2"), 82)
    saved.save(world.ipvs)
    world.ipvs.services.edit_service(ServiceSpec(KEY, "rr"))
    saved.save(world.ipvs)
    if until != "begun":
        for _ in steps:
            pass
    if until == "in place":
        monkeypatch.setattr(saved, "_remove_journals", lambda before: None)
    if until in ("in place", "cleaned"):
        rewriting.finish()
    table = ["table"] if until in ("in place", "cleaned") else ["table", "table.new"]
    journals = ["table.2"] if until == "cleaned" else ["table.1", "table.2"]
    assert files(saved) == sorted(table + journals)
    new = again(saved)
    assert new.restore(other.ipvs) == []
    assert everything(other) == everything(world)
    world.ipvs.services.del_service(KEY)
    other.ipvs.services.del_service(KEY)
    new.save(other.ipvs)
    assert again(saved).load().saved == stateformat.capture(world.ipvs)


# ---------------------------------------------------------------- after a reboot


def test_after_a_reboot_nothing_comes_back_and_what_was_is_kept(world, other, tmp_path):
    """As ip_vs forgets; the log says how to have it otherwise."""
    before = state.SavedTable(tmp_path / "table", "boot one")
    before.restore(world.ipvs)
    before.save(world.ipvs)
    furnish(world)
    before.save(world.ipvs)
    after = again(before, "boot two")
    (message,) = after.restore(other.ipvs)
    assert "--restore-at-boot" in message
    assert str(tmp_path / "table.before-boot") in message
    assert everything(other)[0] == []
    after.save(other.ipvs)
    third = World()
    assert again(before, "boot two").restore(third.ipvs) == []  # told once
    third.close()
    # and it can still be had: by its name, with the option
    os.rename(tmp_path / "table.before-boot", tmp_path / "table")
    fourth = World()
    assert again(before, "boot two", restore_at_boot=True).restore(fourth.ipvs) == []
    assert everything(fourth) == everything(world)
    fourth.close()


def test_after_a_reboot_with_the_option_all_comes_back(world, other, tmp_path):
    before = state.SavedTable(tmp_path / "table", "boot one")
    furnish(world)
    before.save(world.ipvs)
    after = again(before, "boot two", restore_at_boot=True)
    assert after.restore(other.ipvs) == []
    assert everything(other) == everything(world)
    after.save(other.ipvs)
    header = after.load().header
    assert header is not None
    assert header.boot == "boot two"


def test_after_a_reboot_an_empty_table_is_nothing_to_talk_about(world, other, tmp_path):
    before = state.SavedTable(tmp_path / "table", "boot one")
    before.save(world.ipvs)
    assert again(before, "boot two").restore(other.ipvs) == []
    assert "table.before-boot" not in files(before)


# ---------------------------------------------------------------- damage


def restored(saved):
    """A new director's table, its log, and what a restart after that says."""
    new, w = again(saved), World()
    try:
        messages = new.restore(w.ipvs)
        table = {spec.key: len(dests) for spec, dests in everything(w)[0]}
        new.save(w.ipvs)
        assert again(saved).load().whole, "the next start has nothing to complain of"
        return messages, table
    finally:
        new.close()
        w.close()


V6, MARK, FIRST = (
    ServiceKey(10, 17, packed("2001:db8::1"), 53),
    ServiceKey(2, 6, bytes(4), 0, 7),
    KEY._replace(port=79),
)


def edited(path, number, text):
    """Replace a line (from 1); None: remove it."""
    lines = path.read_bytes().split(b"\n")
    lines[number - 1 : number] = [] if text is None else [text]
    path.write_bytes(b"\n".join(lines))


# The journal's lines: 1-3 services KEY, V6, MARK; 4-8 servers of KEY; 9 settings.
@pytest.mark.parametrize(
    ("shows", "number", "text", "table"),
    [
        ("garbage", 5, b"\xff\0garbage", {FIRST: 0, KEY: 4, V6: 0, MARK: 0}),
        ("an empty line", 6, b"", {FIRST: 0, KEY: 4, V6: 0, MARK: 0}),
        ("a line of NULs", 9, b"\0" * 80, {FIRST: 0, KEY: 5, V6: 0, MARK: 0}),
        ("a service is lost, and what hangs on it", 1, b"x", {FIRST: 0, V6: 0, MARK: 0}),
        ("a service is lost, what comes after it stays", 2, b"x", {FIRST: 0, KEY: 5, MARK: 0}),
    ],
)
def test_a_damaged_line_costs_no_other(saved, journalled, shows, number, text, table):
    edited(journalled, number, text)
    damaged = journalled.read_bytes()
    (message,), found = restored(saved)
    assert found == table
    assert message.startswith(f"the saved table is damaged: {journalled} (line {number}: ")
    servers = sum(table.values())
    assert message.endswith(f"starting with what is whole, {len(table)} services and {servers} servers")
    assert journalled.with_name("table.1.damaged").read_bytes() == damaged
    assert str(journalled) + ".damaged" in message


def test_damage_in_table_and_journal_is_told_in_one_message(saved, journalled):
    edited(saved.path, 3, b"x")
    for number in range(3, 9):
        edited(journalled, number, b"x")
    (message,), found = restored(saved)
    assert found == {KEY: 0, V6: 0}
    assert f"{saved.path} (line 3: the checksum does not fit), set aside as {saved.path}.damaged" in message
    assert "line 5: the checksum does not fit and 3 more" in message
    assert {"table.damaged", "table.1.damaged"} <= set(files(saved))


def test_every_flipped_bit_of_a_journal_costs_a_line_at_most(saved, journalled):
    """One bit in a line: that line; in its end: the next one as well. Nothing is taken for what it is not."""
    whole = journalled.read_bytes()
    rows = whole.split(b"\n")[3:8]
    begins = whole.index(rows[0])
    good = {
        (d.addr, d.port, d.weight, d.u_threshold)
        for d in [*DESTS, DestSpec(10, packed("2001:db8::9"), 80, 2, 0)]
    }
    for at in range(begins, begins + sum(len(row) + 1 for row in rows)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        journalled.write_bytes(flipped)
        found = again(saved).load()
        (dests,) = (dests for spec, dests in found.saved.services if spec.key == KEY)
        assert len(dests) >= 3
        assert {(d.addr, d.port, d.weight, d.u_threshold) for d in dests} <= good
        assert list(found.faults) == [journalled]


@pytest.mark.parametrize("cut", [1, 2, 10])
def test_a_torn_last_line_was_never_acknowledged(saved, journalled, cut):
    text = journalled.read_bytes()
    journalled.write_bytes(text[:-cut])
    found = again(saved).load()
    assert (found.faults, found.cut) == ({}, [journalled])
    assert found.saved.timeouts == ((100, 50, 25) if cut == 1 else (900, 120, 300))  # it was the settings
    messages, table = restored(saved)
    assert messages == [f"{journalled}: its last line is cut off"]
    assert table == {FIRST: 0, KEY: 5, V6: 0, MARK: 0}


TABLE = [
    ("empty", lambda text: b"", {}, "line 1: it is empty"),
    ("garbage", lambda text: b"\xff\xfe\0" * 100, {}, "line 1: the checksum does not fit"),
    ("cut in a line", lambda text: text[:-20], {KEY: 5, V6: 0}, "line 10: the checksum"),
    ("cut between lines", lambda text: text[: text.rindex(b"\n", 0, -1) + 1], {KEY: 5, V6: 0}, "it ends with line 9 of 10"),
    ("first line gone", lambda text: text[text.index(b"\n") + 1 :], {KEY: 5, V6: 0, MARK: 0}, "line 1: "),
    ("first line damaged", lambda text: b"x" + text[1:], {KEY: 5, V6: 0, MARK: 0}, "line 1: the checksum does not fit"),
    ("a line gone", lambda text: text.replace(text.split(b"\n")[3] + b"\n", b""), {KEY: 4, V6: 0, MARK: 0}, "it ends with line 9 of 10"),
    ("a line twice", lambda text: text + text.split(b"\n")[3] + b"\n", {KEY: 5, V6: 0, MARK: 0}, "line 11: it does not fit"),
]  # fmt: skip


@pytest.mark.parametrize(("shows", "damage", "table", "why"), TABLE, ids=[row[0] for row in TABLE])
def test_a_damaged_table_gives_what_is_whole(world, saved, shows, damage, table, why):
    furnish(world)
    saved.save(world.ipvs)
    text = damage(saved.path.read_bytes())
    saved.path.write_bytes(text)
    (message,), found = restored(saved)
    assert found == table
    assert f"{saved.path} ({why}" in message
    assert saved.path.with_name("table.damaged").read_bytes() == text


def test_a_damaged_table_whose_journal_is_whole(saved, journalled):
    saved.path.write_bytes(b"\0" * 4096)
    (_message,), found = restored(saved)
    assert found == {KEY: 5, V6: 0, MARK: 0}


def test_what_is_damaged_stays_until_there_is_a_new_table(saved, journalled, other):
    """A director that dies before it has written one loses nothing."""
    edited(journalled, 5, b"x")
    for _ in range(2):
        new = again(saved)
        assert len(new.restore(other.ipvs)) == 1
        other.ipvs.services.flush()
    assert files(saved) == ["table", "table.1", "table.1.damaged"]


def test_a_directory_in_the_table_s_place(world, saved):
    saved.path.mkdir()
    (message,), _ = restored(saved)
    assert "it cannot be read: Is a directory" in message
    assert saved.path.with_name("table.damaged").is_dir()


def test_a_table_that_may_not_be_read(world, saved, monkeypatch):
    furnish(world)
    saved.save(world.ipvs)
    saved.path.chmod(0)
    read = Path.read_bytes

    def obeyed(path: Path) -> bytes:  # by root too, who may read everything
        if not stat.S_IMODE(path.stat().st_mode):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", obeyed)
    (message,), found = restored(saved)
    assert "it cannot be read: Permission denied" in message
    assert found == {}


def test_a_table_of_another_version_is_kept_whole(saved, journalled):
    _, rest = saved.path.read_bytes().split(b"\n", 1)
    text = stateformat.line({"uvs": 99}) + rest
    saved.path.write_bytes(text)
    journal = journalled.read_bytes()
    (message,), found = restored(saved)
    assert found == {}
    assert message.startswith("the saved table was written by another version of uvs (its format is 99,")
    assert saved.path.with_name("table.version-99").read_bytes() == text
    assert saved.path.with_name("table.1.version-99").read_bytes() == journal


def test_a_journal_of_an_older_table_is_never_read(world, other, saved, journalled):
    old = journalled.read_bytes()
    for _ in (rewriting := saved.rewrite(world.ipvs)).steps():
        pass
    rewriting.finish()
    journalled.write_bytes(old)  # as if the crash came before it was removed
    assert again(saved).restore(other.ipvs) == []
    assert everything(other) == everything(world)
    assert files(saved) == ["table", "table.2"]


def saved_with(**members):
    return b"".join(stateformat.lines(Saved(**members), 1, ""))


def test_a_sysctl_of_another_version_is_told_and_passed_over(saved):
    services = [(ServiceSpec(KEY), [])]
    saved.path.write_bytes(saved_with(services=services, sysctls={"nosuch": "1"}))
    (message,), found = restored(saved)
    assert "nosuch" in message
    assert found == {KEY: 0}


def test_a_scheduler_that_is_gone_is_told(saved):
    saved.path.write_bytes(saved_with(services=[(ServiceSpec(KEY, "mine"), [])]))
    (message,), found = restored(saved)
    assert message == "no scheduler 'mine': saved services that have it get no connection"
    assert found == {KEY: 0}


# ---------------------------------------------------------------- what cannot be written


def full(*_):
    raise OSError(28, "No space left on device")


def test_a_failed_table_leaves_the_old_one_and_is_made_good(world, saved, monkeypatch):
    furnish(world)
    saved.save(world.ipvs)
    before, new = saved.path.read_bytes(), again(saved)
    world.ipvs.services.flush()
    for _ in range(3):
        with monkeypatch.context() as m:
            m.setattr(os, "fsync", full)
            with pytest.raises(OSError, match=r"cannot be saved to .*table: No space left"):
                new.save(world.ipvs)
    assert saved.path.read_bytes() == before
    assert new.pending
    assert [name for name in files(saved) if name != "table.new"] == ["table", "table.1"]
    new.save(world.ipvs)  # what the failed try left is no hindrance
    assert again(saved).load().saved.services == []


@pytest.mark.parametrize("room", [0, 1, 60])
def test_a_journal_that_cannot_be_appended_to(world, saved, journalled, monkeypatch, room):
    """What was written of a line is taken back; the change is kept and comes with the next."""
    before = journalled.read_bytes()
    write = os.write
    with monkeypatch.context() as m:
        m.setattr(os, "write", lambda fd, text: write(fd, text[:room]) if room else full())
        world.ipvs.services.del_service(KEY)
        with pytest.raises(OSError, match=r"cannot be saved to .*table: No space left"):
            saved.save(world.ipvs)
    assert journalled.read_bytes() == before
    assert saved.pending
    world.ipvs.services.del_service(V6)
    saved.save(world.ipvs)
    found = again(saved).load()
    assert (found.whole, found.saved) == (True, stateformat.capture(world.ipvs))


def test_changes_that_wait_are_bounded(world, saved, journalled, monkeypatch):
    """However long the disk is full: at last the whole table is shorter than what waits for it."""
    monkeypatch.setattr(state, "JOURNAL_MIN", 10)
    with monkeypatch.context() as m:
        m.setattr(os, "write", full)
        for n in range(100):
            world.ipvs.sysctl.set("drop_entry", 1 - n % 2)
            with pytest.raises(OSError, match="No space left"):
                saved.save(world.ipvs)
            assert len(saved._changes) <= 11
            if saved._journal is None:
                break
        else:
            pytest.fail("they are not bounded")
    saved.save(world.ipvs)
    assert again(saved).load().saved == stateformat.capture(world.ipvs)
