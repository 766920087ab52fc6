"""`uvs doctor`: what this machine lacks, or has set wrongly, for a director, and the command that mends it.

Each check is a function of a `Host` (what it may read and try) that returns findings; `System` is
the machine itself.  Without privileges, what needs them is tried in a user namespace, where a lab
of an ordinary user would run.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from uvs.control.client import Client, Unreachable
from uvs.ipvs.spec import IpvsError, QueueRow

State = Literal["ok", "note", "warn", "fail"]
Attempt = tuple[bool, str]  # did it work; if not, why

# include/uapi/linux/capability.h
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13

DIRECTOR_S = 5.0  # a director that is busy answers later, one that is stopped never
_QUEUE_TRIES = range(65535, 65519, -1)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. `mend` is a command line (or what to do), None if there is nothing to mend."""

    name: str
    state: State
    detail: str
    mend: str | None = None


class Counters(NamedTuple):
    """What a running director has counted since its start."""

    queues: list[QueueRow]
    table: dict[str, int]


class Host(Protocol):
    """What the checks may ask of a machine."""

    def read(self, path: str) -> str | None:
        """A file's text, stripped; None if it is not there or not to be read."""

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none if it is not there."""

    def bind_queue(self) -> Attempt:
        """Bind a spare queue number of NFQUEUE, and let it go."""

    def rule_back_ends(self) -> list[tuple[str, bool, str]]:
        """Each rule back end: its name, whether its rules were accepted, and more about it."""

    def packet_socket(self) -> Attempt:
        """Open an AF_PACKET socket."""

    def user_namespace(self) -> Attempt:
        """Make a user namespace with a network namespace in it."""

    def has_module(self, name: str) -> bool:
        """Whether the kernel has the module loaded, built in or at hand."""

    def director(self) -> Counters | str:
        """What the running director has counted; or why there is none to ask."""


def capabilities(host: Host) -> int:
    """The effective capabilities of this process as a bit mask (proc(5), CapEff)."""
    for line in (host.read("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def check_privileges(host: Host) -> Iterator[Finding]:
    """CAP_NET_ADMIN for queues, rules and routes; CAP_NET_RAW for sending."""
    have = capabilities(host)
    wanted = {"CAP_NET_ADMIN": CAP_NET_ADMIN, "CAP_NET_RAW": CAP_NET_RAW}
    lacking = [name for name, bit in wanted.items() if not have >> bit & 1]
    if not lacking:
        yield Finding("privileges", "ok", "CAP_NET_ADMIN and CAP_NET_RAW are there")
        return
    works, _ = host.user_namespace()
    detail = f"{' and '.join(lacking)} missing: a director of this host cannot run"
    if works:
        yield Finding("privileges", "warn", f"{detail}; a lab can (uvs lab demo)", "sudo uvs run")
    else:
        yield Finding("privileges", "fail", detail, "run as root: sudo uvs doctor, sudo uvs run")


def check_queue(host: Host) -> Iterator[Finding]:
    """NFQUEUE, by binding a queue."""
    works, why = host.bind_queue()
    if works:
        yield Finding("NFQUEUE", "ok", "a queue can be bound")
    else:
        mend = "modprobe nfnetlink_queue" if host.has_module("nfnetlink_queue") else _OTHER_KERNEL
        yield Finding("NFQUEUE", "fail", f"no queue can be bound: {why}", mend)


_OTHER_KERNEL = "use a kernel that has it, such as Debian's linux-image-amd64"


def check_rules(host: Host) -> Iterator[Finding]:
    """A rule back end: one that works is enough."""
    ends = host.rule_back_ends()
    good = [(name, about) for name, works, about in ends if works]
    bad = "; ".join(f"{name}: {why}" for name, works, why in ends if not works)
    if good:
        (best, about), others = good[0], ", ".join(name for name, _ in good[1:])
        detail = f"{best}: {about}" if about else best
        detail += f"; also usable: {others}" if others else ""
        yield Finding("rule back end", "ok", detail + (f"; not usable: {bad}" if bad else ""))
    else:
        yield Finding(
            "rule back end",
            "fail",
            f"nothing can divert packets: {bad or 'no back end known'}",
            "apt-get install nftables iptables ipset, on a kernel with nft's queue or xt_NFQUEUE and ip_set",
        )


def check_packet_socket(host: Host) -> Iterator[Finding]:
    """AF_PACKET, by which packets leave."""
    works, why = host.packet_socket()
    if works:
        yield Finding("AF_PACKET", "ok", "a packet socket can be opened")
    else:
        mend = "modprobe af_packet" if host.has_module("af_packet") else _OTHER_KERNEL
        yield Finding("AF_PACKET", "fail", f"no packet socket: {why}", mend)


def check_forwarding(host: Host) -> Iterator[Finding]:
    """ip_forward: the replies of NAT servers pass through the director."""
    for name, key, state in (
        ("IPv4 forwarding", "net.ipv4.ip_forward", "fail"),
        ("IPv6 forwarding", "net.ipv6.conf.all.forwarding", "warn"),
    ):
        value = _sysctl(host, key)
        if value is None:
            yield Finding(name, "note", f"{key} does not exist: this kernel does not speak it")
        elif value == 0:
            detail = f"{key} is 0: replies of NAT servers are not forwarded to clients"
            yield Finding(name, "fail" if state == "fail" else "warn", detail, f"sysctl -w {key}=1")
        else:
            yield Finding(name, "ok", f"{key} is {value}")


def check_rp_filter(host: Host) -> Iterator[Finding]:
    """Strict reverse path filtering; the kernel takes the larger of `all` and the device's."""
    root = "net.ipv4.conf"
    everywhere = _sysctl(host, f"{root}.all.rp_filter") or 0
    strict = []
    for device in host.names("/proc/sys/net/ipv4/conf"):
        if device in ("all", "default", "lo"):
            continue
        if max(everywhere, _device(host, device, "rp_filter")) == 1:
            strict.append(device)
    if not strict:
        yield Finding("rp_filter", "ok", "no device filters strictly")
        return
    names = ["all", *strict] if everywhere == 1 else strict
    yield Finding(
        "rp_filter",
        "warn",
        f"strict on {', '.join(strict)}: drops packets whose way back is by another device",
        "sysctl -w " + " ".join(f"{root}.{_key(d)}.rp_filter=2" for d in names),
    )


