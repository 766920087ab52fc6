"""`uvs decap`: the real server's end of a tunnel, where the kernel has no module for it (ipip, gre, fou).

Raw sockets, and for gue a UDP socket, take the tunnel packets (their existence also keeps the kernel from
answering "unreachable"); the inner packets enter the stack through a TUN device, as if they had arrived
there.
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
from uvs.engine.core import checksum
from uvs.errors import UserError
from uvs.ipvs import encap
from uvs.ipvs.ipproto import IPPROTO_GRE, IPPROTO_IPIP, IPPROTO_IPV6, IPPROTO_UDP
from uvs.systemd import notify

# family inside by protocol number
INNER = {IPPROTO_IPIP: socket.AF_INET, IPPROTO_IPV6: socket.AF_INET6}
PROTOCOLS = (*INNER, IPPROTO_GRE)

# The device that is there when the kernel has a module for outer family and protocol. Such a module answers
# tunnel packets that none of its devices takes with ICMP errors, raw socket or not (tunnel4_rcv).
KERNELS_OWN = {
    (socket.AF_INET, 4): "tunl0",
    (socket.AF_INET, 41): "sit0",
    (socket.AF_INET6, 4): "ip6tnl0",
    (socket.AF_INET6, 41): "ip6tnl0",
    (socket.AF_INET, IPPROTO_GRE): "gre0",
    (socket.AF_INET6, IPPROTO_GRE): "ip6gre0",
}

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000  # linux/if_tun.h
SIOCGIFFLAGS, SIOCSIFFLAGS, SIOCSIFMTU, IFF_UP = 0x8913, 0x8914, 0x8922, 0x1  # linux/sockios.h, linux/if.h
SO_RCVBUFFORCE = 33  # asm-generic/socket.h
UDP_NO_CHECK6_RX = 102  # linux/udp.h: over IPv6 too a gue datagram may have no checksum (RFC 6936)
RECEIVE_BUFFER = 4 << 20
Opener = Callable[[memoryview], "memoryview | None"]  # from an IP payload to the packet inside
BATCH = 256  # packets of one socket before the others have their turn
CACHE = 1024  # local addresses that are remembered


def arguments(parser: argparse.ArgumentParser) -> None:
    """`uvs decap`'s options."""
    parser.add_argument(
        "--proto",
        metavar="N,…",
        help="tunnel protocols, each over IPv4 and IPv6: 4 carries IPv4, 41 IPv6, 47 (gre) both"
        " (default 4,41, and none with --gue-port)",
    )
    parser.add_argument(
        "--gue-port", type=int, metavar="PORT", help="UDP port of gue tunnels (uvsadm's --tun-port)"
    )
    parser.add_argument(
        "--dev", default="uvsdecap0", metavar="NAME", help="TUN device to create (default uvsdecap0)"
    )
    parser.add_argument("--mtu", type=int, default=1480, metavar="N", help="its MTU (default 1480)")
    parser.epilog = "The virtual address must be on this host (for instance: ip address add VIP/32 dev lo)."


def main(args: argparse.Namespace) -> int:
    """Decapsulate until SIGTERM or SIGINT."""
    protocols = _protocols(args.proto, args.gue_port is not None)
    if args.gue_port is not None and not 1 <= args.gue_port <= 65535:
        raise UserError(f"--gue-port takes 1..65535, not {args.gue_port}", 2)
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
        decap = Decap(protocols, args.gue_port, args.dev, args.mtu, stack)
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


