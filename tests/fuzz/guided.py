"""A Python parser under libFuzzer: `python -m fuzz.guided TARGET [libFuzzer's options] [CORPUS...]` (in tests/).

TARGET is a module of this folder: `one(data)` takes an input and raises if something does not hold, `mutate(data,
size, random)` makes another one out of it, `SEEDS` are inputs to begin with. Coverage comes from atheris; where there
is none for this machine, inputs are mutated blindly for as long (`-max_total_time`, `-seed` and `-runs` are heeded).
What fails is printed and kept as `crash-…` in the working directory.
"""

from __future__ import annotations

import hashlib
import importlib
import random
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType


def guided(name: str, options: list[str]) -> None:
    """With atheris; ends the process."""
    import atheris

    with atheris.instrument_imports(include=["uvs.adm", "uvs.control", "uvs.ipvs.services"]):
        target = importlib.import_module(f"fuzz.{name}")

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        rnd = random.Random(seed)
        if rnd.random() < 0.3:
            return bytes(atheris.Mutate(data, size))
        return target.mutate(data, rnd)[:size]

    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(target.SEEDS):
            (Path(folder) / f"{number:02}").write_bytes(seed)
        atheris.Setup([name, *options, folder], target.one, custom_mutator=mutate)
        atheris.Fuzz()


def blind(name: str, options: list[str]) -> None:
    """Without atheris: mutations of the seeds and of what grew from them."""
    target: ModuleType = importlib.import_module(f"fuzz.{name}")
    given = dict(o[1:].split("=", 1) for o in options if o.startswith("-"))
    files = [f for o in options if not o.startswith("-") for f in sorted(Path(o).iterdir())]
    seeds = [*target.SEEDS, *(f.read_bytes() for f in files)]
    rnd = random.Random(int(given.get("seed", "0")) or None)
    runs, most = 0, int(given.get("runs", "-1"))
    end = time.monotonic() + (int(given.get("max_total_time", "0")) or 1_000_000)
    while time.monotonic() < end and runs != most:
        data = rnd.choice(seeds)
        for _ in range(rnd.choice((1, 1, 2, 4, 8))):
            data = target.mutate(data, rnd)[:4096]
        runs += 1
        try:
            target.one(data)
        except BaseException:
            kept = Path(f"crash-{hashlib.sha1(data).hexdigest()}")
            kept.write_bytes(data)
            print(f"kept as {kept}: {data!r}", file=sys.stderr)
            raise
    print(f"Done {runs} runs, blindly", file=sys.stderr)


if __name__ == "__main__":
    if importlib.util.find_spec("atheris"):
        guided(sys.argv[1], sys.argv[2:])
    else:
        blind(sys.argv[1], sys.argv[2:])
