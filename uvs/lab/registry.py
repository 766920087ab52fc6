"""The labs that stay: a small file for each, by name, in the user's runtime directory."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.topology import topology


class Entry(NamedTuple):
    """A lab as it was recorded. `born`: start time of its holder, in ticks since boot (proc(5), field 22)."""

    name: str
    mode: str
    servers: int
    pid: int
    born: int
    tun_type: str = "ipip"

    @property
    def stands(self) -> bool:
        """Is the holder that was recorded still there?"""
        return self.born != 0 and born(self.pid) == self.born

    def lab(self) -> Lab:
        """The lab itself."""
        return Lab(topology(self.mode, self.servers, self.tun_type), self.pid)


def born(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 if there is none such, or only its zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return 0 if fields[0] in "ZX" else int(fields[19])


def directory() -> Path:
    """Where the files are: /run/uvs/lab, or for a user $XDG_RUNTIME_DIR/uvs/lab (/tmp/uvs-UID/lab)."""
    uid = os.geteuid()
    if uid == 0:
        return Path("/run/uvs/lab")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime, "uvs/lab") if runtime else Path(f"/tmp/uvs-{uid}/lab")


def checked(name: str) -> str:
    """The name, if it may be one. LabError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}", name):
        raise LabError(f"no name for a lab: {name!r}: letters, digits, '-', '_' and '.', at most 32", 2)
    return name


@contextmanager
def locked() -> Iterator[Path]:
    """Nobody else makes or removes a lab meanwhile; gives the directory, removed if it is empty then."""
    path = directory()
    fd = _lock(path)
    try:
        yield path
    finally:
        with suppress(OSError):  # not empty
            path.rmdir()
            path.parent.rmdir()
        os.close(fd)


def _lock(path: Path) -> int:
    while True:
        for each in (path.parent, path):
            each.mkdir(mode=0o700, exist_ok=True)
            if each.stat().st_uid != os.geteuid():
                raise LabError(f"{each} belongs to somebody else: remove it, or set XDG_RUNTIME_DIR")
        with suppress(FileNotFoundError):
            fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(fd, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
            os.close(fd)  # whoever had it removed it


def record(path: Path, name: str, lab: Lab) -> None:
    """Write a lab's file."""
    plan = lab.topology
    entry = Entry(name, plan.mode, len(plan.servers), lab.pid, born(lab.pid), plan.tun_type)
    temporary = path / f".{name}"
    temporary.write_text(json.dumps(entry._asdict()))
    temporary.rename(path / f"{name}.json")


def entries() -> list[Entry]:
    """All recorded labs, by name, those that are gone as well."""
    found = []
    for file in sorted(directory().glob("*.json")):
        try:
            found.append(Entry(**json.loads(file.read_text())))
        except FileNotFoundError:
            continue
        except (ValueError, TypeError):  # half written by a machine that went down
            found.append(Entry(file.stem, "nat", 1, 0, 0))
    return found


def find(name: str | None) -> Entry:
    """The lab of that name, or the only one. LabError if there is none, or which is not clear."""
    standing = [e for e in entries() if e.stands]
    if name is not None:
        standing = [e for e in standing if e.name == name]
    if not standing:
        which = f"no lab named {name!r} is up" if name else "no lab is up"
        raise LabError(f"{which}: uvs lab up" + (f" --name {name}" if name else ""))
    if len(standing) > 1:
        raise LabError(f"several labs are up: say --name {' or --name '.join(e.name for e in standing)}", 2)
    return standing[0]
