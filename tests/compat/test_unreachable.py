"""Programs that no library can be put before: `uvs exec` says so, instead of letting them ask the kernel."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest


def test_static(under):
    """busybox-static, as a program and as a script's interpreter."""
    busybox = shutil.which("busybox")
    assert busybox, "busybox is missing: scripts/test installs it (apt-get install busybox-static)"
    ran = under(busybox, "cat", "/proc/net/ip_vs")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{busybox} is linked statically" in ran.stderr
    assert "uvsadm" in ran.stderr


def test_a_script_of_a_static_shell(under, tmp_path):
    script = tmp_path / "script"
    script.write_text("#!/bin/busybox sh\nipvsadm -Ln\n")
    script.chmod(0o755)
    ran = under(script)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "linked statically" in ran.stderr


@pytest.fixture
def with_setuid(tmp_path):
    """A folder where setuid counts: not every /tmp is one."""
    if not os.statvfs(tmp_path).f_flag & os.ST_NOSUID:
        yield tmp_path
        return
    folders = [f for f in ("/var/tmp", "/var/lib", "/root") if not os.statvfs(f).f_flag & os.ST_NOSUID]
    with tempfile.TemporaryDirectory(dir=folders[0]) as made:
        os.chmod(made, 0o755)
        yield Path(made)


def test_setuid(under, with_setuid):
    """A copy of ipvsadm that would become another user."""
    if os.getuid():
        copy = Path(shutil.which("su") or "/bin/su")
    else:
        copy = Path(
            shutil.copy(shutil.which("ipvsadm", path="/usr/sbin:/sbin") or "", with_setuid / "ipvsadm")
        )
        os.chown(copy, 65534, -1)
        copy.chmod(0o4755)
    assert not os.statvfs(copy).f_flag & os.ST_NOSUID
    ran = under(copy, "-Ln")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert f"{copy} gains privileges" in ran.stderr
