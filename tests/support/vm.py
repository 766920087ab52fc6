"""The package and Python's environment for what runs in the virtual machine of tests/kernel/vm."""

from __future__ import annotations

import compileall
import os
import shutil
import sys
from pathlib import Path

import uvs
from support.elsewhere import ROOT
from uvs.engine import _core, _io
from uvs.exec import library

MACHINE = ROOT / "tests/kernel/vm"


def environment(folder: Path) -> dict[str, str]:
    """Variables for Python there; the package is put into `folder` as files."""
    return {
        "PYTHONPATH": os.pathsep.join([str(_package(folder)), str(ROOT / "tests"), *filter(None, sys.path)]),
        "MESONPY_EDITABLE_SKIP": os.pathsep.join(map(str, ROOT.glob("build/*"))),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }


def _package(folder: Path) -> Path:
    """An editable installation would build again, slowly, inside."""
    shutil.copytree(Path(uvs.__file__).parent, folder / "uvs", ignore=shutil.ignore_patterns("__pycache__"))
    for module in (_core, _io):
        shutil.copy(module.__file__, folder / "uvs/engine")
    shutil.copy(library(), folder / "uvs")
    compileall.compile_dir(folder, quiet=1)  # not by every process inside
    return folder
