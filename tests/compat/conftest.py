import json
import os
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

    def run(*words, timeout_s="10", restart_s="2", **options):
        limits = f"--timeout={timeout_s}", f"--restart={restart_s}"
        return subprocess.run(
            [sys.executable, "-m", "uvs.cli", "exec", *limits, "--", *map(str, words)],
            env=os.environ | {"UVS_SOCKET": str(director.socket), "PATH": SBIN, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            **options,
        )

    return run


@pytest.fixture
def json_of(under):
    """Runs a Python program under `uvs exec`; what it tells as JSON."""

    def run(code, **options):
        ran = under(sys.executable, "-c", code, **options)
        assert (ran.returncode, ran.stderr) == (0, ""), ran.stderr
        return json.loads(ran.stdout)

    return run