def check_accept_local(host: Host) -> Iterator[Finding]:
    """accept_local: replies to the director itself carry its own VIP as source (DR and TUN)."""
    key = "net.ipv4.conf.all.accept_local"
    devices = [d for d in host.names("/proc/sys/net/ipv4/conf") if d not in ("all", "default", "lo")]
    # Either is enough (IN_DEV_ACCEPT_LOCAL).
    if _sysctl(host, key) == 0 and not all(_device(host, d, "accept_local") for d in devices or ["all"]):
        yield Finding(
            "accept_local",
            "note",
            f"{key} is 0: this host as a client of its own DR or TUN services gets no IPv4 reply",
            f"sysctl -w {key}=1",
        )
    else:
        yield Finding("accept_local", "ok", "replies with an address of this host as source are accepted")


def check_user_namespaces(host: Host) -> Iterator[Finding]:
    """User namespaces, for a lab without root, and what forbids them."""
    found = False
    for key, forbidding, who in (
        ("kernel.unprivileged_userns_clone", 0, "Debian's switch"),
        ("user.max_user_namespaces", 0, "the limit"),
        ("kernel.apparmor_restrict_unprivileged_userns", 1, "AppArmor"),
    ):
        value = _sysctl(host, key)
        if value == forbidding:
            found = True
            mend = f"sysctl -w {key}={15000 if 'max' in key else 1 - forbidding}"
            yield Finding(
                "user namespaces",
                "warn",
                f"{key} is {value}: {who} forbids a lab without root",
                f"{mend}, or: sudo uvs lab demo",
            )
    if found:
        return
    works, why = host.user_namespace()
    if works:
        yield Finding("user namespaces", "ok", "a lab needs no root")
    else:
        yield Finding(
            "user namespaces", "warn", f"none can be made: {why}", "run labs as root: sudo uvs lab demo"
        )


