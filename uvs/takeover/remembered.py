"""What was changed, on disk from before the first change until it is undone."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uvs.errors import UserError
from uvs.takeover.changes import Change, from_json, to_json
from uvs.takeover.plan import Request

FILE = "director-host.json"


@dataclass(frozen=True, slots=True)
class Remembered:
    """What was asked for, and the changes that it took."""

    asked: Request
    changes: tuple[Change, ...]

    def undo(self) -> None:
        """The last change first."""
        for change in reversed(self.changes):
            change.undo()


def load(folder: Path) -> Remembered | None:
    """None: nothing is changed. UserError if the file cannot be read."""
    path = folder / FILE
    try:
        told = json.loads(path.read_text())
        asked = Request(**{**told["asked"], "vips": tuple(told["asked"]["vips"])})
        return Remembered(asked, tuple(map(from_json, told["changes"])))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise UserError(f"{path} cannot be read ({e}): look at the host's settings, and remove it") from None


def save(folder: Path, asked: Request, changes: Sequence[Change]) -> Remembered:
    """Write it, whole or not at all. OSError."""
    fresh = folder / f".{FILE}"
    told = {"asked": asdict(asked), "changes": list(map(to_json, changes))}
    with fresh.open("w") as file:
        json.dump(told, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.rename(folder / FILE)
    return Remembered(asked, tuple(changes))


def forget(folder: Path) -> None:
    """It is undone."""
    (folder / FILE).unlink(missing_ok=True)
