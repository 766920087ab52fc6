"""The command line of `uvs install-units`."""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

from uvs.errors import UserError
from uvs.units.unit import UNITS, File, files, is_ours

RUNNING = Path("/run/systemd/system")  # sd_booted(3)
PATIENCE_S = 60.0

_EPILOG = """\
example, as root:
  uvs install-units
  systemctl enable --now uvs
"""

_NEXT = """\
next: systemctl enable --now uvs            the director
      systemctl enable --now uvs-monitor    health checks of /etc/uvs/uvs.toml as a process of their own
      systemctl enable --now uvs-metrics    for Prometheus, at 127.0.0.1:9781
options of `uvs run`: UVS_OPTIONS= in /etc/default/uvs; all else: systemctl edit uvs"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--root", default="/", metavar="DIR", help="install below this, as for an image; nothing is started")
    add("--prefix", metavar="DIR", help="where uvs is: DIR/bin/uvs (default: the uvs that runs)")
    add("-n", "--dry-run", action="store_true", help="only say what would be done")
    add("--remove", action="store_true", help="remove what was installed")
    add(
        "--force",
        action="store_true",
        help="replace or remove files that were changed, too; FILE.old keeps them",
    )


def main(args: argparse.Namespace) -> int:
    """Install, or remove. UserError: changed files, a path that units cannot use, a unit that is enabled."""
    root = Path(args.root)
    if not root.is_dir():
        raise UserError(f"--root {root}: there is no such directory", 2)
    program = os.path.join(os.path.abspath(args.prefix), "bin/uvs") if args.prefix else this()
    if args.remove:
        program = "/usr/bin/uvs"  # whichever it was
    try:
        found = files(program, interpreter(program))
        wanted = [File(root / file.path.relative_to("/"), file.text) for file in found]
    except ValueError as error:
        raise UserError(f"{error}: install uvs elsewhere, as in /opt/uvs, or name it with --prefix") from None
    live = root == Path("/") and RUNNING.is_dir()
    if args.remove:
        return _remove(wanted, live, args)
    if root == Path("/"):
        _check_program(program)
    return _install(wanted, live, args)


def this() -> str:
    """The program that runs; else where pip puts it. Links are kept: a venv finds its packages by them."""
    if os.path.basename(sys.argv[0]) == "uvs" and os.path.exists(sys.argv[0]):
        return os.path.abspath(sys.argv[0])
    return os.path.join(sysconfig.get_path("scripts"), "uvs")


def interpreter(program: str) -> str:
    """The Python that its first line names, links resolved; empty: it is not there, or names none."""
    try:
        with open(program, "rb") as file:
            line = file.readline(4096)
    except OSError:
        return ""
    words = line[2:].decode(errors="replace").split() if line.startswith(b"#!") else []
    return os.path.realpath(words[0]) if words and os.path.exists(words[0]) else ""


def _check_program(program: str) -> None:
    """UserError unless the units' user, who is nobody in particular, can start it."""
    path = Path(program)
    if not path.exists():
        raise UserError(f"{program}: there is no such program; name its place with --prefix")
    for each in (path, Path(interpreter(program) or path)):
        shut = [folder for folder in (each, *each.parents) if not folder.stat().st_mode & stat.S_IXOTH]
        if shut:
            raise UserError(
                f"{each} can be started by its owner only: chmod o+x {shut[-1]}, or install uvs elsewhere,"
                " as in /opt/uvs, with the system's Python"
            )


def _install(wanted: list[File], live: bool, args: argparse.Namespace) -> int:
    changed = [file.path for file in wanted if _is_changed(file)]
    _refuse(changed, "changes belong into drop-ins (systemctl edit)", args)
    for file in wanted:
        if _text(file.path) == file.text:
            print(f"unchanged   {file.path}")
            continue
        there = os.path.lexists(file.path)
        print(f"{'replaced' if there else 'written':11} {file.path}")
        if args.dry_run:
            continue
        if file.path in changed:
            os.replace(file.path, f"{file.path}.old")
        _write(file)
    if live:
        _do(["systemd-sysusers", str(wanted[-1].path)], args)
        _do(["systemctl", "daemon-reload"], args)
    else:
        print(
            "systemd does not run here: where it does, systemd-sysusers makes the user uvs at the next boot"
        )
    print(_NEXT)
    return 0


def _remove(wanted: list[File], live: bool, args: argparse.Namespace) -> int:
    there = [file for file in wanted if os.path.lexists(file.path)]
    _refuse([file.path for file in there if _is_changed(file)], "it is left", args)
    if live:
        for name in UNITS:
            if any(_says(["systemctl", "--quiet", verb, name]) for verb in ("is-active", "is-enabled")):
                raise UserError(f"{name} is running or enabled: systemctl disable --now {name} first")
    for file in there:
        print(f"{'removed':11} {file.path}")
        if args.dry_run:
            continue
        if _is_changed(file):
            os.replace(file.path, f"{file.path}.old")
        else:
            file.path.unlink()
    if live and there:
        _do(["systemctl", "daemon-reload"], args)
    if there:
        print(f"left: the user uvs, /var/lib/uvs, drop-ins ({wanted[0].path}.d), /etc/default/uvs, /etc/uvs")
    return 0


def _refuse(changed: list[Path], advice: str, args: argparse.Namespace) -> None:
    if changed and not args.force:
        raise UserError(
            f"{', '.join(map(str, changed))} was changed, or is somebody else's: {advice};"
            " --force moves it to FILE.old"
        )


def _is_changed(file: File) -> bool:
    """Is there something that we did not write, or a link (such as of a unit that is masked)?"""
    if not os.path.lexists(file.path):
        return False
    text = None if file.path.is_symlink() else _text(file.path)
    return text is None or not (is_ours(text) or text == file.text)


def _text(path: Path) -> str | None:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return None


def _write(file: File) -> None:
    """All at once. UserError."""
    fresh = file.path.with_name(f".{file.path.name}.new")
    try:
        file.path.parent.mkdir(parents=True, exist_ok=True)
        fresh.write_text(file.text)
        fresh.chmod(0o644)
        os.replace(fresh, file.path)
    except OSError as error:
        raise UserError(
            f"cannot write {file.path}: {error.strerror}: run it as root, or use --root"
        ) from None


def _do(command: list[str], args: argparse.Namespace) -> None:
    """Run it, or say it. UserError: it failed."""
    print(f"{'run':11} {' '.join(command)}")
    if args.dry_run:
        return
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"{command[0]}: {error}") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise UserError(f"{' '.join(command)}: {said[-1] if said else f'exit status {done.returncode}'}")


def _says(command: list[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=PATIENCE_S, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
