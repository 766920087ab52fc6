"""The package with its C under ASan and UBSan, for any test that runs Python in a child process.

    env = build(tmp_path)
    subprocess.run([sys.executable, "-m", "pytest", ...], env=env)

A finding ends the child with a report on standard error and status 99.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAILED = 99

# The loader of an editable install stands before sys.path and would find the ordinary build.
SITECUSTOMIZE = """import sys
sys.meta_path = [f for f in sys.meta_path if not type(f).__module__.endswith("_editable_loader")]
"""


def _call(*args: str | Path) -> str:
    done = subprocess.run(
        args, env=os.environ | {"CC": "gcc"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, args))}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def build(into: Path) -> dict[str, str]:
    """Build in the directory `into`; returns an environment in which Python imports that build."""
    made, site = into / "sanitized-build", into / "sanitized-site"
    _call("meson", "setup", "-Db_sanitize=address,undefined", "-Db_lundef=false", "-Dbuildtype=debugoptimized",
          "-Dc_args=-fno-sanitize-recover=all -fno-omit-frame-pointer", made, ROOT)  # fmt: skip
    _call("ninja", "-C", made)
    shutil.copytree(ROOT / "uvs", site / "uvs", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for module in made.glob("_*.so"):
        shutil.copy(module, site / "uvs/engine")
    (site / "sitecustomize.py").write_text(SITECUSTOMIZE)
    libasan = _call("gcc", "-print-file-name=libasan.so").strip()
    return os.environ | {
        "PYTHONPATH": str(site),
        "PYTHONSAFEPATH": "1",  # not the checkout, which has no extension modules
        "LD_PRELOAD": str(Path(libasan).resolve()),
        "PYTHONMALLOC": "malloc",  # a block of its own for each object: reads past bytes are seen
        "ASAN_OPTIONS": f"detect_leaks=0:exitcode={FAILED}",  # Python never frees all
        "UBSAN_OPTIONS": f"print_stacktrace=1:exitcode={FAILED}",
    }


def python(env: dict[str, str], *args: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Python in that environment."""
    return subprocess.run(
        [sys.executable, *args], env=env, cwd=ROOT, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip
