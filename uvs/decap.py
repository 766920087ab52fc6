"""`uvs decap`: the real server's end of a tunnel, where the kernel has no ipip or ip6_tunnel module.

Raw sockets take the tunnel packets (their existence also keeps the kernel from answering "protocol
unreachable"); the inner packets enter the stack through a TUN device, as if they had arrived there.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import os
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path

from uvs.egress import netlink
from uvs.errors import UserError
from uvs.systemd import notify

# inner protocol by outer protocol number
INNER = {4: socket.AF_INET, 41: socket.AF_INET6}

# The device that is there when the kernel has a module for outer family and protocol. Such a module answers
# tunnel packets that none of its devices takes with ICMP errors, raw socket or not (tunnel4_rcv).
KERNELS_OWN = {
    (socket.AF_INET, 4): "tunl0",
    (socket.AF_INET, 41): "sit0",
    (socket.AF_INET6, 4): "ip6tnl0",
    (socket.AF_INET6, 41): "ip6tnl0",
}

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU, IFF_UP = 0x8913, 0x8914, 0x8922, 0x1  # linux/sockios.h, linux/if.h
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
RECEIVE_BUFFER = 4 << 20
BATCH = 256  # packets of one socket before the others have their turn
CACHE = 1024  # local addresses that are remembered


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs decap`'s options."""
    parser.add_argument(
        "--proto",
        default="4,41",
        metavar="N,…",
        help="tunnel protocols: 4 carries IPv4, 41 carries IPv6; each over IPv4 and IPv6 (default 4,41)",
    )
    parser.add_argument(
        "--dev", default="uvsdecap0", metavar="NAME", help="TUN device to create (default uvsdecap0)"
    )
    parser.add_argument("--mtu", type=int, default=1480, metavar="N", help="its MTU (default 1480)")
    parser.epilog = "The virtual address must be on this host (for instance: ip address add VIP/32 dev lo)."


def main(args: argparse.Namespace) -> int:
    """Decapsulate until SIGTERM or SIGINT."""
    protocols = _protocols(args.proto)
    if not 1280 <= args.mtu <= 65535:
        raise UserError(f"--mtu takes 1280..65535, not {args.mtu}", 2)
    if not 0 < len(args.dev.encode()) < 16 or "/" in args.dev or args.dev in (".", ".."):
        raise UserError(f"--dev takes a device name of at most 15 bytes, not {args.dev!r}", 2)
    with contextlib.ExitStack() as stack:
        stop, wake = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        stack.callback(stop.close)
        stack.callback(wake.close)
        stack.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(wake.fileno()))
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: None))
        decap = Decap(protocols, args.dev, args.mtu, stack)
        for rival in _kernels_own(protocols):
            print(
                "decap: warning: this kernel has tunnels of its own, and they answer with ICMP errors:"
                f" use {rival} instead (ip link set {rival} up), or unload its module",
                file=sys.stderr,
            )
        print(f"decap: ready, {decap.description}", flush=True)
        notify("READY=1")
        decap.run(stop)
        notify("STOPPING=1")
        print(f"decap: {decap.counts}", flush=True)
    return 0


def _protocols(text: str) -> list[int]:
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not INNER.keys() >= set(numbers):
        raise UserError(f"--proto takes 4, 41 or both with a comma, not {text!r}", 2)
    return numbers


def _kernels_own(protocols: list[int]) -> list[str]:
    here = {name for _, name in socket.if_nameindex()}
    return sorted(
        {dev for (_, protocol), dev in KERNELS_OWN.items() if protocol in protocols and dev in here}
    )


def inner_packet(packet: memoryview, af: int) -> memoryview | None:
    """The inner packet cut to its own length; None if it is none of family `af` or its lengths lie."""
    if af == socket.AF_INET:
        if len(packet) < 20 or packet[0] >> 4 != 4:
            return None
        header, length = (packet[0] & 0xF) * 4, packet[2] << 8 | packet[3]
        if header < 20 or length < header:
            return None
    else:
        if len(packet) < 40 or packet[0] >> 4 != 6:
            return None
        length = 40 + (packet[4] << 8 | packet[5])
    return packet[:length] if length <= len(packet) else None


