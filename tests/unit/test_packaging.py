"""An sdist and a wheel build, install into an empty venv, and work from there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from uvs.cli import COMMANDS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]
ROOT = Path(__file__).parents[2]


def run(*command: object, cwd: Path | None = None) -> str:
    """A command's standard output; its whole output in the failure."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(c) for c in command], capture_output=True, text=True, cwd=cwd, env=inherited, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist of the last commit and the wheel that was built from it."""
    if not (ROOT / ".git").exists():
        pytest.skip("meson makes an sdist from a git checkout only")
    folder = tmp_path_factory.mktemp("dist")
    clone = tmp_path_factory.mktemp("clone") / "uvs"
    run("git", "clone", "-q", ROOT, clone)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    run(
        "env",
        f"PATH={path}",
        sys.executable,
        "-m",
        "build",
        "--no-isolation",
        "--skip-dependency-check",
        "--outdir",
        folder,
        clone,
    )
    return folder


def test_the_sdist_has_all_that_the_build_and_the_tests_need(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as sdist:
        names = {name.partition("/")[2] for name in sdist.getnames()}
    wanted = {"LICENSE", "README.md", "csrc/uvs.h", "csrc/ffi.py", "meson.build", "scripts/test", ".ci/run"}
    assert wanted - names == set()
    assert [n for n in names if "__pycache__" in n] == []


def test_the_wheel_has_the_package_and_what_stands_beside_it(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = wheel.namelist()
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "uvs").rglob("*.py")}
    assert modules - set(names) == set()
    for pattern in (
        r"uvs/py\.typed",
        r"uvs/engine/_core\..*so",
        r"uvs/engine/_io\..*so",
        r"uvs/preload\.so",
        r"uvs/web/static/index\.html",
        r"uvs/web/static/main\.js",
        r"uvs/units/uvs\.service",
        r"uvs/units/uvs\.conf",
        r"uvs-.*\.data/data/share/man/man8/uvs\.8",
        r"uvs-.*\.data/data/share/man/man8/uvsadm\.8",
        r"uvs-.*\.data/data/share/man/man8/uvsadm-save\.8",
        r"uvs-.*\.data/data/share/bash-completion/completions/uvsadm-restore",
        r"uvs-.*\.data/data/share/bash-completion/completions/uvs",
        r"uvs-.*\.data/data/share/bash-completion/completions/uvsadm",
        r"uvs-.*\.data/data/share/zsh/site-functions/_uvs",
        r"uvs-.*\.data/data/share/fish/vendor_completions\.d/uvs\.fish",
        r"uvs-.*\.data/data/share/fish/vendor_completions\.d/uvsadm\.fish",
        r"uvs-.*\.dist-info/licenses/LICENSE",
    ):
        assert any(re.fullmatch(pattern, n) for n in names), pattern
    kinds = re.compile(
        r"uvs/.*\.(py|so)|uvs/py\.typed|uvs/web/static/\w+\.(html|css|js|svg)|uvs/units/[\w-]+\.(service|conf)|uvs-.*"
    )
    assert [n for n in names if not kinds.fullmatch(n) or "__pycache__" in n or "csrc" in n] == []


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"], ids=["wheel", "sdist"])
def test_it_installs_into_an_empty_venv_and_works_from_there(dist: Path, tmp_path: Path, kind: str) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    bin_ = tmp_path / "venv/bin"
    run(bin_ / "pip", "install", "-q", next(dist.glob(kind)))
    assert re.fullmatch(r"uvs \d+\.\d+\.\d+\n", run(bin_ / "uvs", "--version", cwd=tmp_path))
    for command in COMMANDS:
        assert f"usage: uvs {command}" in run(bin_ / "uvs", command, "--help", cwd=tmp_path)
    assert "ipvsadm" in run(bin_ / "uvsadm", "--help", cwd=tmp_path)
    table = "from uvs.engine.core import Table; t = Table(None, 8, bytes(16), 0); print(t.info()['conns']); t.close()"
    assert run(bin_ / "python", "-c", table, cwd=tmp_path) == "0\n"
    assert (tmp_path / "venv/share/man/man8/uvs.8").exists()
