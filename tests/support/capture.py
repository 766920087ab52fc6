"""A raw capture that verifies every checksum of what an interface receives.

On veth a locally made packet arrives with its checksum unfinished: the field holds the pseudo header's sum
and the kernel says so (TP_STATUS_CSUMNOTREADY, packet(7), PACKET_AUXDATA). Of such a packet that sum is verified, of any
other the checksum as it would be on a wire.
"""

from __future__ import annotations

import socket
import struct
from collections import Counter
from dataclasses import dataclass, field

from support.clients import Progress

ETH_P_ALL = 3
SOL_PACKET, PACKET_AUXDATA = 263, 8
TP_STATUS_CSUMNOTREADY = 8
SO_RCVBUFFORCE = 33
PACKET_OUTGOING = 4
ETHERTYPES = {0x0800: 4, 0x86DD: 6}
TCP, UDP, ICMP, ICMPV6 = 6, 17, 1, 58
NAMES = {TCP: "TCP", UDP: "UDP", ICMP: "ICMP", ICMPV6: "ICMPv6"}
CHECKSUM_AT = {TCP: 16, UDP: 6, ICMP: 2, ICMPV6: 2}
TUNNELS = {4: 4, 41: 6}
ERRORS = {ICMP: (3, 4, 5, 11, 12), ICMPV6: range(128)}


@dataclass
class Seen:
    """What was verified: (sender's MAC, protocol, "whole" or "partial") and how often; and what was wrong."""

    checked: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def of(self, mac: str, protocol: str, how: str = "whole") -> int:
        """How many packets of that sender and protocol were verified."""
        return self.checked[mac, protocol, how]


def _sum(data: bytes) -> int:
    """The ones' complement sum, modulo 0xffff."""
    return int.from_bytes(data + bytes(len(data) % 2), "big") % 0xFFFF


def verify(seen: Seen, mac: str, packet: bytes, version: int, partial: bool) -> None:
    """Verify one IP packet, tunnels and quoted headers included."""
    if version == 4:
        header = packet[: (packet[0] & 15) * 4]
        if _sum(header):
            seen.wrong.append(f"IPv4 header of {packet.hex()[:160]} from {mac}")
        seen.checked[mac, "IPv4", "whole"] += 1
        total, _, fragment = struct.unpack_from("!HHH", packet, 2)
        protocol, addresses, data = packet[9], packet[12:20], packet[len(header) : total]
        piece = bool(fragment & 0x3FFF)
    else:
        total, protocol = 40 + struct.unpack_from("!H", packet, 4)[0], packet[6]
        addresses, data = packet[8:40], packet[40:total]
        piece = protocol == 44
    if piece:
        seen.checked[mac, "fragment", "whole"] += 1
    elif protocol in TUNNELS:
        seen.checked[mac, "tunnel", "whole"] += 1
        verify(seen, mac, data, TUNNELS[protocol], False)
    elif protocol in NAMES:
        _verify_upper(seen, mac, protocol, addresses, data, partial)


def _verify_upper(seen: Seen, mac: str, protocol: int, addresses: bytes, data: bytes, partial: bool) -> None:
    pseudo = b"" if protocol == ICMP else addresses + struct.pack("!II", len(data), protocol)
    (found,) = struct.unpack_from("!H", data, CHECKSUM_AT[protocol])
    if partial and protocol in (TCP, UDP):
        right, how = found % 0xFFFF == _sum(pseudo), "partial"
    elif protocol == UDP and found == 0 and len(addresses) == 8:
        right, how = True, "none"
    else:
        right, how = _sum(pseudo) + _sum(data) in (0, 0xFFFF), "whole"
    if not right:
        seen.wrong.append(f"{how} checksum of {NAMES[protocol]} {found:04x} in {data.hex()[:160]} from {mac}")
    seen.checked[mac, NAMES[protocol], how] += 1
    if protocol == ICMP and data[0] in ERRORS[ICMP] and _sum(data[8 : 8 + (data[8] & 15) * 4]):
        seen.wrong.append(f"quoted IPv4 header in {data.hex()[:160]} from {mac}")
    if data[0] in ERRORS.get(protocol, ()):
        seen.checked[mac, "quoted", "whole"] += 1


def capture(interface: str, state: Progress) -> Seen:
    """Verify what comes in on the interface until `state` is 2; sets it to 1 when the capture has begun."""
    seen = Seen()
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        sock.bind((interface, ETH_P_ALL))
        state.value = 1
        sock.settimeout(0.05)
        while True:
            try:
                frame, control, _, address = sock.recvmsg(1 << 17, 256)
            except TimeoutError:
                if state.value == 2:
                    return seen
                continue
            version = ETHERTYPES.get(struct.unpack_from("!H", frame, 12)[0])
            if version is None or address[2] == PACKET_OUTGOING:
                continue
            status = next(
                struct.unpack_from("=I", d)[0]
                for level, kind, d in control
                if (level, kind) == (SOL_PACKET, PACKET_AUXDATA)
            )
            verify(seen, frame[6:12].hex(":"), frame[14:], version, bool(status & TP_STATUS_CSUMNOTREADY))
