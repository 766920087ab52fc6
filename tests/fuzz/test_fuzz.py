"""The fuzz target under ASan and UBSan, for UVS_FUZZ_SECONDS (60).

Its inputs grow from UVS_FUZZ_SEED (1), so that a run says the same again; 0 draws a new one, to look for
more: `UVS_FUZZ_SEED=0 UVS_FUZZ_SECONDS=3600 pytest tests/fuzz`.
A finding fails the test and prints the input. Keep its smallest form in corpus/ and as a unit test:
`fuzz_path -minimize_crash=1 -exact_artifact_path=SMALL FINDING`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests/fuzz/corpus"


def run(*args: str | Path, cwd: Path, cc: str = "clang") -> str:
    """Run a command; on failure the test fails with what it printed."""
    done = subprocess.run(
        args,
        cwd=cwd,
        env=os.environ | {"CC": cc},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if done.returncode:
        pytest.fail(f"{args[0]} exited with {done.returncode}\n{done.stdout[-6000:]}", pytrace=False)
    return done.stdout


@pytest.fixture(scope="session")
def fuzz_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target, built anew."""
    assert shutil.which("clang"), "apt-get install clang libclang-rt-dev"
    build = tmp_path_factory.mktemp("fuzz-build")
    run("meson", "setup", "-Dfuzz=true", "--buildtype=debugoptimized", build, ROOT, cwd=ROOT)
    run("ninja", "-C", build, "fuzz_path", cwd=ROOT)
    return build / "fuzz_path"


def test_corpus_is_small_and_whole() -> None:
    """Seeds are what make_corpus.py writes (findings may stand beside them)."""
    from fuzz.make_corpus import seed, stories

    kept = {path.name: path.read_bytes() for path in CORPUS.iterdir()}
    assert len(kept) < 100
    assert {name: kept.get(name) for name in stories()} == {n: seed(s) for n, s in stories().items()}


def test_corpus_runs_clean(fuzz_path: Path, tmp_path: Path) -> None:
    """Every seed and every finding of the past, once."""
    seeds = sorted(CORPUS.iterdir())
    assert f"Executed {seeds[-1]}" in run(fuzz_path, *seeds, cwd=tmp_path)


@pytest.mark.slow
def test_fuzz(fuzz_path: Path, tmp_path: Path) -> None:
    """New inputs grown from the corpus: nothing crashes, reads past an end, or breaks what must hold."""
    seconds = int(os.environ.get("UVS_FUZZ_SECONDS", "60"))
    grown = tmp_path / "grown"
    grown.mkdir()
    seed = os.environ.get("UVS_FUZZ_SEED", "1")
    out = run(fuzz_path, f"-seed={seed}", f"-max_total_time={seconds}", "-timeout=60", "-rss_limit_mb=2048", "-print_final_stats=1",
              "-max_len=4096", grown, CORPUS, cwd=tmp_path)  # fmt: skip
    assert "stat::number_of_executed_units" in out
    print(out[out.rindex("Done ") :])
