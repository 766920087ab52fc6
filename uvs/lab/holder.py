"""The process in which a lab lives: namespaces of its own, and nothing that outlasts it.

Run as a program by `namespaces`, without any import of uvs. It is the first process (init) of a PID
namespace: when it ends, however it ends, the kernel kills all processes of the lab, and with the last of
them go mounts, network namespaces, links and firewall rules. Root keeps its own user namespace; anybody
else gets one in which he is root.

It writes one line of JSON to standard output: {"pid": N} when the lab's namespaces stand, or
{"error": TEXT, "errno": N}. The lab ends with the process that started it, unless that writes the line
`keep`: then init stays until it is killed, and the answer is {"kept": true}.
"""

import contextlib
import ctypes
import json
import os
import signal
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC = 2, 4, 8
MS_REC, MS_PRIVATE, MS_SLAVE = 0x4000, 1 << 18, 1 << 19
PR_SET_PDEATHSIG = 1

_NAMESPACES = CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWPID | CLONE_NEWIPC
# iproute2's names of namespaces, xtables.lock and the director's socket and state are in /run, what it keeps
# over a reboot in /var/lib/uvs. What the machine has there is neither seen nor touched.
_PRIVATE = ("/run", "/var/lib/uvs")

libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """unshare(2); OSError if refused."""
    _checked(libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, flags: int) -> None:
    """setns(2) with a namespace file or a pidfd; OSError if refused."""
    _checked(libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2); OSError if refused."""
    args = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(libc.mount(*args), f"mount {kind or source} on {target}")


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the kernel send this process that signal when its parent ends; 0: no more."""
    _checked(libc.prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "prctl")


def enter_namespaces() -> None:
    """New namespaces; with a user namespace in which this user is root if he may not have them otherwise."""
    try:
        unshare(_NAMESPACES)
        return
    except PermissionError:
        pass
    uid, gid = os.getuid(), os.getgid()
    unshare(CLONE_NEWUSER | _NAMESPACES)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def private_mounts() -> None:
    """Private /run and state directory; /proc of the new PID namespace where the kernel allows it."""
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    for path in _PRIVATE:
        if os.path.isdir(path):
            mount("uvs-lab", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=755")
    for path in ("/run/netns", "/run/uvs", "/run/log"):
        os.mkdir(path, 0o755)
    # Refused in containers that hide parts of /proc; only `ps` inside the lab shows the difference.
    with contextlib.suppress(OSError):
        mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)


def _say(fd: int, **what: object) -> None:
    os.write(fd, json.dumps(what).encode() + b"\n")


def _init(report: int) -> None:
    """The lab's init: wait for nothing, reap everything."""
    die_with_parent()
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps orphans
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

    def keep(*_: object) -> None:
        die_with_parent(0)
        _say(report, kept=True)

    signal.signal(signal.SIGUSR1, keep)
    try:
        private_mounts()
    except OSError as e:
        _say(report, error=e.strerror, errno=e.errno)
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.chdir("/")
    _say(report)
    while True:
        signal.pause()


def main() -> int:
    """Make the namespaces, fork their init, report; end with the starter, or when told to leave it alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's: the starter decides what it means
    try:
        enter_namespaces()
    except OSError as e:
        _say(1, error=e.strerror, errno=e.errno)
        return 1
    die_with_parent()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _init(writer)
    os.close(writer)
    with open(reader) as init:
        answer = json.loads(init.readline() or '{"error": "the first process in them died"}')
        if "error" in answer:
            _say(1, **answer)
            return 1
        _say(1, pid=pid)
        if sys.stdin.readline() != "keep\n":
            return 1
        os.kill(pid, signal.SIGUSR1)
        init.readline()
    _say(1, kept=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