def _protocols(text: str | None, gue: bool) -> list[int]:
    if text is None:
        return [] if gue else sorted(INNER)
    try:
        numbers = sorted({int(word) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not set(PROTOCOLS) >= set(numbers):
        raise UserError(f"--proto takes 4, 41 and 47 with commas, not {text!r}", 2)
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


def gue_packet(payload: memoryview) -> memoryview | None:
    """The inner packet of a GUE datagram (behind its UDP header), its checksum finished; None: none."""
    head = encap.gue(payload)
    packet = head and inner_packet(payload[head.length :], INNER[head.protocol])
    if head and packet and head.remcsum:
        start, at = head.remcsum
        if not start <= at <= len(packet) - 2:
            return None
        # The field holds the sum of the pseudo header (remcsum_adjust).
        packet[at : at + 2] = (checksum(packet[start:]) or 0xFFFF).to_bytes(2, "big")
    return packet or None


def gre_packet(payload: memoryview) -> memoryview | None:
    """The inner packet behind a GRE header; None if it is none, or its checksum is wrong."""
    head = encap.gre(payload)
    if head is None or (head.csum and checksum(payload)):
        return None
    return inner_packet(payload[head.length :], INNER[head.protocol])


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
            (self.malformed, "with wrong headers"),
            (self.refused, "refused by the device"),
        ):
            if number:
                text += f", {number} dropped {why}"
        return text


class Decap:
    """The sockets, the device and the loop. What it opens and changes, `stack` closes and puts back."""

    def __init__(
        self, protocols: list[int], gue_port: int | None, dev: str, mtu: int, stack: contextlib.ExitStack
    ) -> None:
        self.counts = Counts()
        self._buffer = memoryview(bytearray(1 << 16))
        self._sockets: list[tuple[socket.socket, bool, Opener]] = []  # with: does it give IP headers too?
        outers = set()
        for outer in (socket.AF_INET, socket.AF_INET6):
            for protocol in (*protocols, *([IPPROTO_UDP] if gue_port else [])):
                s = _gue_socket(outer, gue_port) if protocol == IPPROTO_UDP else _raw_socket(outer, protocol)
                if s:
                    stack.callback(s.close)
                    header = protocol != IPPROTO_UDP and outer == socket.AF_INET
                    self._sockets.append((s, header, _opener(protocol)))
                    outers.add(4 if outer == socket.AF_INET else 6)
        self.locals = Locals()
        stack.callback(self.locals.close)
        self._tun = _tun(dev)
        stack.callback(os.close, self._tun)
        changed = _settle(dev, mtu, stack)
        kinds = [f"protocol {' and '.join(map(str, protocols))}"] if protocols else []
        if gue_port:
            kinds.append(f"gue on port {gue_port}")
        self.description = (
            f"{' and '.join(kinds)} over IPv{' and IPv'.join(map(str, sorted(outers)))}"
            f" to {dev}, {', '.join(changed)}"
        )

    def run(self, stop: socket.socket) -> None:
        """Until something can be read from `stop`."""
        with select.epoll() as poll:
            work: dict[int, Callable[[], None]] = {self.locals.fileno(): self.locals.events}
            for s, header, opener in self._sockets:
                work[s.fileno()] = self._receiver(s, header, opener)
            for fd in (stop.fileno(), *work):
                poll.register(fd, select.EPOLLIN)
            while True:
                for fd, _ in poll.poll():
                    if fd == stop.fileno():
                        return
                    work[fd]()

    def _receiver(self, s: socket.socket, header: bool, opener: Opener) -> Callable[[], None]:
        buffer, counts, local, tun, write = self._buffer, self.counts, self.locals, self._tun, os.write

        def receive() -> None:
            for _ in range(BATCH):
                try:
                    length = s.recv_into(buffer)
                except BlockingIOError:
                    return
                except OSError:  # an ICMP error about something, not about us
                    continue
                start = (buffer[0] & 0xF) * 4 if header else 0
                packet = opener(buffer[start:length])
                if packet is None:
                    counts.malformed += 1
                elif bytes(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40]) not in local:
                    counts.not_local += 1
                else:
                    try:
                        write(tun, packet)
                        counts.passed += 1
                    except OSError:
                        counts.refused += 1

        return receive


def _opener(protocol: int) -> Opener:
    if protocol == IPPROTO_UDP:
        return gue_packet
    if protocol == IPPROTO_GRE:
        return gre_packet
    return lambda packet: inner_packet(packet, INNER[protocol])


def _gue_socket(outer: int, port: int | None) -> socket.socket | None:
    """Takes the gue datagrams of a port; None where the host has no such family."""
    try:
        s = socket.socket(outer, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    except OSError as e:
        if e.errno == errno.EAFNOSUPPORT and outer == socket.AF_INET6:
            return None
        raise UserError(f"cannot open a UDP socket: {e.strerror}") from e
    try:
        if outer == socket.AF_INET6:
            s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            s.setsockopt(socket.IPPROTO_UDP, UDP_NO_CHECK6_RX, 1)
        s.bind(("", port))
    except OSError as e:
        s.close()
        raise UserError(
            f"cannot listen on UDP port {port}: {e.strerror}: choose another with --gue-port,"
            " or end its owner"
        ) from e
    _large_buffer(s)
    return s


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
    _large_buffer(s)
    return s


def _large_buffer(s: socket.socket) -> None:
    try:
        s.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    except PermissionError:  # a user namespace
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)


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
