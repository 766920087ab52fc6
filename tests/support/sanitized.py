"""The package with its C under sanitizers, for any test: what Python imports, also in child processes.

    env = build(tmp_path)                                      ASan and UBSan
    env = build(tmp_path, "thread")                            TSan
    python(env, "-c", "import uvs.engine.core")

    UVS_SANITIZE=thread python -m pytest tests/net/test_modes.py    does that for a whole run (tests/conftest.py)

A finding ends the process with a report on standard error and status 99; of a whole run the reports of all its
processes, directors in labs too, are printed at the end and fail it.

Python itself is not instrumented. It is started by a program `python` of our own, which preloads the sanitizer's
library into it alone: not into iptables, ipset or a shell that a director starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
FAILED = 99
KINDS = {"address,undefined": "libasan.so", "thread": "libtsan.so"}

# The loader of an editable install stands before sys.path and would find the ordinary build. The preloaded library is
# for this process. TSan has a thread of its own from the first thread on and in every forked child; a process with a
# second thread cannot join a lab's namespaces (setns(2)), so it is ended: it only looks after TSan's memory.
SITECUSTOMIZE = """import ctypes, os, sys, threading
sys.meta_path = [f for f in sys.meta_path if not type(f).__module__.endswith("_editable_loader")]
sys.executable = {python!r}
preloaded = os.environ.pop("LD_PRELOAD", "").split(":")
if rest := [library for library in preloaded if library not in ("", {library!r})]:
    os.environ["LD_PRELOAD"] = ":".join(rest)
if {threads!r} and {library!r} in preloaded:
    def alone():
        ctypes.CDLL(None).__sanitizer_sandbox_on_notify(None)
    first = threading.Thread(target=int)
    first.start()
    first.join()
    alone()
    os.register_at_fork(after_in_child=alone)
"""

# Isolated Python imports no uvs: a lab's servers and its holder.
PYTHON = """#!/bin/sh
case $1 in -I) exec {python} "$@" ;; esac
LD_PRELOAD={library}${{LD_PRELOAD:+:$LD_PRELOAD}} exec {before} {python} "$@"
"""

PROGRAM = """#!/bin/sh
exec {python} -P -c 'import sys; from {module} import {function}; sys.exit({function}())' "$@"
"""

# What is no fault of ours, or none.
# ASan: libnetfilter_queue reads up to three bytes behind a payload that NetfilterQueue hands it, for padding.
# TSan: Python reads a field of a record, an aligned word, while the engine's threads may write it: what it gets was
# there a moment ago. Python's writes are not left out.
SUPPRESSED = {
    "address,undefined": "interceptor_via_lib:libnetfilter_queue.so\n",
    "thread": "race:^read_raw_unsigned_data$\nrace:^read_raw_signed_data$\nrace:^convert_to_object$\n",
}

PROGRAMS = {
    "uvs": ("uvs.cli", "main"),
    "uvsadm": ("uvs.adm.cli", "main"),
    "uvsadm-save": ("uvs.adm.cli", "save_main"),
    "uvsadm-restore": ("uvs.adm.cli", "restore_main"),
}


def _call(*args: str | Path) -> str:
    done = subprocess.run(
        args, env=os.environ | {"CC": "gcc"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, args))}: status {done.returncode}\n{done.stdout[-4000:]}")
    return done.stdout


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def setarch() -> list[str]:
    """What stands before a program: GCC 12's TSan knows no mappings as random as some kernels' (vm.mmap_rnd_bits)."""
    works = subprocess.run(["setarch", "-R", "true"], capture_output=True, check=False).returncode == 0
    return ["setarch", "-R"] if works else []


def build(into: Path, sanitize: str = "address,undefined") -> dict[str, str]:
    """Build in the directory `into`, anew or again; returns an environment for `python`.

    `sanitize`: of KINDS.
    """
    threads = sanitize == "thread"
    made, site, programs = (into / f"sanitized-{name}" for name in ("build", "site", "bin"))
    _call("meson", "setup", f"-Db_sanitize={sanitize}", "-Db_lundef=false", "-Dbuildtype=debugoptimized",
          "-Dc_args=-fno-sanitize-recover=all -fno-omit-frame-pointer", made, ROOT)  # fmt: skip
    _call("ninja", "-C", made)
    for fresh in (site, programs):
        shutil.rmtree(fresh, ignore_errors=True)
    shutil.copytree(ROOT / "uvs", site / "uvs", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for module in made.glob("_*.so"):
        shutil.copy(module, site / "uvs/engine")
    shutil.copy(made / "preload.so", site / "uvs")  # goes into programs without sanitizers, and has none
    library = Path(_call("gcc", f"-print-file-name={KINDS[sanitize]}").strip()).resolve()
    own = programs / "python"
    (site / "sitecustomize.py").write_text(
        SITECUSTOMIZE.format(python=str(own), library=str(library), threads=threads)
    )
    (site / "suppressed").write_text(SUPPRESSED[sanitize])
    programs.mkdir()
    words = {"python": shlex.quote(sys.executable), "library": shlex.quote(str(library))}
    _script(own, PYTHON.format(before=" ".join(setarch()) if threads else "", **words))
    for name, (module, function) in PROGRAMS.items():
        words = {"python": shlex.quote(str(own)), "module": module, "function": function}
        _script(programs / name, PROGRAM.format(**words))
    return os.environ | {
        "UVS_SANITIZED_PYTHON": str(own),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(site),
        "PYTHONSAFEPATH": "1",  # not the checkout, which has no extension modules
        "PYTHONMALLOC": "default" if threads else "malloc",  # a block of its own for each object: reads past bytes are seen
        "ASAN_OPTIONS": f"detect_leaks=0:exitcode={FAILED}:suppressions='{site}/suppressed'",  # Python never frees all
        "UBSAN_OPTIONS": f"print_stacktrace=1:exitcode={FAILED}",
        "TSAN_OPTIONS": f"halt_on_error=1:exitcode={FAILED}:suppressions='{site}/suppressed'",
    }  # fmt: skip


def python(env: dict[str, str], *args: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Python in that environment."""
    return subprocess.run(
        [env["UVS_SANITIZED_PYTHON"], *args], env=env, cwd=ROOT, timeout=timeout, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip


def run(sanitize: str, arguments: Sequence[str], into: Path | None = None) -> int:
    """Run Python and all that it starts in such an environment; its exit status, 1 if there was a report.

    The build is kept in the directory `into`, by default in the checkout's build/.
    """
    into = into or ROOT / "build" / f"sanitized-{sanitize.replace(',', '-')}"
    into.mkdir(parents=True, exist_ok=True)
    env = build(into, sanitize)
    env["PYTHONPATH"] += f":{ROOT / 'tests'}"
    reports = into / "reports"
    shutil.rmtree(reports, ignore_errors=True)
    reports.mkdir()
    reports.chmod(0o1777)  # a director may be an ordinary user's
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS"):
        env[name] += f":log_path='{reports}/report'"
    status = subprocess.run([env["UVS_SANITIZED_PYTHON"], *arguments], env=env, check=False).returncode
    found = sorted(reports.iterdir())
    for report in found:
        print(f"\n=== {report.name}\n{report.read_text(errors='replace')[:20_000]}")
    return status or bool(found)


def pytest(sanitize: str, arguments: Sequence[str], into: Path | None = None) -> int:
    """A whole run of pytest, as `run`."""
    os.environ["UVS_HYPOTHESIS_PROFILE"] = "sanitized"
    return run(sanitize, ["-m", "pytest", *arguments], into)
