"""What the fuzz targets' tests share: a build, and for how long and from where they go."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(*args: str | Path, cwd: Path, **env: str) -> str:
    """Run a command; on failure the test fails with what it printed."""
    done = subprocess.run(
        args,
        cwd=cwd,
        env=os.environ | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    if done.returncode:
        pytest.fail(f"{args[0]} exited with {done.returncode}\n{done.stdout[-6000:]}", pytrace=False)
    return done.stdout


def options(share: float = 1) -> list[str]:
    """libFuzzer's: a share of UVS_FUZZ_SECONDS (60), inputs that grow from UVS_FUZZ_SEED (1), the bounds of an input."""
    seconds = max(int(int(os.environ.get("UVS_FUZZ_SECONDS", "60")) * share), 1)
    seed = os.environ.get("UVS_FUZZ_SEED", "1")
    return [f"-seed={seed}", f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1",
            "-max_len=4096"]  # fmt: skip
