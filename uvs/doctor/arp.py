"""ARP requests, and all who answer them (RFC 826)."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Iterable, Iterator, Mapping

from uvs.doctor.host import Asked

ETH_P_ARP = 0x0806  # linux/if_ether.h
PACKET_OUTGOING = 4  # linux/if_packet.h
ARPHRD_ETHER = 1
WAIT_S = 0.25  # for answers, after each of the requests
TIMES = 2
BROADCAST = b"\xff" * 6
REQUEST, REPLY = b"\0\1", b"\0\2"
HEAD = b"\0\1\x08\0\6\4"  # Ethernet, IPv4, and the lengths of their addresses


def ask(asked: Iterable[Asked], sources: Mapping[str, str]) -> dict[Asked, list[str]]:
    """MAC addresses of all who answer, none of this host's. OSError: not allowed.

    `sources`: the address of ours in whose name a device asks; without one it asks in nobody's (RFC 5227).
    """
    answers: dict[Asked, list[str]] = {one: [] for one in asked}
    with contextlib.ExitStack() as stack:
        socks: dict[str, socket.socket] = {}
        for device in dict.fromkeys(one.device for one in answers):
            sock = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
            try:
                sock.bind((device, ETH_P_ARP))
            except OSError:
                continue  # it went away, or is down
            if sock.getsockname()[3] == ARPHRD_ETHER:
                socks[device] = sock
        answers = {one: macs for one, macs in answers.items() if one.device in socks}
        for _ in range(TIMES if answers else 0):
            for one in answers:
                sock = socks[one.device]
                with contextlib.suppress(OSError):
                    sock.send(
                        _request(sock.getsockname()[4], sources.get(one.device, "0.0.0.0"), one.address)
                    )
            for device, address, mac in _replies(socks, time.monotonic() + WAIT_S):
                macs = answers.get(Asked(device, address), [])
                if mac not in macs:
                    macs.append(mac)
    return answers


def _request(mac: bytes, source: str, address: str) -> bytes:
    body = HEAD + REQUEST + mac + socket.inet_aton(source) + bytes(6) + socket.inet_aton(address)
    return BROADCAST + mac + ETH_P_ARP.to_bytes(2, "big") + body


def _replies(socks: Mapping[str, socket.socket], end: float) -> Iterator[tuple[str, str, str]]:
    """Device, address and MAC of each answer until `end`."""
    by_fd = {sock.fileno(): (device, sock) for device, sock in socks.items()}
    while (left := end - time.monotonic()) > 0:
        for fd in select.select(list(by_fd), [], [], left)[0]:
            device, sock = by_fd[fd]
            with contextlib.suppress(OSError):
                frame, about = sock.recvfrom(64)
                if about[2] != PACKET_OUTGOING and len(frame) >= 42 and frame[14:22] == HEAD + REPLY:
                    yield device, socket.inet_ntoa(frame[28:32]), frame[22:28].hex(":")
