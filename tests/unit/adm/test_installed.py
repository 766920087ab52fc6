"""uvsadm under ipvsadm's names, as docs/how-to/moving-from-ip_vs.md installs it."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs/how-to/moving-from-ip_vs.md"
BIN = Path(sysconfig.get_path("scripts"))


@pytest.fixture(scope="module")
def sbin(tmp_path_factory):
    """The page's line, typed where it can do no harm."""
    root = tmp_path_factory.mktemp("root")
    for name in ("sbin", "alternatives", "admin"):
        (root / name).mkdir()
    (root / "bin").symlink_to(BIN)  # a checkout's path may hold a blank
    (block,) = re.findall(r"^```sh\n(update-alternatives .*?)^```$", PAGE.read_text(), re.M | re.S)
    elsewhere = f"--altdir {root}/alternatives --admindir {root}/admin --log {root}/log"
    line = block.replace("/usr/sbin", f"{root}/sbin").replace("/usr/bin", f"{root}/bin")
    line = line.replace("update-alternatives", f"{shutil.which('update-alternatives')} {elsewhere}", 1)
    done = subprocess.run(["sh", "-ec", line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return root / "sbin"


@pytest.mark.parametrize(
    ("words", "status", "out", "err"),
    [
        ("ipvsadm bogus", 255, "", "Try `ipvsadm -h' or 'ipvsadm --help' for more information.\n"),
        ("ipvsadm -A", 2, "", "You need to supply the 'service-address' option for the 'add-service' command\n"),
        ("ipvsadm -v", 0, "ipvsadm v", ""),
        ("ipvsadm-save -x", 1, "", "ipvsadm-save [-n]: "),
        ("ipvsadm-restore -h", 0, "ipvsadm-restore [--atomic]", ""),
        ("ipvsadm-save", 2, "", "Can't initialize ipvs: "),
    ],
)  # fmt: skip
def test_it_is_called_ipvsadm(sbin, words, status, out, err, tmp_path):
    env = os.environ | {"PATH": f"{sbin}:{os.environ['PATH']}", "UVS_SOCKET": f"{tmp_path}/none"}
    done = subprocess.run(words.split(), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.startswith(out)
    assert done.stderr.startswith(err)
    assert bool(done.stdout) == bool(out)
    assert "uvsadm" not in done.stdout + done.stderr.replace(str(sbin), "")
