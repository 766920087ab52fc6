"""The fuzz targets in Python, each for a sixth of UVS_FUZZ_SECONDS (60), led by coverage where atheris is to be had.

parse_messages   datagrams to the control socket
parse_restore    what uvsadm -R reads

As with test_fuzz.py, UVS_FUZZ_SEED says what inputs grow from. A finding fails the test and prints the input; keep it
in corpus-messages/ or corpus-restore/, cut down by hand (`python -m fuzz.guided TARGET FILE` in tests/ runs one).
"""

from __future__ import annotations

import importlib
import logging
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from support.fuzzing import ROOT, options, run

from uvs.adm import restore
from uvs.control import genetlink, netlink
from uvs.control.client import Unreachable
from uvs.ipvs.services import Services

FOLDERS = {"parse_messages": "corpus-messages", "parse_restore": "corpus-restore"}


def findings(name: str) -> list[Path]:
    return sorted((ROOT / "tests/fuzz" / FOLDERS[name]).glob("*"))


@pytest.fixture(params=FOLDERS)
def target(request: pytest.FixtureRequest) -> ModuleType:
    return importlib.import_module(f"fuzz.{request.param}")


@pytest.fixture(autouse=True)
def _logging() -> object:
    """The target's, which raises what is logged."""
    log = logging.getLogger("uvs.control")
    before = log.handlers, log.propagate
    yield
    log.handlers, log.propagate = before


def test_seeds_and_findings(target: ModuleType) -> None:
    """Every seed and every finding of the past, once."""
    for data in [*target.SEEDS, *(path.read_bytes() for path in findings(target.__name__.split(".")[1]))]:
        target.one(data)


def test_mutations(target: ModuleType) -> None:
    """Inputs of one seed, without coverage: the same on every machine."""
    rnd = random.Random(1)
    data = b""
    for number in range(60):
        data = target.mutate(target.SEEDS[number % len(target.SEEDS)] if number % 4 == 0 else data, rnd)
        target.one(data)


def _late(*_: object) -> None:
    raise KeyError("a fault of ours")


FAULTS: list[tuple[str, object, str, Callable[..., object]]] = [
    ("parse_messages", Services, "add_dest", _late),
    ("parse_messages", netlink, "ack", lambda request: netlink.error(request, 0)[:36]),
    ("parse_messages", genetlink, "_dump", lambda family, request, replies: iter([netlink.done(request.seq + 1, 0)])),
    ("parse_restore", Services, "add_dest", _late),
    ("parse_restore", restore, "undo", lambda before, now, touched: iter(())),
]  # fmt: skip


@pytest.mark.parametrize(("name", "where", "what", "fault"), FAULTS, ids=[f"{f[0]}-{f[2]}" for f in FAULTS])
def test_a_fault_is_seen(
    name: str, where: object, what: str, fault: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = importlib.import_module(f"fuzz.{name}")
    monkeypatch.setattr(where, what, fault)
    with pytest.raises((AssertionError, KeyError, Unreachable)):
        list(map(target.one, target.SEEDS))


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDERS)
def test_fuzz(name: str, tmp_path: Path) -> None:
    """New inputs: nothing raises, and what must hold holds."""
    grown, kept = tmp_path / "grown", ROOT / "tests/fuzz" / FOLDERS[name]
    grown.mkdir()  # libFuzzer writes into the first
    folders = [grown, kept] if kept.exists() else [grown]
    out = run(sys.executable, "-m", "fuzz.guided", name, *options(1 / 6), *folders, cwd=tmp_path, PYTHONPATH=str(ROOT / "tests"))  # fmt: skip
    print(out[out.rindex("Done ") :])
