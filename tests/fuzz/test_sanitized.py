"""The package over builds with sanitizers (support.sanitized): a fault is seen, wherever it is; none is seen that is none.

scripts/test runs the engine's tests, and some in namespaces, over them.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from support import sanitized

IMPORTED = "from uvs.engine.core import Packet, ffi, lib\npkt = Packet()\npkt.load(b'E' + bytes([0, 0, 21]) + bytes(17))\n"
# Python lets other threads run while the engine works.
TWO_THREADS = """import threading
def load():
    for _ in range(20_000):
        pkt.load(b'E' + bytes([0, 0, 21]) + bytes(17))
threads = [threading.Thread(target=load) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {kind: tmp_path_factory.mktemp(kind.partition(",")[0]) for kind in sanitized.KINDS}


@pytest.fixture(scope="module")
def envs(folders: dict[str, Path]) -> dict[str, dict[str, str]]:
    return {kind: sanitized.build(into, kind) for kind, into in folders.items()}


MEMORY, THREADS = sanitized.KINDS
# what it shows, under what, a fault, words of the report
FAULTS = [
    ("past a bytes object", MEMORY, "lib.uvs_crc32c(ffi.from_buffer(bytes(100)), 200)", "heap-buffer-overflow"),
    ("past a packet, inside its buffer", MEMORY, "lib.uvs_csum(pkt._c.data, pkt.len + 1, 0)", "use-after-poison"),
    ("before a packet", MEMORY, "lib.uvs_csum(pkt._c.data - 1, 4, 0)", "use-after-poison"),
    ("two threads, one packet", THREADS, TWO_THREADS, "data race"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fault", "report"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_seen(envs, kind, fault, report) -> None:
    done = sanitized.python(envs[kind], "-c", IMPORTED + fault)
    assert done.returncode == sanitized.FAILED
    assert report in done.stdout


@pytest.mark.parametrize("kind", sanitized.KINDS)
def test_an_innocent_program_ends_well(envs, kind) -> None:
    code = "from uvs.engine import _core, core\nprint(_core.__file__, core.crc32c(bytes(100)))"
    done = sanitized.python(envs[kind], "-c", code)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(envs[kind]["PYTHONPATH"])


@pytest.mark.parametrize("kind", sanitized.KINDS)
def test_children(envs, kind) -> None:
    """Python's children are sanitized too, whatever starts them; other programs are left alone."""
    look = "import ctypes; from uvs.engine import _core; ctypes.CDLL(None).__sanitizer_set_report_path"
    code = f"""import os, subprocess, sys
subprocess.run([sys.executable, "-c", {look!r}], check=True)
subprocess.run(["uvsadm", "--version"], check=True)
assert b"san.so" not in subprocess.check_output(["cat", "/proc/self/maps"])
assert "san.so" in open("/proc/self/maps").read()
if os.fork() == 0:
    os._exit(len(os.listdir("/proc/self/task")))  # as setns(2) wants it
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]) - 1)
"""
    done = sanitized.python(envs[kind], "-c", code)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("kind", "fault"), [FAULTS[0][1:3], FAULTS[-1][1:3]], ids=sanitized.KINDS)
def test_a_run_fails_by_a_childs_fault(folders, tmp_path, kind, fault, capfd) -> None:
    """Although its tests pass."""
    test = tmp_path / "test_it.py"
    code = f"import subprocess, sys\ndef test_it():\n    subprocess.run([sys.executable, '-c', {IMPORTED + fault!r}])\n"
    arguments = ["-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(test)]
    test.write_text("def test_it():\n    pass\n")
    assert sanitized.pytest(kind, arguments, folders[kind]) == 0
    test.write_text(code)
    assert sanitized.pytest(kind, arguments, folders[kind]) == 1
    said = capfd.readouterr().out
    assert "1 passed" in said
    assert "SUMMARY: " in said


def test_two_ends_of_a_ring(tmp_path) -> None:
    """What one thread puts the other takes, none before it is whole (csrc/ring.c)."""
    program = tmp_path / "two_ends"
    sources = [sanitized.ROOT / "csrc/ring.c", Path(__file__).parent / "two_ends.c"]
    flags = ["-O2", "-g", "-pthread", "-fsanitize=thread", f"-I{sanitized.ROOT / 'csrc'}"]
    subprocess.run(["gcc", *flags, "-o", program, *sources], check=True)
    before = sanitized.setarch()
    env = os.environ | {"TSAN_OPTIONS": "halt_on_error=1"}
    done = subprocess.run(
        [*before, program], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout
