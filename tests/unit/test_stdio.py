"""Commands whose standard streams are closed or full end with one line at most, and the right status."""

import subprocess
import sys

import pytest

CASES = [
    # shell's redirections, exit status, what standard error says
    ("uvs.cli sysctl --help", ">&-", 0, ""),
    ("uvs.cli doctor", ">/dev/full", 1, "uvs doctor: No space left on device\n"),
    ("uvs.cli lab status --name none", ">/dev/full", 1, "uvs lab: No space left on device\n"),
    ("uvs.cli lab status --name none", ">&-", 1, ""),
    ("uvs.cli lab status --name none", "<&- >&- 2>&-", 1, ""),
    ("uvs.adm.cli --version", ">/dev/full", 1, "uvsadm: No space left on device\n"),
    ("uvs.adm.cli --version", ">&-", 0, ""),
    ("uvs.adm.cli -R", "<&-", 2, None),
]


@pytest.mark.parametrize(
    ("words", "redirections", "status", "said"), CASES, ids=[f"{w} {r}" for w, r, *_ in CASES]
)
def test_streams(tmp_path, words, redirections, status, said):
    script = f'exec "$0" -P -m {words} {redirections}'
    environment = {"UVS_SOCKET": str(tmp_path / "none"), "XDG_RUNTIME_DIR": str(tmp_path)}
    ran = subprocess.run(
        ["sh", "-c", script, sys.executable], capture_output=True, text=True, env=environment, timeout=60
    )
    assert ran.returncode == status, ran.stderr
    assert ran.stderr.count("\n") <= 1
    assert said is None or ran.stderr == said


def test_closed_streams_are_not_given_to_others():
    """A file that is opened with descriptor 1 or 2 free would get what is printed."""
    program = (
        "import os, sys; from uvs.stdio import make_whole; make_whole(); fd = os.open('/', os.O_RDONLY);"
        "print('x'); print('y', file=sys.stderr); sys.stdin.read(); os._exit(fd if fd > 2 else 0)"
    )
    ran = subprocess.run(["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program], timeout=60)
    assert ran.returncode > 2
