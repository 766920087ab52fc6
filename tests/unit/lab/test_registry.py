"""Labs by name: their files."""

import os
from pathlib import Path

import pytest

from uvs.lab import registry
from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.lab.topology import topology


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "directory", lambda: tmp_path / "uvs/lab")
    return tmp_path / "uvs/lab"


def test_nothing_is_left_behind(directory: Path) -> None:
    assert registry.entries() == []
    with registry.locked() as path:
        assert path == directory
        registry.record(path, "one", Lab(topology("dr", 2), os.getpid()))
        (path / "one.json").unlink()
    assert not directory.parent.exists()


def test_find(directory: Path) -> None:
    """By name, or the only one that stands; a holder whose PID another process has now does not stand."""
    with registry.locked() as path:
        registry.record(path, "one", Lab(topology("dr", 2), os.getpid()))
        registry.record(path, "other", Lab(topology("tun", 3, "gre"), os.getppid()))
        (path / "broken.json").write_text("{")
        (path / "reused.json").write_text((path / "one.json").read_text().replace('"born": ', '"born": 1'))
    found = registry.find("one")
    assert (found.mode, found.servers, found.pid) == ("dr", 2, os.getpid())
    assert found.lab().topology == topology("dr", 2)
    assert registry.find("other").lab().topology == topology("tun", 3, "gre")
    with pytest.raises(LabError, match="several labs are up: say --name one or --name other"):
        registry.find(None)
    for name in ("broken", "reused", "never"):
        with pytest.raises(LabError, match=f"no lab named '{name}' is up"):
            registry.find(name)
    (directory / "other.json").unlink()
    assert registry.find(None).name == "one"


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "x" * 33, "a b"])
def test_names(name: str) -> None:
    with pytest.raises(LabError, match="no name for a lab"):
        registry.checked(name)
