"""A clean Debian as a folder (debootstrap), and hosts of a lab that live in copies of it.

The mirror is the one that apt uses on this machine; pip's packages come from where pip gets them here.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.vagrantfile import ROOT
from uvs.lab.namespaces import Lab

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LIMIT_S = 900


def release() -> str:
    """This machine's Debian: bookworm."""
    lines = Path("/etc/os-release").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["VERSION_CODENAME"].strip('"')


def mirror() -> str:
    """Where apt gets Debian's packages from."""
    # SITE is the base of a repository; of several (updates, others' repositories) Debian's own release.
    format_ = "$(RELEASE) $(COMPONENT) $(REPO_URI)"
    said = subprocess.check_output(
        ["apt-get", "indextargets", "--format", format_, "Created-By: Packages"], text=True
    )
    for line in said.splitlines():
        suite, component, uri = line.split()
        if (suite, component) == (release(), "main"):
            return uri
    raise AssertionError(f"apt has no mirror of {release()} main")


def pip_environment() -> tuple[dict[str, str], list[Path]]:
    """pip's settings here as PIP_* variables, and the files and folders that they name."""
    said = subprocess.check_output([sys.executable, "-m", "pip", "config", "list"], text=True)
    found: dict[str, str] = {}
    for line in sorted(said.splitlines(), key=lambda line: line.startswith(":env:")):  # these count most
        name, _, value = line.partition("=")
        if name.split(".")[0] in ("global", "install", ":env:"):
            found["PIP_" + name.rpartition(".")[2].upper().replace("-", "_")] = value.strip("'")
    words = [word.removeprefix("file://") for value in found.values() for word in value.split()]
    there = {Path(word) for word in words if word.startswith("/") and Path(word).exists()}
    folders = {p.parent if p.name == "simple" else p for p in there}
    return found, sorted(folders)


def debootstrap(root: Path) -> None:
    """A minimal Debian; nothing that is installed into it may start daemons."""
    argv = ["debootstrap", "--variant=minbase", "--include=ca-certificates", release(), str(root), mirror()]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stdout[-3000:]
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)


def put_checkout(root: Path) -> None:
    """As Vagrant's rsync does: /vagrant."""
    there = root / "vagrant"
    skip = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
    shutil.copytree(ROOT, there, ignore=skip, symlinks=True)


def inside(root: Path, argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Run a program in it, with this machine's network and in mounts of its own; what it says if it fails."""
    variables, needed = pip_environment()
    mounts = ["mount -t proc proc proc", "mount --rbind /dev dev"]
    for path in needed:
        at = root / str(path).lstrip("/")
        at.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            at.mkdir(exist_ok=True)
        else:
            at.touch()
        mounts.append(f"mount --bind {path} .{path}")
    script = " && ".join([*mounts, 'exec chroot . "$@"'])
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", *argv],
        cwd=root,
        env={"PATH": PATH, "HOME": "/root", "LC_ALL": "C.UTF-8", **_proxies(), **variables, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{argv}: {done.stdout[-3000:]}"


def _proxies() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.lower().endswith("_proxy")}


class Roots:
    """Each host of a lab in a copy of its own (overlay) of one Debian."""

    def __init__(self, lab: Lab, base: Path) -> None:
        self._lab = lab
        lab.check(None, ["mkdir", "/run/roots"])
        for host in lab.topology.hosts:
            at = f"/run/roots/{host.name}"
            lab.check(None, ["mkdir", at, f"{at}/upper", f"{at}/work", f"{at}/tree"])
            where = f"lowerdir={base},upperdir={at}/upper,workdir={at}/work"
            lab.check(None, ["mount", "-t", "overlay", "overlay", "-o", where, f"{at}/tree"])
            for folder in ("proc", "dev"):
                lab.check(None, ["mount", "--rbind", f"/{folder}", f"{at}/tree/{folder}"])

    def run(self, host: str, command: str, timeout: float = 300) -> subprocess.CompletedProcess[str]:
        """A command line in a host, as root there."""
        argv = [
            "env",
            "-i",
            f"PATH={PATH}",
            "HOME=/root",
            "LC_ALL=C.UTF-8",
            "chroot",
            f"/run/roots/{host}/tree",
        ]
        return self._lab.run(host, [*argv, "sh", "-c", command], timeout=timeout)

    def check(self, host: str, command: str) -> str:
        """Its output; the test fails if it does."""
        done = self.run(host, command)
        assert done.returncode == 0, f"{host}: {command}: {done.stdout[-2000:]}{done.stderr[-2000:]}"
        return done.stdout
