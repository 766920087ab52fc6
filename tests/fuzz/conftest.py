"""The fuzz targets in C, built anew."""

import shutil
from pathlib import Path

import pytest
from support.fuzzing import ROOT, run


@pytest.fixture(scope="session")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds them."""
    assert shutil.which("clang"), "apt-get install clang libclang-rt-dev"
    build = tmp_path_factory.mktemp("fuzz-build")
    run("meson", "setup", "-Dfuzz=true", "--buildtype=debugoptimized", build, ROOT, cwd=ROOT, CC="clang")
    run("ninja", "-C", build, "fuzz_path", "fuzz_shim", cwd=ROOT)
    return build
