"""What the Vagrantfile defines, without Vagrant: machines in the order in which they are made."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Machine:
    """`networks`: options of each private network; `provisioners`: name and command line; `providers`: settings."""

    name: str
    networks: list[dict[str, Any]]
    provisioners: list[tuple[str, str]]
    providers: dict[str, dict[str, Any]]
    told: dict[str, Any]


def machines(mode: str, **environment: str) -> list[Machine]:
    """Evaluated by Ruby, in a stub of Vagrant's language."""
    argv = ["ruby", str(Path(__file__).with_suffix(".rb")), str(ROOT / "Vagrantfile")]
    done = subprocess.run(
        argv, env={**os.environ, "MODE": mode, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [
        Machine(
            told["name"],
            told["networks"],
            [(p["name"], p["inline"]) for p in told["provisioners"]],
            told["providers"],
            told,
        )
        for told in json.loads(done.stdout)["machines"]
    ]
