"""`uvs exec`: runs an unmodified program (ipvsadm, keepalived, ldirectord, a script) against the director.

The program is given a library, csrc/preload.c, that stands before libc. What cannot be reached that way
(a static program, one that gains privileges) is refused here, since it would silently use the kernel's
ip_vs instead, or none.
"""

from __future__ import annotations

import argparse
import errno
import os
import stat
import struct
import sys
import time
from importlib.resources import files
from pathlib import Path

from uvs.control.client import Client, Unreachable
from uvs.control.paths import check_socket, default_socket
from uvs.errors import UserError

CANNOT, NOT_FOUND = 126, 127  # as env(1) and shells have them
LIBRARY = "preload.so"
TIMEOUT_S = 10.0
RESTART_S = 2.0
_INTERPRETERS = 4  # of scripts that name scripts, as the kernel follows them (BINPRM_MAX_RECURSION)
_PT_INTERP = 3

_EPILOG = """\
examples:
  uvs exec -- ipvsadm -Ln
  uvs exec -- keepalived -n -l -f /etc/keepalived/keepalived.conf
  uvs exec -- sh -c 'echo 1 > /proc/sys/net/ipv4/vs/expire_nodest_conn'
the program and all that it starts see the director's IPVS: netlink, sockopts, /proc/net/ip_vs*,
/proc/sys/net/ipv4/vs.  The exit status is the program's; 126: it cannot be run, 127: it was not found.
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs exec`'s options."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="S",
        help="seconds that the program waits for a director that does not answer (default 10)",
    )
    parser.add_argument(
        "--restart",
        type=float,
        default=RESTART_S,
        metavar="S",
        help="seconds that the program waits for a director that is gone, perhaps to come back (default 2)",
    )
    parser.add_argument("program", metavar="-- CMD", help="the program")
    parser.add_argument("words", nargs=argparse.REMAINDER, metavar="…", help="its arguments")


def main(args: argparse.Namespace) -> int:
    """Become the program."""
    if not 0 < args.timeout < 1e6:
        raise UserError(f"--timeout takes seconds above 0, not {args.timeout:g}", 2)
    if not 0 <= args.restart < 1e6:
        raise UserError(f"--restart takes seconds, not {args.restart:g}", 2)
    program = find(args.program, os.environ.get("PATH", os.defpath))
    check(program)
    environment = with_shim(dict(os.environ), library(), default_socket(), args.timeout, args.restart)
    reach(args.timeout, args.restart)
    sys.stdout.flush()
    try:
        os.execve(program, [args.program, *args.words], environment)
    except OSError as e:
        raise UserError(f"{program}: {e.strerror}", CANNOT) from None


def reach(timeout: float, restart: float) -> None:
    """Is there a director? One that is gone is waited for, `restart` seconds. UserError if there is none."""
    end = time.monotonic() + restart
    while True:
        try:
            Client(timeout=timeout).close()
            return
        except Unreachable as e:
            if e.errno != errno.ENOENT or time.monotonic() >= end:
                raise UserError(str(e.strerror)) from None
        time.sleep(0.02)


def library() -> Path:
    """The shim that was built with this package."""
    path = Path(str(files("uvs") / LIBRARY))
    if not path.exists():
        raise UserError(f"{path} is missing: install uvs anew (it is built on Linux only)")
    return path


def find(name: str, path: str) -> str:
    """The file that execvp(3) would run. UserError 127: there is none; 126: it cannot be run."""
    folders = [""] if "/" in name else [folder or "." for folder in path.split(":")]
    candidates = [os.path.join(folder, name) for folder in folders]
    present = [c for c in candidates if os.path.exists(c) and ("/" in name or not os.path.isdir(c))]
    for candidate in present:
        if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    if not present:
        raise UserError(f"{name}: not found: install it, or give its path", NOT_FOUND)
    what = "is a directory" if os.path.isdir(present[0]) else "is not executable: chmod +x it"
    raise UserError(f"{present[0]} {what}", CANNOT)


def check(program: str) -> None:
    """Can the shim be put into this program? UserError, status 2, says why not."""
    ours = interpreter(Path(sys.executable).read_bytes()[:4096])
    for _ in range(_INTERPRETERS):
        try:
            with open(program, "rb") as file:
                head = file.read(4096)
        except PermissionError:
            return  # to be run, but not to be read: let the kernel decide
        if not head.startswith(b"#!"):
            break
        line = head[2:].split(b"\n", 1)[0].split()
        if not line:
            return
        program = os.fsdecode(line[0])
        if not os.path.exists(program):
            raise UserError(f"{program}, which the script names, was not found", NOT_FOUND)
    if gains_privileges(program):
        raise UserError(
            f"{program} gains privileges (setuid, setgid or file capabilities), so that no library can be "
            "put before it: run it as the user that it becomes",
            2,
        )
    if not head.startswith(b"\x7fELF"):
        return
    loader = interpreter(head)
    if loader is None:
        raise UserError(
            f"{program} is linked statically, so that no library can be put before it: use "
            "a dynamically linked build, or uvsadm",
            2,
        )
    if ours is not None and os.path.realpath(loader) != os.path.realpath(ours):
        raise UserError(
            f"{program} uses another C library ({loader}) than uvs ({ours}): use a build for this system, "
            "or uvsadm",
            2,
        )


def interpreter(elf: bytes) -> str | None:
    """The dynamic linker that an ELF file's beginning names (PT_INTERP); None if it has none.

    Program headers and the name are looked for in what is given: linkers put them first.
    """
    if len(elf) < 64 or elf[:4] != b"\x7fELF" or elf[4] not in (1, 2) or elf[5] not in (1, 2):
        return None
    order = "<" if elf[5] == 1 else ">"
    wide = elf[4] == 2
    (at,) = struct.unpack_from(order + ("Q" if wide else "I"), elf, 32 if wide else 28)
    size, count = struct.unpack_from(order + "HH", elf, 54 if wide else 42)
    for start in range(at, at + size * count, size or 1):
        if start + (56 if wide else 32) > len(elf):
            return None
        if struct.unpack_from(order + "I", elf, start)[0] != _PT_INTERP:
            continue
        if wide:
            offset, length = struct.unpack_from(order + "Q16xQ", elf, start + 8)
        else:
            offset, length = struct.unpack_from(order + "I8xI", elf, start + 4)
        return os.fsdecode(elf[offset : offset + length].rstrip(b"\0")) or None
    return None


def gains_privileges(program: str) -> bool:
    """Would the dynamic linker be told to be careful (AT_SECURE, cap_bprm_creds_from_file)?"""
    try:
        found = os.stat(program)
        if os.statvfs(program).f_flag & os.ST_NOSUID:
            return False
        if found.st_mode & stat.S_ISUID and found.st_uid != os.getuid():
            return True
        setgid = stat.S_ISGID | stat.S_IXGRP
        if found.st_mode & setgid == setgid and found.st_gid != os.getgid():
            return True
        return os.getuid() != 0 and "security.capability" in os.listxattr(program)
    except OSError:
        return False


def with_shim(
    environ: dict[str, str], shim: Path, socket: str, timeout: float, restart: float = RESTART_S
) -> dict[str, str]:
    """The environment in which programs find the shim, and the shim the director; times in seconds."""
    path = os.path.abspath(socket)
    try:
        check_socket(path)
    except OSError as e:
        raise UserError(str(e.strerror)) from None
    before = environ.get("LD_PRELOAD", "")
    name = str(shim)
    if any(c in name for c in " :\t\n"):
        # LD_PRELOAD cannot hold such a path; a folder to search may have spaces.
        if any(c in name for c in ":;"):
            raise UserError(f"{name}: the dynamic linker takes no ':' or ';' in a path: move uvs elsewhere")
        folders = [str(shim.parent), environ.get("LD_LIBRARY_PATH", "")]
        environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
        name = shim.name
    if name not in before.replace(":", " ").split():
        environ["LD_PRELOAD"] = f"{name}:{before}" if before else name
    environ["UVS_SOCKET"] = path
    environ["UVS_TIMEOUT"] = f"{timeout:g}"
    environ["UVS_RESTART"] = f"{restart:g}"
    return environ