class Locals:
    """Is an address this host's own? The routing table says; answers are kept until something changes."""

    def __init__(self) -> None:
        self._watch = netlink.Watch(netlink.ROUTES)
        self._kernel = netlink.Netlink()
        self._known: dict[bytes, bool] = {}

    def fileno(self) -> int:
        """Readable when something changed."""
        return self._watch.fileno()

    def events(self) -> None:
        """Forget the answers."""
        self._watch.drain()
        self._known.clear()

    def __contains__(self, addr: bytes) -> bool:
        known = self._known.get(addr)
        if known is None:
            answer = self._kernel.route(socket.AF_INET if len(addr) == 4 else socket.AF_INET6, addr)
            known = answer is not None and answer.type == netlink.RTN_LOCAL
            if len(self._known) >= CACHE:
                self._known.clear()
            self._known[addr] = known
        return known

    def close(self) -> None:
        """Close the sockets."""
        self._watch.close()
        self._kernel.close()


class Counts:
    """What became of tunnel packets."""

    def __init__(self) -> None:
        self.passed = self.not_local = self.malformed = self.refused = 0

    def __str__(self) -> str:
        text = f"{self.passed} packets passed on"
        for number, why in (
            (self.not_local, "not for a local address"),
            (self.malformed, "with wrong inner lengths"),
            (self.refused, "refused by the device"),
        ):
            if number:
                text += f", {number} dropped {why}"
        return text


class Decap:
    """The sockets, the device and the loop. What it opens and changes, `stack` closes and puts back."""

    def __init__(self, protocols: list[int], dev: str, mtu: int, stack: contextlib.ExitStack) -> None:
        self.counts = Counts()
        self._buffer = memoryview(bytearray(1 << 16))
        self._sockets: list[tuple[socket.socket, int, int]] = []  # with outer and inner family
        for outer in (socket.AF_INET, socket.AF_INET6):
            for protocol in protocols:
                if s := _raw_socket(outer, protocol):
                    stack.callback(s.close)
                    self._sockets.append((s, outer, INNER[protocol]))
        self.locals = Locals()
        stack.callback(self.locals.close)
        self._tun = _tun(dev)
        stack.callback(os.close, self._tun)
        changed = _settle(dev, mtu, stack)
        outers = sorted({4 if outer == socket.AF_INET else 6 for _, outer, _ in self._sockets})
        self.description = (
            f"protocol {' and '.join(map(str, protocols))} over IPv{' and IPv'.join(map(str, outers))}"
            f" to {dev}, {', '.join(changed)}"
        )

    def run(self, stop: socket.socket) -> None:
        """Until something can be read from `stop`."""
        with select.epoll() as poll:
            work: dict[int, Callable[[], None]] = {self.locals.fileno(): self.locals.events}
            for s, outer, inner in self._sockets:
                work[s.fileno()] = self._receiver(s, outer, inner)
            for fd in (stop.fileno(), *work):
                poll.register(fd, select.EPOLLIN)
            while True:
                for fd, _ in poll.poll():
                    if fd == stop.fileno():
                        return
                    work[fd]()

    def _receiver(self, s: socket.socket, outer: int, inner: int) -> Callable[[], None]:
        buffer, counts, local, tun, write = self._buffer, self.counts, self.locals, self._tun, os.write
        at, size = (16, 4) if inner == socket.AF_INET else (24, 16)  # destination address

        def receive() -> None:
            for _ in range(BATCH):
                try:
                    length = s.recv_into(buffer)
                except BlockingIOError:
                    return
                except OSError:  # an ICMP error about something, not about us
                    continue
                start = (buffer[0] & 0xF) * 4 if outer == socket.AF_INET else 0
                packet = inner_packet(buffer[start:length], inner)
                if packet is None:
                    counts.malformed += 1
                elif bytes(packet[at : at + size]) not in local:
                    counts.not_local += 1
                else:
                    try:
                        write(tun, packet)
                        counts.passed += 1
                    except OSError:
                        counts.refused += 1

        return receive