def check_ipip(host: Host) -> Iterator[Finding]:
    """ipip, for this machine as a real server of TUN services."""
    if host.has_module("ipip") and host.has_module("ip6_tunnel"):
        yield Finding("ipip", "ok", "this kernel can end tunnels itself, as a TUN server")
    elif "tun" in host.names("/dev/net"):
        detail = "this kernel lacks ipip or ip6_tunnel: as a TUN server it needs uvs decap"
        yield Finding("ipip", "note", detail, "uvs decap")
    else:
        detail = "this kernel lacks ipip, and /dev/net/tun for uvs decap: it cannot be a TUN server"
        yield Finding("ipip", "note", detail, "modprobe tun")


# A counter of a queue that should be 0: what happened to so many packets, and what mends it.
_QUEUE_FAULTS = {
    "cut": ("handed over in part (more than 65531 bytes) and dropped", "send smaller datagrams"),
    "refused": ("not sent: the kernel refused them", "see the director's log: it names next hop and error"),
    "unsaid": (
        "dropped: the kernel did not take their verdict",
        "sysctl -w net.core.wmem_max=8388608, then start the director again",
    ),
    "errors": ("dropped: the director failed", "report what the director's log says of them"),
}


def check_director(host: Host) -> Iterator[Finding]:
    """A running director: packets that its queues lost, connections that its table had no room for."""
    counters = host.director()
    if isinstance(counters, str):
        yield Finding("director", "note", f"none to ask for its counters: {counters}")
        return
    faults = [fault for row in counters.queues for fault in _queue_faults(row)]
    yield from faults or [
        Finding("queue dropping", "ok", "the running director's queues have lost no packet")
    ]
    yield _table(counters.table)


def _queue_faults(row: QueueRow) -> Iterator[Finding]:
    count = {name: value for name, value in row.items() if isinstance(value, int)}
    lost, dropped = count.get("lost", 0), count.get("dropped", 0)
    which = f"queue {row.get('queue')} ({row.get('class')})"
    of = f"of {count.get('packets', 0) + lost} packets"
    faster = "uvs run --driver native" if row.get("class") == "all" else "uvs run --queues N (more of them)"
    # A packet for which the socket has no room leaves a gap in the ids; one that finds a full queue has none.
    if lost:
        mend = f"sysctl -w net.core.rmem_max=33554432, then start the director again; or {faster}"
        detail = f"{which}: {lost} {of} found no room in the director's socket"
        yield Finding("queue dropping", "warn", detail, mend)
    if dropped > lost:
        detail = f"{which}: {dropped - lost} packets found the queue full"
        yield Finding("queue dropping", "warn", detail, faster)
    for name, (what, mend) in _QUEUE_FAULTS.items():
        if number := count.get(name):
            yield Finding("queue dropping", "warn", f"{which}: {number} {of} {what}", mend)


def _table(table: dict[str, int]) -> Finding:
    used = sum(table.get(kind, 0) for kind in ("conns", "templates", "dests", "services"))
    most, full = table.get("conn_max", 0), table.get("full", 0)
    if full:
        detail = f"it was, {full} times: {used} of {most} records are in use now"
        return Finding("table full", "warn", detail, f"uvs run --conn-max {2 * most}")
    return Finding("table full", "ok", f"it never was: {used} of {most} records are in use")


CHECKS: tuple[Callable[[Host], Iterator[Finding]], ...] = (
    check_privileges,
    check_queue,
    check_rules,
    check_packet_socket,
    check_forwarding,
    check_rp_filter,
    check_accept_local,
    check_user_namespaces,
    check_ipip,
    check_director,
)


def examine(host: Host) -> list[Finding]:
    """All findings, in the order of the checks."""
    return [finding for check in CHECKS for finding in check(host)]


def _path(key: str) -> str:
    """The file of a sysctl; as in sysctl(8), a slash in the name stands for a dot (`eth0/1`)."""
    return "/proc/sys/" + key.translate(str.maketrans("./", "/."))


def _key(device: str) -> str:
    return device.replace(".", "/")


def _sysctl(host: Host, key: str) -> int | None:
    text = host.read(_path(key))
    return int(text) if text and text.lstrip("-").isdigit() else None


def _device(host: Host, device: str, knob: str) -> int:
    return _sysctl(host, f"net.ipv4.conf.{_key(device)}.{knob}") or 0


# ------------------------------------------------------------------------- this machine


