"""What client and servers receive in every mode has right checksums, with offloads on and off."""

from __future__ import annotations

import struct

import pytest
from support import clients
from support.capture import Seen, capture, verify

from uvs.lab import processes

SIZE = 300_000
UNHEARD = 9998


def traffic(running, family: int) -> None:
    """TCP both ways, UDP of even and odd sizes, ping, an ICMP error of a server, a RST."""
    vip, call = running.vip(family), running.lab.call
    for direction in (clients.upload, clients.download):
        _, there, here = call("client", direction, vip, SIZE)
        assert there == here
    assert all(call("client", clients.echo, vip, [1, 2, 777, 1200]))
    assert call("client", clients.ping, vip) == 3
    assert call("client", clients.send_to_closed_port, vip, UNHEARD) == "ConnectionRefusedError"
    assert call("client", clients.stray_segment, vip, 80) == "R"


@pytest.mark.parametrize("offload", [True, False], ids=["offload", "no-offload"])
def test_checksums(running, family, offload: bool) -> None:
    lab = running.lab
    lab.offload(offload)
    running.uvsadm("-C")
    processes.add_services(lab)
    processes.restore(lab, processes.service_commands(lab, family, UNHEARD, "-u"))
    hosts = ["client", *(h.name for h in lab.topology.servers)]
    states = [clients.Progress() for _ in hosts]
    captures = [lab.begin(h, capture, "eth0", s) for h, s in zip(hosts, states, strict=True)]
    try:
        for state in states:
            state.wait(1)
        traffic(running, family)
        for state in states:
            state.value = 2
        seen: list[Seen] = [c.result() for c in captures]
    finally:
        for each in captures:
            each.close()
    assert [wrong for s in seen for wrong in s.wrong] == []

    # What the director sent was seen, and its checksums stood there whole.
    at_client, at_servers = seen[0], seen[1:]
    towards_servers = running.mac("director", "eth1" if running.mode == "nat" else "eth0")
    if running.mode == "tun":
        towards_servers = running.mac("router", "eth1")
    for protocol in ("TCP", "UDP", *(["tunnel"] if running.mode == "tun" else [])):
        assert sum(s.of(towards_servers, protocol) for s in at_servers) > 0, protocol
    director = running.mac("director")
    if running.mode == "nat":
        assert at_client.of(director, "TCP") > SIZE // 65535  # with offloads, packets of many segments
        assert at_client.of(director, "UDP") == 4
        assert at_client.of(director, "quoted") == 1
    assert at_client.of(director, "ICMP" if family == 4 else "ICMPv6") >= 3


def packet(proto: int, body: bytes) -> bytes:
    header = struct.pack(
        "!BBHHHBBH4s4s", 0x45, 0, 20 + len(body), 1, 0, 64, proto, 0, b"\x0a\0\0\1", b"\x0a\0\0\2"
    )
    return header[:10] + struct.pack("!H", clients._checksum(header)) + header[12:] + body


@pytest.mark.parametrize(
    ("what", "spoilt", "partial", "wrong"),
    [
        ("all is well", None, False, 0),
        ("a bit of the IPv4 header", 8, False, 1),
        ("a bit of the TCP header", 24, False, 1),
        ("a bit of the data", 41, False, 1),
        ("whole where it should be partial", None, True, 1),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_the_check_itself(what: str, spoilt: int | None, partial: bool, wrong: int) -> None:
    """A checker that finds nothing proves nothing: it does find a flipped bit."""
    tcp = struct.pack("!HHIIBBHHH", 1, 80, 1, 1, 5 << 4, 16, 100, 0, 0) + b"abc"
    pseudo = b"\x0a\0\0\1\x0a\0\0\2" + struct.pack("!II", len(tcp), 6)
    tcp = tcp[:16] + struct.pack("!H", clients._checksum(pseudo + tcp)) + tcp[18:]
    data = bytearray(packet(6, tcp))
    if spoilt is not None:
        data[spoilt] ^= 1
    seen = Seen()
    verify(seen, "mac", bytes(data), 4, partial)
    assert len(seen.wrong) == wrong, what
    assert seen.of("mac", "IPv4") == 1
