"""The units as they are installed: paths filled in, and a first line by which they are known again."""

from __future__ import annotations

import hashlib
import re
from importlib import resources
from pathlib import Path
from typing import NamedTuple

UNITS = ("uvs.service", "uvs-monitor.service", "uvs-metrics.service")
SYSUSERS = "uvs.conf"
ETC_SYSTEM, ETC_SYSUSERS = Path("/etc/systemd/system"), Path("/etc/sysusers.d")

_HEAD = (
    "# Written by `uvs install-units`, which knows it by this: {}. Changes belong into drop-ins"
    " (systemctl edit {}).\n"
)
_MARK = re.compile(r"# Written by `uvs install-units`, which knows it by this: ([0-9a-f]{16})\.")
_PLAIN = re.compile(r"[\w./+-]+")  # anything else means something to systemd
# What ProtectHome= hides.
HOMES = ("/home", "/root", "/run/user")
# What the units have to themselves (PrivateTmp=).
PRIVATE = ("/tmp", "/var/tmp")


class File(NamedTuple):
    """A file to be installed: where, and its text."""

    path: Path
    text: str


def files(program: str, interpreter: str = "") -> list[File]:
    """All of them, for `uvs` at this path, which this Python runs.

    ValueError: the units could not start it; the text says why.
    """
    if not _PLAIN.fullmatch(program) or not program.startswith("/"):
        raise ValueError(f"{program}: its path has characters that mean something to systemd")
    for path in (program, interpreter):
        if _below(path, PRIVATE):
            raise ValueError(f"{path}: the units have a /tmp of their own, where it is not")
    home = "read-only" if _below(program, HOMES) or _below(interpreter, HOMES) else "yes"
    found = []
    for name in (*UNITS, SYSUSERS):
        text = (resources.files(__package__) / name).read_text()
        text = text.replace("@UVS@", program).replace("@HOME@", home)
        found.append(File((ETC_SYSUSERS if name == SYSUSERS else ETC_SYSTEM) / name, _marked(name, text)))
    return found


def is_ours(text: str) -> bool:
    """Did `uvs install-units`, of whatever version, write it, and nobody change it since?"""
    head, _, body = text.partition("\n")
    mark = _MARK.match(head)
    return mark is not None and mark[1] == _sum(body)


def _marked(name: str, body: str) -> str:
    return _HEAD.format(_sum(body), name.removesuffix(".service")) + body


def _sum(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()[:16]


def _below(path: str, folders: tuple[str, ...]) -> bool:
    return any(path.startswith(f"{folder}/") for folder in folders)
