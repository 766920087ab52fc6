"""The engine's Python tests over a build with ASan and UBSan."""

from __future__ import annotations

import pytest
from support import sanitized


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return sanitized.build(tmp_path_factory.mktemp("sanitized"))


# what it shows, a fault, words of the report
FAULTS = [
    ("past a bytes object", "lib.uvs_crc32c(ffi.from_buffer(bytes(100)), 200)", "heap-buffer-overflow"),
    ("past a packet, inside its buffer", "lib.uvs_csum(pkt._c.data, pkt.len + 1, 0)", "use-after-poison"),
    ("before a packet", "lib.uvs_csum(pkt._c.data - 1, 4, 0)", "use-after-poison"),
]


@pytest.mark.parametrize(("fault", "report"), [f[1:] for f in FAULTS], ids=[f[0] for f in FAULTS])
def test_a_fault_is_seen(env: dict[str, str], fault: str, report: str) -> None:
    """The tests below would notice."""
    code = f"from uvs.engine.core import Packet, ffi, lib\npkt = Packet()\npkt.load(b'E' + bytes([0, 0, 21]) + bytes(17))\n{fault}"
    done = sanitized.python(env, "-c", code)
    assert done.returncode == sanitized.FAILED
    assert report in done.stdout


def test_an_innocent_program_ends_well(env: dict[str, str]) -> None:
    code = "from uvs.engine import _core, core\nprint(_core.__file__, core.crc32c(bytes(100)))"
    done = sanitized.python(env, "-c", code)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith(env["PYTHONPATH"])


@pytest.mark.slow
@pytest.mark.parametrize("tests", ["unit/engine", "property"])
def test_engine_tests(env: dict[str, str], tests: str) -> None:
    """The property tests of the table and of the hook path besides."""
    done = sanitized.python(
        env | {"UVS_HYPOTHESIS_PROFILE": "sanitized"},
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-n",
        "2",
        f"tests/{tests}",
        timeout=1800,
    )
    assert done.returncode == 0, done.stdout[-6000:]
