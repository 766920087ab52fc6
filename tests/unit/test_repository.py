"""The house rules of the tree (docs/design.md, "The house"): this test is what keeps them."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = sorted((ROOT / "uvs").rglob("*.py"))
C = sorted(p for p in ROOT.rglob("*.[ch]") if p.relative_to(ROOT).parts[0] in ("csrc", "tests"))

# A part may import from the layers before its own, and from itself.
LAYERS = [
    {"chores", "errors", "logs", "stdio", "systemd"},
    {"engine"},
    {"ipvs"},
    {"layers"},
    {"control", "egress", "netfilter"},
    {"adm"},
    {"config"},
    {"health"},
    {"walk"},  # reads services as uvsadm does
    {"decap", "exec", "lab", "takeover"},  # clients of control, of egress's netlink, of the walk's text
    {"diverted", "doctor", "flush", "host", "listen", "reload", "successor", "top"},
    {"diff", "drain", "rule"},
    {"director", "trace", "web"},  # ask as top does
    {"metrics", "run", "units"},
    {"cli"},
]
IO = {"asyncio", "ctypes", "fcntl", "mmap", "netfilterqueue", "os", "pyroute2", "select", "selectors", "signal",
      "socket", "ssl", "subprocess", "tempfile", "threading"}  # fmt: skip


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def part(module: str) -> str:
    """`uvs.ipvs.core` → `ipvs`; `uvs` itself → ``."""
    return ".".join(module.split(".")[1:2])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, deferred imports and `from package import module` too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer(of: str) -> int:
    return next(i for i, parts in enumerate(LAYERS) if of in parts)


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_imports_point_one_way(path: Path) -> None:
    own = part(module_of(path))
    if own in ("", "__main__"):
        return
    wrong = [
        module
        for module in imports(path)
        if module.startswith("uvs.")
        and (other := part(module)) not in ("__version__", own)
        and layer(other) >= layer(own)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_only_the_engine_sees_cffi(path: Path) -> None:
    if part(module_of(path)) == "engine":
        return
    bound = {"uvs.engine._core", "uvs.engine._io"}
    wrong = [m for m in imports(path) if m.split(".")[0] == "cffi" or any(m.startswith(b) for b in bound)]
    assert wrong == []


@pytest.mark.parametrize("path", [p for p in PYTHON if part(module_of(p)) == "ipvs"], ids=name)
def test_ipvs_does_no_io(path: Path) -> None:
    wrong = [m for m in imports(path) if m.split(".")[0] in IO or m.startswith("uvs.engine.io")]
    assert wrong == []


@pytest.mark.parametrize("path", PYTHON, ids=name)
def test_modules_say_what_they_are_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


@pytest.mark.parametrize(("paths", "limit"), [(C, 500), (PYTHON, 600)], ids=["C", "Python"])
def test_files_stay_short(paths: list[Path], limit: int) -> None:
    long = {name(p): n for p in paths if (n := len(p.read_text().splitlines())) >= limit}
    assert long == {}


def test_c_files_bear_their_licence() -> None:
    assert [
        name(p) for p in C if "SPDX-License-Identifier: GPL-2.0-or-later" not in p.read_text()[:200]
    ] == []


def test_packages_have_an_init() -> None:
    folders = {p.parent for p in PYTHON}
    assert [name(f) for f in sorted(folders) if not (f / "__init__.py").exists()] == []


def tracked() -> list[Path]:
    """The tree's text files: what git tracks or would, or (in an sdist) all but what builds leave."""
    git = subprocess.run(
        ["git", "-C", ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if git.returncode == 0 and git.stdout:
        files = [ROOT / n for n in git.stdout.split("\0") if n]
    else:
        skip = {".venv", "build", "dist"}
        files = [p for p in ROOT.rglob("*") if not skip & set(p.relative_to(ROOT).parts)]
    return [p for p in files if p.is_file() and b"\0" not in p.read_bytes()[:4096]]


# Folders of one machine, and hosts from which packages come: each machine has its own. (/proc/PID/root is none.)
MACHINE = re.compile(
    r"(?<!/proc/\d{4})/(?:work|root|home/\w+|tmp/wt|opt/(?:pypi|wheels))/|pypi\.org|pythonhosted|deb\.debian\.org|index-url"
)


def test_nothing_names_a_machine() -> None:
    found = [
        f"{name(p)}:{i}: {line.strip()}"
        for p in tracked()
        if p != Path(__file__)
        for i, line in enumerate(p.read_text(errors="replace").splitlines(), 1)
        if MACHINE.search(line)
    ]
    assert found == []


# Unit tests of the tree itself.
OF_THE_TREE = {"test_repository", "test_docs", "test_packaging", "test_tutorial"}


def test_scripts_import_what_is_installed() -> None:
    """With -m the present folder comes first: a checkout, where the package has no extension modules."""
    run = re.compile(r"bin/python.* -m ")
    lines = [
        line for path in ROOT.glob("scripts/*") if path.is_file() for line in path.read_text().splitlines()
    ]
    found = [line for line in lines if run.search(line)]
    assert found
    assert [line for line in found if " -P " not in line] == []


def test_unit_tests_mirror_the_package() -> None:
    """Tests of uvs/X/ stand in tests/unit/X/; tests of the module uvs/Y.py in tests/unit/test_Y.py."""
    unit = ROOT / "tests/unit"
    astray = []
    for path in sorted(unit.rglob("test_*.py")):
        if path.parent == unit:
            known = {p.stem for p in (ROOT / "uvs").glob("*.py")}
            if path.stem not in OF_THE_TREE and path.stem.removeprefix("test_") not in known:
                astray.append(name(path))
        elif not (ROOT / "uvs" / path.parent.relative_to(unit) / "__init__.py").exists():
            astray.append(name(path))
    assert astray == []
