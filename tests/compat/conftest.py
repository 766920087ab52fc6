import os
import shutil
import subprocess
import sys

import pytest
from support.paper_director import PaperDirector

SBIN = os.environ["PATH"] + ":/usr/sbin:/sbin"


@pytest.fixture
def director(tmp_path):
    it = PaperDirector(tmp_path)
    yield it
    it.kill()


@pytest.fixture
def under(director):
    """Runs a program under `uvs exec` against `director`; what it says and how it ends."""

    def run(*words, timeout_s="10", **options):
        return subprocess.run(
            [sys.executable, "-m", "uvs.cli", "exec", f"--timeout={timeout_s}", "--", *map(str, words)],
            env=os.environ | {"UVS_SOCKET": str(director.socket), "PATH": SBIN, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )

    return run


def installed(program):
    if shutil.which(program, path=SBIN) is None:
        pytest.fail(f"{program} is missing: scripts/test installs it (apt-get install {program})")
    return program
