"""Telling the neighbours whose a VIP is now: gratuitous ARP and unsolicited neighbour advertisements."""

from __future__ import annotations

import ipaddress
import socket
import struct
import time
from collections.abc import Sequence

from uvs.engine.core import checksum
from uvs.errors import UserError

TIMES, INTERVAL_S = 5, 0.2  # one may be lost, or come before a switch's port is ready

ETH_P_ARP, ETH_P_IPV6 = 0x0806, 0x86DD  # linux/if_ether.h
ARPHRD_ETHER = 1  # linux/if_arp.h
ARP_REQUEST, ARP_REPLY = 1, 2
BROADCAST = b"\xff" * 6
ALL_NODES = ipaddress.IPv6Address("ff02::1").packed
ALL_NODES_MAC = bytes.fromhex("333300000001")  # RFC 2464, 7
ND_NEIGHBOR_ADVERT, OPTION_TARGET_LLADDR = 136, 2  # RFC 4861, 4.4 and 4.6.1
ROUTER, OVERRIDE = 0x80000000, 0x20000000
ICMPV6 = 58


def gratuitous_arp(mac: bytes, vip: bytes, operation: int = ARP_REQUEST) -> bytes:
    """The Ethernet frame: sender and target are the VIP (4 bytes), to everybody (RFC 5227, 3; RFC 5944, 4.6).

    As a request the target's MAC is unknown, as a reply it is ours; some neighbours heed only one of them.
    """
    target = bytes(6) if operation == ARP_REQUEST else mac
    arp = struct.pack("!HHBBH6s4s6s4s", 1, 0x0800, 6, 4, operation, mac, vip, target, vip)
    return BROADCAST + mac + struct.pack("!H", ETH_P_ARP) + arp


def unsolicited_advertisement(mac: bytes, vip: bytes, router: bool) -> bytes:
    """The Ethernet frame: from the VIP (16 bytes) to all nodes, with the override flag (RFC 4861, 7.2.6)."""
    flags = OVERRIDE | (ROUTER if router else 0)
    option = struct.pack("!BB6s", OPTION_TARGET_LLADDR, 1, mac)
    body = struct.pack("!BBHI", ND_NEIGHBOR_ADVERT, 0, 0, flags) + vip + option
    pseudo = vip + ALL_NODES + struct.pack("!II", len(body), ICMPV6)
    body = body[:2] + checksum(pseudo + body).to_bytes(2, "big") + body[4:]
    header = struct.pack("!IHBB", 6 << 28, len(body), ICMPV6, 255) + vip + ALL_NODES
    return ALL_NODES_MAC + mac + struct.pack("!H", ETH_P_IPV6) + header + body


def frames(mac: bytes, vips: Sequence[str], router: bool) -> list[bytes]:
    """One round for all VIPs."""
    made = []
    for vip in map(ipaddress.ip_address, vips):
        if vip.version == 4:
            made += [gratuitous_arp(mac, vip.packed, op) for op in (ARP_REQUEST, ARP_REPLY)]
        else:
            made.append(unsolicited_advertisement(mac, vip.packed, router))
    return made


def announce(interface: str, vips: Sequence[str], router: bool) -> bool:
    """Tell all neighbours on the interface, several times; False: it has no link layer, nobody needs it.

    UserError if the host does not let us.
    """
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.bind((interface, 0))
            _, _, _, kind, mac = sock.getsockname()
            if kind != ARPHRD_ETHER:
                return False
            for i in range(TIMES):
                if i:
                    time.sleep(INTERVAL_S)
                for frame in frames(mac, vips, router):
                    sock.send(frame)
    except OSError as e:
        raise UserError(
            f"cannot announce on {interface}: {e.strerror}: is it up, and are you root?"
        ) from None
    return True
