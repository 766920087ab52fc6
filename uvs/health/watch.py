"""A real server's process, where that runs on this host: found, and noticed at once when it ends (pidfd)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from uvs.config.checks import Fault
from uvs.ipvs.ipproto import IPPROTO_UDP

PROC = Path("/proc")
TCP_LISTEN, UDP_BOUND = "0A", "07"  # include/net/tcp_states.h, as /proc/net/{tcp,udp} has them


def is_local(af: int, addr: bytes) -> bool:
    """Is it an address of this host? To one of its own the kernel would send from that very address."""
    text = socket.inet_ntop(af, addr)
    with socket.socket(af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect((text, 9))
        except OSError:
            return False
        return bool(sock.getsockname()[0] == text)


def _hex(addr: bytes) -> str:
    """As /proc/net/tcp writes an address: 32-bit words in host order."""
    words = (addr[i : i + 4] for i in range(0, len(addr), 4))
    return "".join(f"{int.from_bytes(word, 'little'):08X}" for word in words)


def sockets(af: int, addr: bytes, port: int, protocol: int, proc: Path = PROC) -> set[str]:
    """Inodes of the sockets that take what is sent to an address and port of this host."""
    name, state = ("udp", UDP_BOUND) if protocol == IPPROTO_UDP else ("tcp", TCP_LISTEN)
    wanted = {"net/" + name: {_hex(addr), _hex(bytes(4))}} if af == socket.AF_INET else {}
    mapped = bytes(10) + b"\xff\xff" + addr if af == socket.AF_INET else addr
    wanted[f"net/{name}6"] = {_hex(mapped), _hex(bytes(16))}
    found = set()
    for file, addresses in wanted.items():
        with contextlib.suppress(OSError):
            for line in (proc / file).read_text().splitlines()[1:]:
                fields = line.split()
                where, _, number = fields[1].partition(":")
                if where in addresses and int(number, 16) == port and fields[3] == state:
                    found.add(fields[9])
    return found


def owner(inodes: set[str], proc: Path = PROC) -> int | None:
    """The process that has one of these sockets; of several the one that is nobody's child among them."""
    links = {f"socket:[{inode}]" for inode in inodes}
    owners = set()
    for folder in proc.iterdir() if links else ():
        if folder.name.isdigit():
            with contextlib.suppress(OSError):  # gone meanwhile, or not ours to look into
                if any(os.readlink(fd) in links for fd in (folder / "fd").iterdir()):
                    owners.add(int(folder.name))
    first = [pid for pid in owners if _parent(pid, proc) not in owners]
    return min(first, default=None)


def _parent(pid: int, proc: Path) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int((proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])
    return 0


def name(pid: int, proc: Path = PROC) -> str:
    """A program's name."""
    with contextlib.suppress(OSError):
        return (proc / str(pid) / "comm").read_text().strip()
    return "?"


def find(fault: Fault, af: int, addr: bytes, port: int, protocol: int, proc: Path = PROC) -> int | None:
    """The server's process: by its PID file, by its name, else by the port at which it listens."""
    if fault.pid_file is not None:
        with contextlib.suppress(OSError, ValueError, IndexError):
            return int(Path(fault.pid_file).read_text().split()[0])
        return None
    if fault.process is not None:
        wanted = fault.process[:15]  # TASK_COMM_LEN
        found = {
            int(f.name) for f in proc.iterdir() if f.name.isdigit() and name(int(f.name), proc) == wanted
        }
        return min((pid for pid in found if _parent(pid, proc) not in found), default=None)
    return owner(sockets(af, addr, port, protocol, proc), proc)


class Watcher:
    """One server's process. `ended` is told `process 123 (nginx) has ended`, once for each that ends."""

    def __init__(self, find: Callable[[], int | None], ended: Callable[[str], None]) -> None:
        self._find, self._ended = find, ended
        self._fd = -1
        self._task: asyncio.Task[Any] | None = None
        self.pid: int | None = None

    def look(self) -> None:
        """Find the process, unless it is being watched; to be called when the server answers."""
        if self._fd < 0 and (self._task is None or self._task.done()):
            self._task = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> bool:
        pid = await asyncio.to_thread(self._find)  # /proc of a large host takes a while
        if pid is None:
            return False
        try:
            fd = os.pidfd_open(pid)
        except OSError:
            return False
        self._fd, self.pid = fd, pid
        asyncio.get_running_loop().add_reader(fd, self._gone, pid, name(pid))
        return True

    def _gone(self, pid: int, program: str) -> None:
        self._release()
        self._task = asyncio.get_running_loop().create_task(self._after(pid, program))

    async def _after(self, pid: int, program: str) -> None:
        """Another that has taken over (a program that renews itself) is no end."""
        if not await self._look():
            self._ended(f"process {pid} ({program}) has ended")

    def _release(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
        self._fd, self.pid = -1, None

    def close(self) -> None:
        """Watch no longer."""
        self._release()
        if self._task is not None:
            self._task.cancel()
