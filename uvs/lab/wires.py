"""Sockets of a lab's hosts, used from outside: opened in there, handed out (unix(7), SCM_RIGHTS)."""

from __future__ import annotations

import ctypes
import errno
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from uvs.lab.enter import LabError
from uvs.lab.namespaces import Lab
from uvs.walk.expressions import Packet

ETH_P_ALL = 3  # linux/if_ether.h
FRAME_MAX = (1 << 16) + 256  # with offloads on, a frame is as long as a datagram
PACKET_OTHERHOST, PACKET_OUTGOING = 3, 4  # linux/if_packet.h
ARPHRD_ETHER, ARPHRD_LOOPBACK = 1, 772  # linux/if_arp.h: those whose frames begin with MAC addresses
BUFFER = 4 << 20  # bytes of frames that wait to be read
SO_ATTACH_FILTER = 26  # asm-generic/socket.h


def opened(lab: Lab, host: str, family: int, kind: int, protocol: int) -> socket.socket:
    """A socket of that host's, in this process."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    with ours, theirs:
        lab.call(host, _hand_out, theirs, family, kind, protocol)
        _, fds, _, _ = socket.recv_fds(ours, 1, 1, socket.MSG_DONTWAIT)
    return socket.socket(fileno=fds[0])


def _hand_out(out: socket.socket, family: int, kind: int, protocol: int) -> None:
    with socket.socket(family, kind, protocol) as made:
        socket.send_fds(out, [b"s"], [made.fileno()])


def macs(lab: Lab, host: str) -> dict[str, str]:
    """MAC addresses of a host's interfaces, by the interface's name."""
    named: dict[str, str] = lab.call(
        host, _macs, [i.name for i in lab.topology[host].interfaces if i.segment]
    )
    return named


def owners(lab: Lab) -> dict[str, str]:
    """Who has a MAC address: the host, with the interface if it has several."""
    found = {}
    for host in lab.topology.hosts:
        known = macs(lab, host.name)
        for name, mac in known.items():
            found[mac] = host.name if len(known) == 1 else f"{host.name} {name}"
    return found


def _macs(names: Sequence[str]) -> dict[str, str]:
    found = {}
    for name in names:
        with open(f"/sys/class/net/{name}/address") as file:
            found[name] = file.read().strip()
    return found


# ------------------------------------------------------------------------------------------- sending


class Sender:
    """Sends crafted packets from a host: datagrams by its routes, frames as they are."""

    def __init__(self, lab: Lab, host: str) -> None:
        self._lab, self._host = lab, host
        self._sockets: dict[int, socket.socket] = {}

    def send(self, packet: Packet) -> None:
        """Send one. LabError: the host cannot, and why."""
        version = packet.data[0] >> 4
        try:
            if packet.frame:
                self._frame(packet, version)
            elif version == 4:
                end = socket.inet_ntop(socket.AF_INET, packet.data[16:20])
                self._socket(socket.AF_INET).sendto(packet.data, (end, 0))
            else:
                end = socket.inet_ntop(socket.AF_INET6, packet.data[24:40])
                self._socket(socket.AF_INET6).sendto(packet.data, (end, 0))
        except OSError as e:
            raise LabError(f"{self._host} cannot send it: {_reason(e, len(packet.data))}") from None

    def _frame(self, packet: Packet, version: int) -> None:
        """By the interface that has the frame's source, else by the first one."""
        assert packet.frame
        source = packet.frame["src"].lower()
        known = macs(self._lab, self._host)
        name = next((n for n, mac in known.items() if mac == source), next(iter(known)))
        head = bytes.fromhex((packet.frame["dst"] + source).replace(":", ""))
        kind = b"\x08\x00" if version == 4 else b"\x86\xdd"
        sock = self._socket(socket.AF_PACKET)
        sock.sendto(head + kind + packet.data, (name, 0))

    def _socket(self, family: int) -> socket.socket:
        if family not in self._sockets:
            protocol = 0 if family == socket.AF_PACKET else socket.IPPROTO_RAW  # the header is ours
            self._sockets[family] = opened(self._lab, self._host, family, socket.SOCK_RAW, protocol)
        return self._sockets[family]

    def close(self) -> None:
        """Close what was opened."""
        for sock in self._sockets.values():
            sock.close()


def _reason(e: OSError, length: int) -> str:
    if e.errno == errno.EMSGSIZE:
        return f"{length} bytes are more than its link takes (no raw packet is fragmented)"
    if e.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        return "it has no route there"
    return e.strerror or str(e)


# ----------------------------------------------------------------------------------------- listening


class Frame(NamedTuple):
    """A frame as a host saw it: seconds since the epoch, whether it left, its bytes with the MAC header."""

    time: float
    host: str
    interface: str
    out: bool
    data: bytes


def _attach(sock: socket.socket, program: bytes) -> None:
    """Set the filter, and forget what came before it."""
    instructions = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: number of instructions of 8 bytes, and where they are
    fprog = struct.pack("HP", len(program) // 8, ctypes.addressof(instructions))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
    with suppress(BlockingIOError):
        while True:
            sock.recv(1, socket.MSG_DONTWAIT)


class Listener:
    """All frames that hosts of a lab send and get (AF_PACKET)."""

    def __init__(self, lab: Lab, hosts: Sequence[str], program: bytes = b"") -> None:
        """`program`: a filter, as an array of struct sock_filter (linux/filter.h)."""
        self._hosts: dict[int, str] = {}
        self._sockets: dict[int, socket.socket] = {}
        try:
            for host in hosts:
                sock = opened(lab, host, socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                self._sockets[sock.fileno()] = sock
                self._hosts[sock.fileno()] = host
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
                if program:
                    _attach(sock, program)
        except BaseException:
            self.close()
            raise

    def frames(self, quiet: float | None) -> Iterator[Frame]:
        """Frames as they come, until none comes for `quiet` seconds (None: for ever)."""
        while ready := select.select(list(self._sockets), [], [], quiet)[0]:
            yield from filter(None, (self._frame(fd) for fd in ready))

    def _frame(self, fd: int) -> Frame | None:
        data, address = self._sockets[fd].recvfrom(FRAME_MAX)
        interface, protocol, way, kind = address[:4]
        out = way == PACKET_OUTGOING
        if way == PACKET_OTHERHOST or (kind == ARPHRD_LOOPBACK and out):
            return None  # flooded by the switch; what leaves by lo comes in as well
        if kind not in (ARPHRD_ETHER, ARPHRD_LOOPBACK):
            data = bytes(12) + struct.pack("!H", protocol) + data  # a TUN device's: no MAC addresses
        return Frame(time.time(), self._hosts[fd], interface, out, data)

    def close(self) -> None:
        """Listen no more."""
        for sock in self._sockets.values():
            sock.close()
        self._sockets.clear()
