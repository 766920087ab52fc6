"""The fuzz targets in C under ASan and UBSan, for UVS_FUZZ_SECONDS (60).

Their inputs grow from UVS_FUZZ_SEED (1), so that a run says the same again; 0 draws a new one, to look for
more: `UVS_FUZZ_SEED=0 UVS_FUZZ_SECONDS=3600 pytest tests/fuzz`.
A finding fails the test and prints the input. Keep its smallest form in the target's corpus and as a unit test:
`fuzz_path -minimize_crash=1 -exact_artifact_path=SMALL FINDING`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.fuzzing import ROOT, options, run

CORPORA = {"fuzz_path": ROOT / "tests/fuzz/corpus", "fuzz_shim": ROOT / "tests/fuzz/corpus-shim"}
SHARES = {"fuzz_path": 1, "fuzz_shim": 1 / 12}


def test_corpus_is_small_and_whole() -> None:
    """Seeds are what make_corpus.py writes (findings may stand beside them)."""
    from fuzz.make_corpus import seed, stories

    kept = {path.name: path.read_bytes() for path in CORPORA["fuzz_path"].iterdir()}
    assert len(kept) < 100
    assert {name: kept.get(name) for name in stories()} == {n: seed(s) for n, s in stories().items()}


@pytest.mark.parametrize("target", CORPORA)
def test_corpus_runs_clean(target: str, targets: Path, tmp_path: Path) -> None:
    """Every seed and every finding of the past, once."""
    seeds = sorted(CORPORA[target].iterdir())
    assert f"Executed {seeds[-1]}" in run(targets / target, "-timeout=10", *seeds, cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", CORPORA)
def test_fuzz(target: str, targets: Path, tmp_path: Path) -> None:
    """New inputs grown from the corpus: nothing crashes, reads past an end, or breaks what must hold."""
    grown = tmp_path / "grown"
    grown.mkdir()
    out = run(targets / target, *options(SHARES[target]), grown, CORPORA[target], cwd=tmp_path)
    assert "stat::number_of_executed_units" in out
    print(out[out.rindex("Done ") :])