def _raw_socket(outer: int, protocol: int) -> socket.socket | None:
    """Takes all packets of a protocol; None where the host has no such family."""
    try:
        s = socket.socket(outer, socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
    except PermissionError as e:
        raise UserError(
            f"cannot open a raw socket: {e.strerror}: run it as root, or in a namespace of your own"
        ) from e
    except OSError as e:
        if e.errno in (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT) and outer == socket.AF_INET6:
            return None
        raise UserError(f"cannot open a raw socket for protocol {protocol}: {e.strerror}") from e
    try:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    except PermissionError:  # a user namespace
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    return s


def _tun(dev: str) -> int:
    """A new TUN device, gone when the descriptor is closed."""
    try:
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        raise UserError(
            f"cannot open /dev/net/tun: {e.strerror}: `modprobe tun` loads what is missing"
        ) from e
    try:
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", dev.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as e:
        os.close(fd)
        if e.errno in (errno.EBUSY, errno.EINVAL):
            raise UserError(f"device {dev} is in use: choose another with --dev, or end its owner") from e
        raise UserError(f"cannot create device {dev}: {e.strerror}: run it as root") from e
    return fd


def _settle(dev: str, mtu: int, stack: contextlib.ExitStack) -> list[str]:
    """Bring the device up so that packets from anywhere are accepted; what was changed, for people."""
    v4, v6 = Path("/proc/sys/net/ipv4/conf"), Path("/proc/sys/net/ipv6/conf", dev)
    said = [f"MTU {mtu}"]
    try:
        if v6.exists():  # it speaks to nobody: no address, no router solicitations
            for name, value in (("disable_ipv6", "0"), ("accept_ra", "0"), ("addr_gen_mode", "1")):
                with contextlib.suppress(FileNotFoundError):
                    (v6 / name).write_text(value)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
            fcntl.ioctl(s, SIOCSIFMTU, struct.pack("16si20x", dev.encode(), mtu))
            request = fcntl.ioctl(s, SIOCGIFFLAGS, struct.pack("16sh22x", dev.encode(), 0))
            (flags,) = struct.unpack_from("h", request, 16)
            fcntl.ioctl(s, SIOCSIFFLAGS, struct.pack("16sh22x", dev.encode(), flags | IFF_UP))
        (v4 / dev / "rp_filter").write_text("0")
        said.append("rp_filter 0 on it")
        said += _release_rp_filter(v4, dev, stack)
    except OSError as e:
        raise UserError(
            f"cannot set up {dev}: {e.strerror} ({e.filename or 'ioctl'}): run it as root,"
            " or set net.ipv4.conf.all.rp_filter=0 and conf.default.rp_filter=0 before"
        ) from e
    return said


def _release_rp_filter(conf: Path, dev: str, stack: contextlib.ExitStack) -> list[str]:
    """Reverse path filtering is the larger of `all` and the device's: `all` must be 0 for ours to be.

    The other devices keep theirs: what `all` gave them is written to each (ip-sysctl, rp_filter).
    """
    before = (conf / "all" / "rp_filter").read_text().strip()
    if before == "0":
        return []
    raised = 0
    for file in conf.glob("*/rp_filter"):
        if file.parent.name in ("all", dev):
            continue
        own = file.read_text().strip()
        if int(own) < int(before):
            stack.callback(_put_back, file, before, own)
            file.write_text(before)
            raised += 1
    stack.callback(_put_back, conf / "all" / "rp_filter", "0", before)
    (conf / "all" / "rp_filter").write_text("0")
    return [f"rp_filter 0 instead of {before} on all ({raised} others got {before} until the end)"]


def _put_back(file: Path, ours: str, before: str) -> None:
    """Restore a setting, unless it is gone or somebody changed it meanwhile."""
    with contextlib.suppress(OSError):
        if file.read_text().strip() == ours:
            file.write_text(before)
