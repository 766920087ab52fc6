"""Making a lab: its namespaces, links and processes, and entering them from outside.

All that a lab is hangs on one process (`holder`); when that gets a SIGKILL, nothing of the lab is left.
Commands run in a host by joining its namespaces, not by a server inside, so that a terminal and signals work
as they do outside.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import loads
from pathlib import Path
from typing import Any

from uvs.lab import holder, links
from uvs.lab.enter import Call, Daemon, LabError, Member, Process, fork, running
from uvs.lab.topology import Topology

SOCKET = "/run/uvs/control.sock"
STATE_DIR = "/run/uvs"
LOGS = "/run/log"
SWITCH = "switch"  # where the segments' bridges are, so that a host sees only frames addressed to it


class Lab:
    """A lab that stands: its topology and the PID of its holder."""

    def __init__(self, topology: Topology, pid: int, starter: subprocess.Popen[str] | None = None) -> None:
        self.topology = topology
        self.pid = pid
        self._starter = starter  # of a lab that ends with this process

    @property
    def names(self) -> list[str]:
        """Names of its network namespaces: the hosts and the switch."""
        return [SWITCH, *(h.name for h in self.topology.hosts)]

    # ---- life

    @classmethod
    def create(cls, topology: Topology) -> Lab:
        """Make namespaces and links; they end with this process, unless `keep` is called."""
        pipe = subprocess.PIPE
        program = [sys.executable, "-I", "-S", holder.__file__]
        starter = subprocess.Popen(program, stdin=pipe, stdout=pipe, text=True)
        assert starter.stdout
        answer = loads(starter.stdout.readline() or '{"error": "the process that holds them died"}')
        lab = cls(topology, answer.get("pid", 0), starter)
        try:
            if "error" in answer:
                raise LabError(refusal(answer.get("errno", 0), answer["error"]))
            lab._build()
        except BaseException:
            lab.destroy()
            raise
        return lab

    def keep(self) -> None:
        """Let it stay when this process ends."""
        assert self._starter
        answer, _ = self._starter.communicate("keep\n", timeout=60)
        if "kept" not in answer:
            raise LabError("the lab died while it was made: try again")
        self._starter = None

    def destroy(self) -> None:
        """Remove it, and wait until its processes are gone."""
        if self.pid:
            Daemon("lab", "init", self.pid).kill()
        if self._starter:
            self._starter.communicate()
            self._starter = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        if self._starter:
            self.destroy()

    @property
    def stands(self) -> bool:
        """Does it still stand?"""
        return running(self.pid)

    # ---- entering it

    def join(self, host: str | None, pid_namespace: bool = False) -> None:
        """Move the calling process (of one thread) into a host's namespaces; `host` None: the lab's own.

        With `pid_namespace` its children will be in the lab's PID namespace.
        """
        fd = os.pidfd_open(self.pid)
        try:
            flags = holder.CLONE_NEWNS | holder.CLONE_NEWNET | holder.CLONE_NEWIPC
            if os.stat(f"/proc/{self.pid}/ns/user").st_ino != os.stat("/proc/self/ns/user").st_ino:
                flags |= holder.CLONE_NEWUSER
            cwd = os.getcwd()
            holder.setns(fd, flags | (holder.CLONE_NEWPID if pid_namespace else 0))
        finally:
            os.close(fd)
        with contextlib.suppress(OSError):
            os.chdir(cwd)  # entering a mount namespace leads to /
        if host is None:
            return
        ns = os.open(f"/run/netns/{host}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            holder.setns(ns, holder.CLONE_NEWNET)
        finally:
            os.close(ns)
        holder.unshare(holder.CLONE_NEWNS | holder.CLONE_NEWUTS)
        socket.sethostname(host)
        holder.mount("none", "/", "", holder.MS_REC | holder.MS_SLAVE)
        with contextlib.suppress(OSError):  # /sys/class/net of this host; refused in some containers
            holder.mount(host, "/sys", "sysfs", holder.MS_NOSUID | holder.MS_NODEV | holder.MS_NOEXEC)

    def environment(self, extra: Mapping[str, str] | None = None) -> dict[str, str]:
        """What programs in the lab see: uvs's own commands on PATH, and where the director's socket is."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("XDG_", "UVS_", "NOTIFY_"))}
        own = [os.path.dirname(sys.executable), sysconfig.get_path("scripts")]
        path = [*own, *environment.get("PATH", os.defpath).split(os.pathsep), "/usr/sbin", "/sbin"]
        environment["PATH"] = os.pathsep.join(dict.fromkeys(path))
        environment |= {"UVS_SOCKET": SOCKET, "UVS_STATE_DIR": STATE_DIR}
        return environment | dict(extra or {})

    def popen(self, host: str | None, argv: Sequence[str], **popen: Any) -> Process:
        """Popen(argv) in a host. FileNotFoundError and the like as Popen raises them."""
        return Process(self, host, argv, **popen)

    def run(
        self, host: str | None, argv: Sequence[str], *, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv in a host to its end, its output captured as text; TimeoutError, and it is killed."""
        pipe = subprocess.PIPE
        with self.popen(host, argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                command = " ".join(argv)
                raise TimeoutError(f"{host}: {command}: no end within {timeout:g} s: {err[-500:]}") from None
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def check(self, host: str | None, argv: Sequence[str], *, stdin: str = "", timeout: float = 60) -> str:
        """As `run`, the output; LabError unless its exit status is 0."""
        done = self.run(host, argv, stdin=stdin, timeout=timeout)
        if done.returncode:
            why = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise LabError(f"{host or 'lab'}: {' '.join(argv)}: {why[-1]}")
        return done.stdout

    def start(
        self, host: str, name: str, argv: Sequence[str], *, notify: bool = False, timeout: float = 60
    ) -> Daemon:
        """Start a process that stays until the lab ends; its output goes to HOST-NAME.log in /run/log.

        With `notify` wait until it says READY=1 (sd_notify(3)); LabError with its last words if it does not.
        """
        if not notify:
            return self._start(host, name, argv, {})
        inside = f"{LOGS}/{host}-{name}.notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            outside = self.path(inside)
            outside.unlink(missing_ok=True)
            sock.bind(str(outside))
            sock.settimeout(0.05)
            daemon = self._start(host, name, argv, {"NOTIFY_SOCKET": inside})
            deadline = time.monotonic() + timeout
            while True:
                try:
                    if b"READY=1" in sock.recv(4096).split(b"\n"):
                        return daemon
                except TimeoutError:
                    pass
                if not daemon.running:
                    raise LabError(f"{host}: {name} ended: {self.last_words(host, name)}")
                if time.monotonic() > deadline:
                    daemon.kill()
                    raise LabError(
                        f"{host}: {name} is not ready after {timeout:g} s: {self.last_words(host, name)}"
                    )

    def _start(self, host: str, name: str, argv: Sequence[str], env: Mapping[str, str]) -> Daemon:
        """Fork into the PID namespace; there fork again, so that its init becomes the daemon's parent."""
        reader, writer = os.pipe()
        pid = fork()
        if pid == 0:
            try:
                self.join(host, pid_namespace=True)
                middle = os.fork()
                if middle:
                    os.waitpid(middle, 0)
                    os._exit(0)
                child = os.fork()
                if child:
                    os.write(writer, struct.pack("=i", child))
                    os._exit(0)
                os.setsid()
                log = os.open(f"{LOGS}/{host}-{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(log, 1)
                os.dup2(log, 2)
                os.closerange(3, 4096)
                os.execvpe(argv[0], list(argv), self.environment(env))
            except BaseException as e:
                os.write(2, f"{argv[0]}: {e}\n".encode())
            finally:
                os._exit(127)
        os.close(writer)
        try:
            data = os.read(reader, 4)
        finally:
            os.close(reader)
            os.waitpid(pid, 0)
        if not data:
            raise LabError(f"{host}: cannot start {name}: the lab is gone: make it anew")
        inside = struct.unpack("=i", data)[0]
        return Daemon(host, name, next((p.pid for p in self.processes() if p.inside == inside), -1))

    def processes(self) -> list[Member]:
        """The lab's processes, its init left out."""
        space = os.stat(f"/proc/{self.pid}/ns/pid").st_ino
        networks = {self.path(f"/run/netns/{n}").stat().st_ino: n for n in self.names}
        found = []
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit() or int(entry.name) == self.pid:
                continue
            with contextlib.suppress(OSError, IndexError):
                if os.stat(f"{entry.path}/ns/pid").st_ino == space:
                    status = Path(entry.path, "status").read_text()
                    inside = int(status.partition("NSpid:")[2].split("\n")[0].split()[-1])
                    host = networks.get(os.stat(f"{entry.path}/ns/net").st_ino, "-")
                    argv = Path(entry.path, "cmdline").read_bytes().decode(errors="replace").split("\0")[:-1]
                    found.append(Member(int(entry.name), inside, host, argv))
        return sorted(found)

    def log(self, host: str, name: str) -> str:
        """What a process started with `start` has said."""
        try:
            return self.path(f"{LOGS}/{host}-{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def last_words(self, host: str, name: str) -> str:
        """The last line of a process's log."""
        return (self.log(host, name).strip().splitlines() or ["it said nothing"])[-1]

    def path(self, path: str) -> Path:
        """A path of the lab's, seen from outside."""
        return Path(f"/proc/{self.pid}/root{path}")

    def call(self, host: str | None, function: Callable[..., Any], *args: Any, timeout: float = 60) -> Any:
        """function(*args) in a host's network namespace (another process); its result."""
        return Call(self, host, function, *args).result(timeout)

    def begin(self, host: str | None, function: Callable[..., Any], *args: Any) -> Call:
        """As `call`, without waiting for it."""
        return Call(self, host, function, *args)

    # ---- what it consists of

    def _build(self) -> None:
        hosts = self.topology.hosts
        self._ip(None, [f"netns add {n}" for n in self.names])
        for name in self.names:
            sysctls = {} if name == SWITCH else self.topology[name].sysctls
            self.call(name, links.write_sysctls, sysctls)
        self._ip(SWITCH, self._switch())
        for host in hosts:
            self._ip(host.name, links.addresses(host))
        self._ip(SWITCH, ["link set lo up"])
        self.call(None, links.write_hosts, self.topology)
        self.settle()

    def _switch(self) -> Iterator[str]:
        for segment in self.topology.segments:
            yield f"link add {segment} type bridge mcast_snooping 0"
            yield f"link set {segment} addrgenmode none up"
            for host in self.topology.hosts:
                for i in host.interfaces:
                    if i.segment == segment:
                        port = f"{host.name}-{segment}"
                        yield f"link add {port} type veth peer name {i.name} netns {host.name}"
                        yield f"link set {port} addrgenmode none master {segment} up"

    def _ip(self, host: str | None, lines: Sequence[str] | Iterator[str]) -> None:
        try:
            self.check(host, ["ip", "-batch", "-"], stdin="\n".join(lines) + "\n")
        except FileNotFoundError:
            raise LabError("no `ip` command: apt-get install iproute2") from None

    def settle(self) -> None:
        """Wait until all links and the switch's ports forward. LabError if they do not."""
        waiting = [
            self.begin(h.name, links.wait_links, [i.name for i in h.interfaces if i.segment])
            for h in self.topology.hosts
        ]
        waiting.append(self.begin(SWITCH, links.wait_ports))
        late = [name for call in waiting for name in call.result(links.SETTLE + 10)]
        if late:
            raise LabError(f"links do not come up: {', '.join(late)}: is the machine very busy? try again")

    def offload(self, on: bool) -> None:
        """Offloads of all links. Off: a capture shows what would be on a wire (slower)."""
        for name in self.names:
            self.call(name, links.set_offload, on)


def refusal(number: int, text: str) -> str:
    """Why namespaces were refused, and what mends it."""
    knobs = (
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=10000"),
        ("user/max_net_namespaces", "0", "user.max_net_namespaces=10000"),
    )
    for name, bad, mend in knobs:
        with contextlib.suppress(OSError):
            if Path("/proc/sys", name).read_text().strip() == bad:
                return f"only root may make namespaces here: sudo sysctl -w {mend} (or run this with sudo)"
    if number == errno.ENOSPC:
        return "no more namespaces allowed (user.max_*_namespaces): remove other labs: uvs lab status"
    return f"cannot make namespaces: {text}: run this with sudo; in a container: start it with --privileged"
