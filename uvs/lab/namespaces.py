"""Making a lab: its namespaces, links and processes, and entering them from outside.

All that a lab is hangs on one process (`holder`); whoever may send that a SIGKILL can remove the lab. Commands are run in
a host by joining its namespaces, not by a server inside, so that a terminal and signals work as they do outside.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from json import loads
from pathlib import Path
from typing import Any, NamedTuple

from uvs.errors import UserError
from uvs.lab import holder
from uvs.lab.topology import VIP, Host, Topology

SOCKET = "/run/uvs/control.sock"
STATE_DIR = "/run/uvs"
LOGS = "/run/log"
SWITCH = "switch"  # where the segments' bridges are, so that a host sees only frames addressed to it
SETTLE = 15.0  # seconds; links take up to one to come up


class LabError(UserError):
    """The lab cannot be made or used: one line that says why and what to do."""


class Daemon(NamedTuple):
    """A process started in the lab that outlives its starter."""

    host: str
    name: str
    pid: int

    def kill(self, number: int = signal.SIGKILL, timeout: float = 10) -> bool:
        """Send the signal and wait for its end; False if it still runs then."""
        try:
            fd = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            signal.pidfd_send_signal(fd, number)
            return bool(select.select([fd], [], [], timeout)[0])
        except ProcessLookupError:
            return True
        finally:
            os.close(fd)

    @property
    def running(self) -> bool:
        """Is it there (and not a zombie)?"""
        return _running(self.pid)


class Process(subprocess.Popen[Any]):
    """A Popen whose program runs in a host of the lab; signals go to the program itself.

    Between us and the program stands one process, which entered the lab's PID namespace for it. When that is
    killed the program is killed too.
    """

    def __init__(self, lab: Lab, host: str | None, argv: Sequence[str], **popen: Any) -> None:
        reader, writer = os.pipe()

        def enter() -> None:
            lab.join(host, pid_namespace=True)
            child = os.fork()
            if child:
                os.write(writer, struct.pack("=i", child))
                _stand_by(child)
            holder.die_with_parent()

        environment = lab.environment(popen.pop("env", None))
        self.program = 0
        try:
            super().__init__(list(argv), env=environment, preexec_fn=enter, **popen)  # noqa: PLW1509
            os.close(writer)
            writer = -1
            self.program = struct.unpack("=i", os.read(reader, 4))[0]
        finally:
            os.close(reader)
            if writer >= 0:
                os.close(writer)

    def send_signal(self, sig: int) -> None:
        """Send a signal to the program in the lab."""
        if self.poll() is None and self.program:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.program, sig)


def _stand_by(child: int) -> None:
    """Wait for the program on behalf of Popen; end as it ends."""
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.closerange(0, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        signal.signal(number, signal.SIG_DFL) if number not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), number)
    os._exit(os.WEXITSTATUS(status))


class Call:
    """A Python function that runs in a host's network namespace, in a forked process; its result is pickled."""

    def __init__(self, lab: Lab, host: str | None, function: Callable[..., Any], *args: Any) -> None:
        self._reader, writer = os.pipe()
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid:
            os.close(writer)
            return
        try:
            os.close(self._reader)
            holder.die_with_parent(parent)
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            lab.join(host)
            answer = (True, function(*args))
        except BaseException as e:
            answer = (False, _portable(e))
        try:
            with open(writer, "wb") as file:
                pickle.dump(answer, file)
        finally:
            os._exit(0)

    def result(self, timeout: float = 60) -> Any:
        """What the function returned; raises what it raised. TimeoutError (and its end) after `timeout` seconds."""
        if self._reader < 0:
            raise RuntimeError("the result was taken already")
        data = bytearray()
        deadline = time.monotonic() + timeout
        try:
            while True:
                if not select.select([self._reader], [], [], max(0, deadline - time.monotonic()))[0]:
                    os.kill(self.pid, signal.SIGKILL)
                    raise TimeoutError(f"no result within {timeout:g} s")
                chunk = os.read(self._reader, 1 << 16)
                if not chunk:
                    break
                data += chunk
        finally:
            self.close()
        if not data:
            raise LabError("a function called in the lab died without a result")
        done, value = pickle.loads(data)
        if not done:
            raise value
        return value

    def close(self) -> None:
        """End it, if it has not ended."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


def _portable(e: BaseException) -> BaseException:
    """The exception with its traceback as a note, if it can be pickled; else one that tells it."""
    told = "".join(traceback.format_exception(e)).rstrip()
    try:
        pickle.loads(pickle.dumps(e))
        e.add_note(f"in the lab: {told}")
        return e
    except Exception:
        return LabError(told)


class Lab:
    """A lab that stands: its topology and the PID of its holder."""

    def __init__(self, topology: Topology, pid: int) -> None:
        self.topology = topology
        self.pid = pid
        self._starter: subprocess.Popen[bytes] | None = None

    # ---- life

    @classmethod
    def create(cls, topology: Topology, stay: bool = False) -> Lab:
        """Make namespaces and links. Unless `stay`, the lab vanishes with this process. LabError if refused."""
        program = [sys.executable, "-I", "-S", holder.__file__, "stay" if stay else "bound"]
        starter = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
        assert starter.stdout is not None
        answer = loads(starter.stdout.readline() or b'{"error": "its first process died"}')
        if "error" in answer:
            starter.wait()
            starter.stdout.close()
            raise LabError(refusal(answer.get("errno", 0), answer["error"]))
        lab = cls(topology, answer["pid"])
        if stay:
            starter.wait()
            starter.stdout.close()
        else:
            lab._starter = starter
        try:
            lab._build()
        except BaseException:
            lab.destroy()
            raise
        return lab

    def destroy(self) -> None:
        """Remove it, and wait until its processes are gone."""
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(self.pid)
            try:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
                select.select([fd], [], [], 10)
            finally:
                os.close(fd)
        if self._starter:
            self._starter.wait()
            if self._starter.stdout:
                self._starter.stdout.close()
            self._starter = None

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *_: object) -> None:
        self.destroy()

    @property
    def running(self) -> bool:
        """Does it still stand?"""
        return _running(self.pid)

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
        own = os.path.dirname(sys.executable)
        path = environment.get("PATH", os.defpath).split(os.pathsep)
        path += [d for d in ("/usr/sbin", "/sbin") if d not in path]
        environment["PATH"] = os.pathsep.join([own, *(d for d in path if d != own)])
        environment |= {"UVS_SOCKET": SOCKET, "UVS_STATE_DIR": STATE_DIR}
        return environment | dict(extra or {})

    def popen(self, host: str | None, argv: Sequence[str], **popen: Any) -> Process:
        """Popen(argv) in a host. FileNotFoundError and the like as Popen raises them."""
        return Process(self, host, argv, **popen)

    def run(
        self, host: str | None, argv: Sequence[str], *, stdin: str = "", timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run argv in a host to its end; text output captured. TimeoutError (after killing it) if it does not end."""
        pipe = subprocess.PIPE
        with self.popen(host, argv, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                out, err = process.communicate(stdin, timeout=timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
                raise TimeoutError(
                    f"{host}: {' '.join(argv)}: no end within {timeout:g} s: {err[-500:]}"
                ) from None
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def check(self, host: str | None, argv: Sequence[str], *, stdin: str = "", timeout: float = 60) -> str:
        """As `run`, the output; LabError unless its exit status is 0."""
        done = self.run(host, argv, stdin=stdin, timeout=timeout)
        if done.returncode:
            why = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
            raise LabError(f"{host or 'lab'}: {' '.join(argv)}: {why[-1]}")
        return done.stdout

    def start(self, host: str, name: str, argv: Sequence[str]) -> Daemon:
        """Start a process that stays until the lab ends. Its output goes to /run/log/HOST-NAME.log in the lab."""
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.join(host, pid_namespace=True)
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
                os.execvpe(argv[0], list(argv), self.environment())
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
        return Daemon(host, name, struct.unpack("=i", data)[0])

    def log(self, host: str, name: str) -> str:
        """What a process started with `start` has said."""
        try:
            return self.path(f"{LOGS}/{host}-{name}.log").read_text(errors="replace")
        except FileNotFoundError:
            return ""

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
        names = [SWITCH, *(h.name for h in hosts)]
        self._ip(None, [f"netns add {n}" for n in names])
        for name in names:
            sysctls = {} if name == SWITCH else self.topology[name].sysctls
            self.call(name, _write_sysctls, sysctls)
        self._ip(SWITCH, self._switch())
        for host in hosts:
            self._ip(host.name, _addresses(host))
        self._ip(SWITCH, ["link set lo up"])
        self.call(None, _write_hosts, self.topology)
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
            self.begin(h.name, _wait_links, [i.name for i in h.interfaces if i.segment])
            for h in self.topology.hosts
        ]
        waiting.append(self.begin(SWITCH, _wait_ports))
        late = [name for call in waiting for name in call.result(SETTLE + 10)]
        if late:
            raise LabError(f"links do not come up: {', '.join(late)}: is the machine very busy? try again")

    def offload(self, on: bool) -> None:
        """Checksum and segmentation offload of all links. Off: a capture shows what would be on a wire (slower)."""
        for name in (SWITCH, *(h.name for h in self.topology.hosts)):
            self.call(name, _set_offload, on)


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
                return f"this machine forbids namespaces to ordinary users: sudo sysctl -w {mend} (or run this with sudo)"
    if number == errno.ENOSPC:
        return "no more namespaces allowed (user.max_*_namespaces): remove other labs: uvs lab status"
    return f"cannot make namespaces: {text}: run this with sudo; in a container: start it with --privileged"


# ---- run inside


def _write_sysctls(sysctls: Mapping[str, str]) -> None:
    for name, value in sysctls.items():
        try:
            Path("/proc/sys", name).write_text(value)
        except FileNotFoundError:
            if "ipv6" not in name:  # a kernel without IPv6 is told where it matters
                raise


def _addresses(host: Host) -> Iterator[str]:
    """ip(8) lines. On an Ethernet interface IPv6 VIPs are deprecated, lest one become the source of the host's own packets."""
    yield "link set lo up"
    for interface in host.interfaces:
        for address in interface.addresses:
            options = ""
            if ":" in address:
                options = (
                    " nodad preferred_lft 0" if interface.segment and address.endswith("/128") else " nodad"
                )
            yield f"address add {address} dev {interface.name}{options}"
        yield f"link set {interface.name} up"
    for gateway in host.gateways:
        yield f"route add default via {gateway}"


def _write_hosts(topology: Topology) -> None:
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    for host in topology.hosts:
        lines += [f"{host.address(family)} {host.name}" for family in (4, 6)]
    lines += [f"{VIP[4]} vip", f"{VIP[6]} vip"]
    Path("/run/hosts").write_text("\n".join(lines) + "\n")
    with contextlib.suppress(OSError):
        holder.mount("/run/hosts", "/etc/hosts", "", 4096)  # MS_BIND


def _wait_links(names: Sequence[str]) -> list[str]:
    """Wait until interfaces have carrier and their link-local addresses; names of those that have not."""
    late = list(names)
    deadline = time.monotonic() + SETTLE
    v6 = Path("/proc/net/if_inet6")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        while late and time.monotonic() < deadline:
            ready = (
                {row.split()[5] for row in v6.read_text().splitlines() if row.startswith("fe80")}
                if v6.exists()
                else late
            )
            late = [n for n in late if not (_flags(sock, n) & 0x40 and n in ready)]  # IFF_RUNNING
            if late:
                time.sleep(0.02)
    return [f"{socket.gethostname()} {n}" for n in late]


def _flags(sock: socket.socket, name: str) -> int:
    request = struct.pack("16sh14x", name.encode(), 0)
    flags: int = struct.unpack_from("16sh", fcntl.ioctl(sock, 0x8913, request))[1]  # SIOCGIFFLAGS
    return flags & 0xFFFF


def _wait_ports() -> list[str]:
    """Wait until all bridge ports forward; those that do not."""
    deadline = time.monotonic() + SETTLE
    while True:
        answer = subprocess.run(
            ["bridge", "-j", "link", "show"], capture_output=True, text=True, check=True
        ).stdout
        late = [port["ifname"] for port in loads(answer or "[]") if port.get("state") != "forwarding"]
        if not late or time.monotonic() > deadline:
            return late
        time.sleep(0.02)


def _set_offload(on: bool) -> None:
    """ethtool -K DEV tx/rx/sg/tso/gso/gro for all veth of this namespace (linux/ethtool.h, struct ethtool_value)."""
    commands = (0x15, 0x17, 0x19, 0x1F, 0x24, 0x2C)  # ETHTOOL_S: RXCSUM, TXCSUM, SG, TSO, GSO, GRO
    order = commands if on else commands[::-1]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            if name == "lo" or len(name) == 1:
                continue
            for command in order:
                value = bytearray(struct.pack("=II", command, int(on)))
                data = (ctypes_address(value), value)
                with contextlib.suppress(OSError):
                    fcntl.ioctl(sock, 0x8946, struct.pack("16sP8x", name.encode(), data[0]))  # SIOCETHTOOL


def ctypes_address(data: bytearray) -> int:
    """Where the bytes lie in memory."""
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