class System:
    """This machine, as this process may use it."""

    def read(self, path: str) -> str | None:
        try:
            return Path(path).read_text().strip()
        except OSError:
            return None

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def bind_queue(self) -> Attempt:
        try:
            from netfilterqueue import NetfilterQueue
        except ImportError as error:
            return False, f"the NetfilterQueue package does not load: {error}"
        reason = "all queue numbers tried are in use"
        for number in _QUEUE_TRIES:
            queue = NetfilterQueue()
            try:
                queue.bind(number, lambda packet: packet.drop())
            except OSError as error:
                # EPERM is also said of a queue that somebody else has bound.
                if error.errno != errno.EPERM:
                    return False, str(error)
                reason = str(error)
                continue
            queue.unbind()
            return True, ""
        return False, reason

    def rule_back_ends(self) -> list[tuple[str, bool, str]]:
        from uvs.netfilter.probe import probe

        return [found for found in probe() if found[0] != "nfqueue"]  # bind_queue() is closer to the driver

    def packet_socket(self) -> Attempt:
        try:
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0).close()
        except OSError as error:
            return False, error.strerror or str(error)
        return True, ""

    def user_namespace(self) -> Attempt:
        done = _unshare(["true"])
        return done.returncode == 0, _last_line(done.stderr)

    def has_module(self, name: str) -> bool:
        if Path("/sys/module", name).exists():
            return True
        folder = Path("/lib/modules", os.uname().release)
        for index in ("modules.builtin", "modules.dep"):
            with contextlib.suppress(OSError):
                text = (folder / index).read_text().replace("-", "_")
                if f"/{name}.ko" in text:
                    return True
        return False

    def director(self) -> Counters | str:
        try:
            with Client(timeout=DIRECTOR_S) as client:
                return Counters(client.queues(), json.loads(client.total()[1]))
        except (Unreachable, IpvsError) as error:
            return error.strerror or str(error)


class Unprivileged(System):
    """This machine for an ordinary user: what needs privileges is tried in a user namespace."""

    def bind_queue(self) -> Attempt:
        return self._inside("bind_queue")

    def packet_socket(self) -> Attempt:
        return self._inside("packet_socket")

    def rule_back_ends(self) -> list[tuple[str, bool, str]]:
        done = self._run("rule_back_ends")
        if done.returncode:
            return [("user namespace", False, _last_line(done.stderr))]
        return [(name, works, why) for name, works, why in json.loads(done.stdout)]

    def _inside(self, question: str) -> Attempt:
        done = self._run(question)
        if done.returncode:
            return False, _last_line(done.stderr)
        works, why = json.loads(done.stdout)
        return works, why

    def _run(self, question: str) -> subprocess.CompletedProcess[str]:
        code = f"import json, uvs.doctor as d; print(json.dumps(d.System().{question}()))"
        # iptables wants to write its lock below /run.
        shell = 'mount -t tmpfs tmpfs /run && exec "$@"'
        return _unshare(["sh", "-c", shell, "sh", sys.executable, "-P", "-c", code])


def _unshare(command: list[str]) -> subprocess.CompletedProcess[str]:
    line = ["unshare", "--user", "--map-root-user", "--net", "--mount", *command]
    if shutil.which("unshare") is None:
        return subprocess.CompletedProcess(line, 127, "", "unshare (util-linux) is not installed")
    return subprocess.run(line, capture_output=True, text=True, check=False)


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it failed without a word"])[-1]


# ------------------------------------------------------------------------- the command


def report(findings: list[Finding], colour: bool) -> str:
    """The findings as lines for people; what mends one stands below it."""
    colours = {"ok": "32", "note": "36", "warn": "33", "fail": "31"}
    lines = []
    for f in findings:
        state = f"\x1b[{colours[f.state]}m{f.state:4}\x1b[0m" if colour else f"{f.state:4}"
        lines.append(f"{state}  {f.name}: {f.detail}")
        if f.mend and f.state != "ok":
            lines.append(f"      -> {f.mend}")
    return "\n".join(lines)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def main(args: argparse.Namespace) -> int:
    """Print the findings; 1 if something stands in a director's way (fail), else 0."""
    system = System()
    lacking = capabilities(system) & (1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW) == 0
    findings = examine(Unprivileged() if lacking else system)
    if args.json:
        print(json.dumps([asdict(f) for f in findings], indent=2))
    else:
        print(report(findings, sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return 1 if any(f.state == "fail" for f in findings) else 0
