"""What is read from frames: a request and its reply at both ends, through NAT and through a tunnel."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Raw

from uvs.lab.crossing import Seen, crossing, table
from uvs.lab.wires import Frame

CLIENT, DIRECTOR, SERVER = (f"02:00:00:00:00:0{i}" for i in (1, 2, 3))
NAMES = {CLIENT: "client", DIRECTOR: "director", SERVER: "rs1"}
C, VIP, RIP = "192.0.2.2", "192.0.2.100", "198.51.100.11"


def frame(host: str, out: bool, src: str, dst: str, packet: Any) -> Frame:
    return Frame(0.0, host, "eth0", out, bytes(Ether(src=src, dst=dst) / packet))


def syn(dst: str, ttl: int) -> Any:
    return IP(src=C, dst=dst, ttl=ttl) / TCP(sport=4000, dport=80, flags="S", seq=0xFFFFFFFF)


def answer(src: str, ttl: int) -> Any:
    return IP(src=src, dst=C, ttl=ttl) / TCP(sport=80, dport=4000, flags="SA", seq=0x0A0B0C0D, ack=0)


NAT = [
    frame("client", True, CLIENT, DIRECTOR, syn(VIP, 64)),
    frame("director", False, CLIENT, DIRECTOR, syn(VIP, 64)),
    frame("rs1", False, DIRECTOR, SERVER, syn(RIP, 63)),
    frame("rs1", True, SERVER, DIRECTOR, answer(RIP, 64)),
    frame("director", False, SERVER, DIRECTOR, answer(RIP, 64)),
    frame("client", False, DIRECTOR, CLIENT, answer(VIP, 63)),
]
WRAPPED = {
    "ipip": IP(src="192.0.2.1", dst=RIP, ttl=62) / syn(VIP, 63),
    "gue": IP(src="192.0.2.1", dst=RIP, ttl=62)
    / UDP(sport=5, dport=6080)
    / Raw(b"\0\4\0\0" + bytes(syn(VIP, 63))),
}


def test_nat() -> None:
    """Addresses and TTL change at the director, both ways; the reply's number wraps round."""
    found = crossing("nat", NAT, NAMES)
    assert found is not None
    assert (found.server, found.back) == ("rs1", ["rs1", "director", "client"])
    assert list(found.places.values()) == [
        Seen(("client", "director"), (C, VIP), 64),
        Seen(("director", "rs1"), (C, RIP), 63),
        Seen(("rs1", "director"), (RIP, C), 64),
        Seen(("director", "client"), (VIP, C), 63),
    ]


@pytest.mark.parametrize("kind", WRAPPED)
def test_tunnel(kind: str) -> None:
    """The request is found in its tunnel, not where it comes out of a device without MAC addresses."""
    inside = Frame(0.0, "rs1", "tun0", False, bytes(12) + b"\x08\x00" + bytes(syn(VIP, 60)))
    frames = [
        NAT[0],
        inside,
        frame("rs1", False, DIRECTOR, SERVER, WRAPPED[kind]),
        frame("rs1", True, SERVER, CLIENT, answer(VIP, 64)),
        frame("client", False, SERVER, CLIENT, answer(VIP, 64)),
    ]
    found = crossing("tun", frames, NAMES)
    assert found is not None
    at = found.places["request, at the server"]
    assert at == Seen(("director", "rs1"), (C, VIP), 63, ("192.0.2.1", RIP), 62)
    assert found.back == ["rs1", "client"]


@pytest.mark.parametrize("missing", [0, 2, 3, 5])
def test_not_seen(missing: int) -> None:
    """Without one of the four there is nothing to tell."""
    assert crossing("nat", NAT[:missing] + NAT[missing + 1 :], NAMES) is None


def test_table() -> None:
    """A column for each; a tunnel's rows only where there is one."""
    found = crossing("nat", NAT, NAMES)
    assert found is not None
    lines = table([found, found._replace(title="dr")]).splitlines()
    assert lines[0].split() == ["nat", "dr"]
    assert lines[-1] == "return path             rs1 → director → client    rs1 → director → client"
    assert not [line for line in lines if "tunnel" in line]
