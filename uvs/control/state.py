"""The table on disk: services, destinations, time-outs and sysctls, so that a restarted director has them.

A table, written whole beside the old one and renamed over it, and journals of the changes since: after a
crash of the director there is what was acknowledged, never half of a change. What a loss of power leaves is
as old as the last `sync`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from uvs.control import stateformat
from uvs.control.ipvs_family import set_timeouts, timeouts
from uvs.control.rows import DamagedError
from uvs.control.stateformat import Header, Replay, Saved, VersionError
from uvs.ipvs import scheduling
from uvs.ipvs.services import Dest, Service
from uvs.ipvs.skb import NetnsIpvs
from uvs.ipvs.spec import ServiceKey
from uvs.layers import Layers, ServerId

JOURNAL_MIN = 10_000  # lines: half a second of a restart
STEP = 200  # lines of a table written at once, while packets wait
FAULTS_TOLD = 3


@dataclass(slots=True)
class Found:
    """What the files hold, and what is wrong with them."""

    saved: Saved
    header: Header | None = None  # None: no table, or none whose first line is whole
    lines: int = 0  # in the journals
    last: int = 0  # number of the journal that is written last
    faults: dict[Path, list[str]] = field(default_factory=dict)  # of each file, with line numbers
    cut: list[Path] = field(default_factory=list)  # journals whose last line has no end

    @property
    def whole(self) -> bool:
        """Can what is there be continued?"""
        return not (self.faults or self.cut)


class SavedTable:
    """The files of one director: the table as it was, and journals of what has changed since.

    A change appends a line, so that it costs the same however large the table is; when the journal has
    grown longer than the table, the table is written anew. The table names its first journal by
    number: one that belongs to an older table is never read.
    """

    def __init__(
        self,
        path: Path | str,
        boot: str = "",
        *,
        restore_at_boot: bool = False,
        layers: Layers | None = None,
    ) -> None:
        """`boot`: the kernel's boot id; a table of another boot comes back only if `restore_at_boot`.

        `layers`: what lies over the weights, saved with the table.
        """
        self.path = Path(path)
        self.boot = boot
        self.restore_at_boot = restore_at_boot
        self.layers = layers
        self._changes: list[bytes] = []
        self._settings = b""
        self._journal: int | None = None  # descriptor; None: the next save writes all of it
        self._number = 0  # of that journal
        self._lines = 0  # since the table was written
        self._size = 0  # services and destinations in the table
        self._unsynced = False
        self._lock: int | None = None

    # ---- files

    def _numbered(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.name}.{number}")

    def _journals(self) -> list[int]:
        """Numbers of the journals that there are, in order."""
        ends = (p.name[len(self.path.name) + 1 :] for p in self.path.parent.glob(self.path.name + ".*"))
        return sorted(int(end) for end in ends if end.isascii() and end.isdigit())

    def lock(self) -> None:
        """Keep others out until `close`. OSError EBUSY: another director has it."""
        path = self.path.with_name(self.path.name + ".lock")
        self._lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise OSError(
                errno.EBUSY,
                f"another director keeps its table in {self.path.parent}: stop it, or set --state-dir",
            ) from None

    def close(self) -> None:
        """Let the files go."""
        for fd in (self._journal, self._lock):
            if fd is not None:
                os.close(fd)
        self._journal = self._lock = None

    # ---- saving

    @property
    def pending(self) -> bool:
        """Are there changes that no file has?"""
        return bool(self._changes) or self._journal is None

    @property
    def long(self) -> int:
        """How many times longer the journal is than it should be; 0: it is not."""
        return self._lines // max(JOURNAL_MIN, self._size)

    def save(self, ipvs: NetnsIpvs) -> None:
        """Write down what has changed since the last call.

        OSError: the text names the file; the changes are kept for the next call.
        """
        settings = stateformat.settings(ipvs)
        if settings != self._settings:
            self._changes.append(settings)
            self._settings = settings
        try:
            if self._journal is None:
                self._save_whole(ipvs)
            elif self._changes:
                self._append(self._journal, b"".join(self._changes))
                self._lines += len(self._changes)
        except OSError as e:
            if len(self._changes) > max(JOURNAL_MIN, self._size):
                self._forget_journal()  # all of it is shorter than what would have to be appended
            raise OSError(e.errno, f"the table cannot be saved to {self.path}: {e.strerror}") from None
        self._changes.clear()

    def _save_whole(self, ipvs: NetnsIpvs) -> None:
        rewriting = self.rewrite(ipvs)
        try:
            for _ in rewriting.steps():
                pass
            rewriting.finish()
        except OSError:
            self._forget_journal()  # it continues a table that is not there
            with contextlib.suppress(OSError):
                self._numbered(self._number).unlink()
            raise

    def _append(self, journal: int, text: bytes) -> None:
        size = os.fstat(journal).st_size
        try:
            done = os.write(journal, text)
            if done < len(text):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            try:
                os.ftruncate(journal, size)
            except OSError:
                self._forget_journal()
            raise
        self._unsynced = True

    def _forget_journal(self) -> None:
        if self._journal is not None:
            os.close(self._journal)
        self._journal = None
        self._changes.clear()  # the whole table has them

    def rewrite(self, ipvs: NetnsIpvs) -> Rewriting:
        """Begin to write the table anew as it is now; changes from now on go to a new journal. OSError."""
        if self._journal is not None:
            self.save(ipvs)
        number = max([self._number, *self._journals()]) + 1
        saved = stateformat.capture(ipvs, self.layers)
        journal = os.open(
            self._numbered(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
        )
        self._forget_journal()
        self._journal, self._number = journal, number
        self._lines, self._size = 0, saved.size
        return Rewriting(self, saved, number)

    def syncing(self) -> Callable[[], None] | None:
        """What brings the journal to the disk, if anything waits: may take long, and may run in a thread."""
        if self._journal is None or not self._unsynced:
            return None
        self._unsynced = False
        journal = os.dup(self._journal)

        def sync() -> None:
            try:
                os.fdatasync(journal)
            finally:
                os.close(journal)

        return sync

    def _changed(self, event: str, svc: Service, dest: Dest | None) -> None:
        """An observer of the services."""
        if event != "gone_dest":
            self._changes.append(stateformat.change(event, svc, dest))

    def _layer_changed(self, key: ServiceKey, server: ServerId | None) -> None:
        """An observer of the layers."""
        assert self.layers is not None
        self._changes.append(
            stateformat.fallback(key, self.layers.fallback(key))
            if server is None
            else stateformat.layer(key, server, self.layers.of(key, server))
        )

    # ---- restoring

    def load(self) -> Found:
        """What was saved; a line that is damaged is left out. VersionError."""
        again = Replay()
        found = Found(Saved())
        try:
            self._load_table(again, found)
        except FileNotFoundError:
            pass
        except OSError as e:
            found.faults[self.path] = [f"it cannot be read: {e.strerror}"]
        first = found.header.journal if found.header else 1
        for number in self._journals():
            if first and number >= first:
                path = self._numbered(number)
                found.last = number
                try:
                    self._load_journal(again, found, path)
                except OSError as e:
                    found.faults[path] = [f"it cannot be read: {e.strerror}"]
        found.saved = again.saved
        return found

    def _load_table(self, again: Replay, found: Found) -> None:
        texts = self.path.read_bytes().split(b"\n")
        if len(texts) > 1 and not texts[-1]:
            texts.pop()  # what follows the end of the last line
        try:
            found.header = stateformat.read_header(texts[0])
        except DamagedError as e:
            found.faults[self.path] = [f"line 1: {e}"]
        self._redo(again, found, self.path, texts[1:], 2)
        if found.header and len(texts) < found.header.lines:
            found.faults.setdefault(self.path, []).append(
                f"it ends with line {len(texts)} of {found.header.lines}"
            )

    def _load_journal(self, again: Replay, found: Found, path: Path) -> None:
        *texts, tail = path.read_bytes().split(b"\n")
        self._redo(again, found, path, texts, 1)
        found.lines += len(texts)
        if tail:  # the director, or the machine, died while it wrote: it was never acknowledged
            found.cut.append(path)
            with contextlib.suppress(DamagedError):
                again.redo(stateformat.read_line(tail))

    @staticmethod
    def _redo(again: Replay, found: Found, path: Path, texts: list[bytes], first: int) -> None:
        for number, text in enumerate(texts, first):
            try:
                again.redo(stateformat.read_line(text))
            except DamagedError as e:
                found.faults.setdefault(path, []).append(f"line {number}: {e}")

    def restore(self, ipvs: NetnsIpvs) -> list[str]:
        """Put the saved table into a fresh director; returns messages, none if all is well.

        From now on changes are noted; `save` writes them.
        """
        messages: list[str] = []
        try:
            found = self.load()
        except VersionError as e:
            messages.append(self._set_version_aside(e))
            found = Found(Saved())
        messages += [f"{path}: its last line is cut off" for path in found.cut]
        if found.faults:
            messages.append(self._set_aside(found))
        saved, header = found.saved, found.header
        if header is not None and header.boot != self.boot and not self.restore_at_boot:
            if (
                saved.services
                or saved.sysctls
                or saved.layers
                or saved.timeouts not in ((0, 0, 0), timeouts(ipvs.table))
            ):
                messages.append(self._keep_for_later(saved, header.boot))
            saved = Saved()
        elif header is not None and header.journal and header.boot == self.boot and found.whole:
            self._go_on(found, header.journal)
        messages += self._put_back(saved, ipvs)
        self._settings = stateformat.settings(ipvs) if self._journal is not None else b""
        ipvs.services.observers.append(self._changed)
        if self.layers is not None:
            self.layers.observers.append(self._layer_changed)
        return messages

    def _put_back(self, saved: Saved, ipvs: NetnsIpvs) -> Iterator[str]:
        attach = partial(ipvs.services.attach, saved.services)
        if self.layers is not None:
            self.layers.restore(saved.layers, saved.fallbacks, attach)
        else:
            attach()
        set_timeouts(ipvs.table, *saved.timeouts)
        for name, value in saved.sysctls.items():
            try:
                ipvs.sysctl.set(name, value)
            except OSError as e:
                yield f"saved sysctl not restored: {e.strerror}"
        unknown = {spec.sched_name for spec, _ in saved.services} - {"none"}
        for name in sorted(n for n in unknown if scheduling.find(n) is None):
            yield f"no scheduler {name!r}: saved services that have it get no connection"

    def _go_on(self, found: Found, first: int) -> None:
        """Continue the journal that was found."""
        number = found.last or first
        with contextlib.suppress(OSError):  # then all of it is written anew
            self._journal = os.open(
                self._numbered(number), os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600
            )
            self._number, self._lines, self._size = number, found.lines, found.saved.size
            self._remove_journals(first)

    def _remove_journals(self, before: int) -> None:
        for number in self._journals():
            if number < before:
                with contextlib.suppress(OSError):
                    self._numbered(number).unlink()

    def _set_version_aside(self, error: VersionError) -> str:
        end = f"version-{error.version}"
        for path in (self.path, *map(self._numbered, self._journals())):
            with contextlib.suppress(OSError):
                os.rename(path, path.with_name(f"{path.name}.{end}"))
        return f"the saved table was {error}: set aside as {self.path}.{end}, starting without it"

    def _set_aside(self, found: Found) -> str:
        """Keep damaged files under names that say so; they stay in place until the table is written anew."""
        told = []
        for path, faults in found.faults.items():
            more = f" and {len(faults) - FAULTS_TOLD} more" if len(faults) > FAULTS_TOLD else ""
            told.append(f"{path} ({'; '.join(faults[:FAULTS_TOLD])}{more}), {_second_name(path)}")
        services = len(found.saved.services)
        return (
            f"the saved table is damaged: {'; '.join(told)}: starting with what is whole,"
            f" {services} services and {found.saved.size - services} servers"
        )

    def _keep_for_later(self, saved: Saved, boot: str) -> str:
        aside = self.path.with_name(self.path.name + ".before-boot")
        text = f"the table of before the boot is not restored (--restore-at-boot would), but kept as {aside}"
        try:
            with contextlib.suppress(FileNotFoundError):
                aside.unlink()
            with open(aside, "xb", opener=_private) as f:
                f.writelines(stateformat.lines(saved, 0, boot))
        except OSError as e:
            text += f", in part: {e.strerror}"
        return text


class Rewriting:
    """A table being written anew beside the old one: first `steps`, then `finish`."""

    def __init__(self, owner: SavedTable, saved: Saved, number: int) -> None:
        self._owner, self._saved, self._number = owner, saved, number
        self._new = owner.path.with_name(owner.path.name + ".new")

    def steps(self) -> Iterator[None]:
        """Write it, some hundred lines in a step. OSError: the old table and all journals stay."""
        with contextlib.suppress(FileNotFoundError):
            self._new.unlink()
        with open(self._new, "xb", opener=_private) as f:
            for number, text in enumerate(stateformat.lines(self._saved, self._number, self._owner.boot), 1):
                f.write(text)
                if not number % STEP:
                    yield

    def finish(self) -> None:
        """Bring it to the disk, then into its place; may take long, and may run in a thread. OSError."""
        fd = os.open(self._new, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(self._new, self._owner.path)
        directory = os.open(self._owner.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._owner._remove_journals(self._number)


def _second_name(path: Path) -> str:
    """A second name for a damaged file, or, where there are no such, another name; says which."""
    aside = path.with_name(path.name + ".damaged")
    try:
        with contextlib.suppress(FileNotFoundError):
            aside.unlink()
        try:
            os.link(path, aside)
        except OSError:
            os.rename(path, aside)
    except OSError as e:
        return f"which cannot be set aside: {e.strerror}"
    return f"set aside as {aside}"


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)
