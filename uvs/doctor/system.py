"""This machine, as the process that asks may use it: all that the checks read and try."""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import fcntl
import functools
import itertools
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from uvs.control.client import Client, Unreachable
from uvs.control.extension import ConnEntry
from uvs.doctor.host import Address, Asked, Attempt, Director, Knock, Route
from uvs.egress import netlink
from uvs.ipvs.spec import IpvsError

DIRECTOR_S = 2.0  # one that does not answer within it is busy or stopped
PROGRAM_S = 2.0
CONNS, CONNS_S = 20_000, 0.5  # connections that are looked at: so many, for so long
LAYERED = 2000  # servers, if what lies over them is asked for
T = TypeVar("T")
_QUEUE_TRIES = range(65535, 65519, -1)
SBIN = "/usr/sbin:/sbin"  # not on the path of ordinary users

# linux/sockios.h, linux/ethtool.h
SIOCETHTOOL = 0x8946
ETHTOOL_GGRO, ETHTOOL_GFLAGS, ETH_FLAG_LRO = 0x2B, 0x25, 1 << 15
# linux/timex.h: what adjtimex(2) answers when the clock follows none
TIME_ERROR = 5


class System:
    """This machine, as this process may use it. What takes time is asked once."""

    def __init__(self) -> None:
        self._answers: dict[tuple[object, ...], Any] = {}

    def _once(self, work: Callable[..., T], *args: object) -> T:
        key = (work, *args)
        if key not in self._answers:
            self._answers[key] = work(*args)
        answer: T = self._answers[key]
        return answer

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

    def synchronized(self) -> bool | None:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = (ctypes.c_char * 512)()  # struct timex, modes 0: nothing is set
        state = libc.adjtimex(timex)
        return None if state < 0 else state != TIME_ERROR

    def director(self) -> Director | str:
        return self._once(_director)

    def directors(self) -> list[tuple[int, str]]:
        return self._once(_directors)

    def addresses(self) -> list[Address]:
        return self._once(_addresses)

    def route(self, address: str) -> Route | None:
        return self._once(_route, address)

    def offloads(self, device: str) -> frozenset[str]:
        return self._once(_offloads, device)

    def who_has(self, asked: Iterable[Asked]) -> dict[Asked, list[str]] | None:
        return self._once(self._who_has, tuple(asked))

    def _who_has(self, asked: tuple[Asked, ...]) -> dict[Asked, list[str]] | None:
        from uvs.doctor import arp

        addresses = {a.address for a in asked}
        own = [a for a in self.addresses() if ":" not in a.address and a.address not in addresses]
        try:
            return arp.ask(asked, {a.device: a.address for a in own})
        except OSError:
            return None

    def knock(self, knocks: Iterable[Knock]) -> dict[Knock, str]:
        return self._once(_knock, tuple(knocks))

    def output(self, *argv: str) -> str | None:
        return self._once(_output, *argv)

    def environment(self, name: str) -> str:
        return os.environ.get(name, "")


def _director() -> Director | str:
    try:
        with Client(timeout=DIRECTOR_S) as client:
            services = client.services()
            dests = list(client.all_dests([entry.spec.key for entry in services]))
            return Director(
                client.queues(),
                json.loads(client.total()[1]),
                client.counters(),
                list(zip(services, dests, strict=True)),
                _conns(),
                _layers(client) if sum(map(len, dests)) <= LAYERED else [],
            )
    except (Unreachable, IpvsError) as error:
        return error.strerror or str(error)


def _directors() -> list[tuple[int, str]]:
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            argv = Path("/proc", str(int(name)), "cmdline").read_text().split("\0")[:-1]
            if (
                is_director(argv)
                and os.stat(f"/proc/{name}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino
            ):
                found.append((int(name), " ".join(argv)))
    return sorted(found)


def _addresses() -> list[Address]:
    with contextlib.closing(netlink.Netlink()) as kernel:
        return [Address(*found) for found in kernel.addresses()]


def _route(address: str) -> Route | None:
    af = socket.AF_INET6 if ":" in address else socket.AF_INET
    addr = socket.inet_pton(af, address)
    kernel = _kernel()
    found = kernel.route(af, addr)
    if found is None:
        return None
    link = kernel.link(found.ifindex)
    gateway = netlink.addr_text(found.gateway[1]) if found.gateway else None
    mtu = found.mtu or (0 if link is None else (link.mtu6 if ":" in address else 0) or link.mtu)
    source = found.saddr or netlink.source_towards(af, addr)
    return Route(
        found.type == netlink.RTN_LOCAL,
        link.name if link else "?",
        gateway,
        mtu,
        netlink.addr_text(source) if source else "",
    )


def _offloads(device: str) -> frozenset[str]:
    lro = bool(_ethtool(device, ETHTOOL_GFLAGS) & ETH_FLAG_LRO)
    gro = bool(_ethtool(device, ETHTOOL_GGRO))
    return frozenset(name for name, on in (("lro", lro), ("gro", gro)) if on)


def _output(*argv: str) -> str | None:
    program = shutil.which(argv[0], path=os.environ.get("PATH", os.defpath) + ":" + SBIN)
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, *argv[1:]],
            capture_output=True,
            text=True,
            check=False,
            timeout=PROGRAM_S,
            env=_plain(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return None if done.returncode else done.stdout


@functools.cache
def _kernel() -> netlink.Netlink:
    return netlink.Netlink()


def _knock(knocks: tuple[Knock, ...]) -> dict[Knock, str]:
    if not knocks:
        return {}
    from uvs.doctor import knocking

    return knocking.knock(list(knocks))


def _plain() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C"}


def is_director(argv: list[str]) -> bool:
    """`uvs run …`, `python -m uvs.cli run …`."""
    for i, word in enumerate(argv[:5]):
        if os.path.basename(word) in ("uvs", "uvs.cli", "cli.py"):
            return argv[i + 1 : i + 2] == ["run"]
    return False


def _layers(client: Client) -> list[dict[str, Any]]:
    try:
        return client.get_health()
    except IpvsError:  # of a director that is older
        return []


def _conns() -> list[ConnEntry]:
    """As many connections as are told in a moment; there may be millions."""
    end = time.monotonic() + CONNS_S
    found: list[ConnEntry] = []
    with Client(timeout=DIRECTOR_S) as client:
        for conn in itertools.islice(client.conns(), CONNS):
            found.append(conn)
            if time.monotonic() > end:
                break
    return found


def _ethtool(device: str, command: int) -> int:
    """A value that the device's driver tells (struct ethtool_value); 0 if it does not."""
    value = array.array("I", [command, 0])
    request = struct.pack("16sP16x", device.encode(), value.buffer_info()[0])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        fcntl.ioctl(sock, SIOCETHTOOL, request)
    return value[1]


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
        code = f"import json, uvs.doctor.system as d; print(json.dumps(d.System().{question}()))"
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
