"""TTL, and the outer header of ipip in all four pairs of families."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrHopByHop
from support.packets import (
    CLIENT,
    CLIENT6,
    DIRECTOR,
    DIRECTOR6,
    SERVER,
    SERVER6,
    VIP,
    VIP6,
    loaded,
    packed,
    same,
)

from uvs.engine.core import AF_INET, AF_INET6, PACKET_MAX, Packet, Why

V4 = IP(src=CLIENT, dst=VIP, id=77, ttl=60)
V6 = IPv6(src=CLIENT6, dst=VIP6, hlim=60, fl=0x12345)
DATA = UDP(sport=1, dport=2) / b"data"


def encap(pkt: Packet, af: int, pmtu_disc: bool = True, ident: int = 0x4321) -> int:
    src, dst = (DIRECTOR, SERVER) if af == AF_INET else (DIRECTOR6, SERVER6)
    return pkt.encap(af, packed(src), packed(dst), ident, pmtu_disc=pmtu_disc)


OUT4, OUT6 = IP(src=DIRECTOR, dst=SERVER, ttl=60), IPv6(src=DIRECTOR6, dst=SERVER6, hlim=60)


def outer4(**fields: Any) -> Any:
    return IP(**({"src": DIRECTOR, "dst": SERVER, "ttl": 60, "id": 0x4321} | fields))


def outer6(**fields: Any) -> Any:
    return IPv6(**({"src": DIRECTOR6, "dst": SERVER6, "hlim": 60, "fl": 0} | fields))


# what it shows, inner, family of the outer header, pmtu_disc, outer
ENCAP: list[tuple[str, Any, int, bool, Any]] = [
    ("v4 in v4", V4, AF_INET, True, outer4()),
    (
        "v4 in v4, DF is copied, id 0",
        IP(src=CLIENT, dst=VIP, flags="DF", ttl=60),
        AF_INET,
        True,
        outer4(flags="DF", id=0),
    ),
    ("v4 in v4, DF, pmtu_disc 0", IP(src=CLIENT, dst=VIP, flags="DF", ttl=60), AF_INET, False, outer4()),
    ("v4 in v4, no DF, pmtu_disc 0", V4, AF_INET, False, outer4()),
    (
        "v4 in v4, MF and offset are not",
        IP(src=CLIENT, dst=VIP, flags="MF", frag=9, ttl=60),
        AF_INET,
        True,
        outer4(),
    ),
    ("v4 in v4, DSCP and ECT(1)", IP(src=CLIENT, dst=VIP, tos=0xB9, ttl=60), AF_INET, True, outer4(tos=0xB9)),
    (
        "v4 in v4, CE becomes ECT(0)",
        IP(src=CLIENT, dst=VIP, tos=0xBB, ttl=60),
        AF_INET,
        True,
        outer4(tos=0xBA),
    ),
    ("v6 in v4, never DF", V6, AF_INET, True, outer4(proto=41)),
    (
        "v6 in v4, class",
        IPv6(src=CLIENT6, dst=VIP6, tc=0xBB, hlim=60),
        AF_INET,
        True,
        outer4(tos=0xBA, proto=41),
    ),
    ("v4 in v6", V4, AF_INET6, True, outer6()),
    ("v4 in v6, CE", IP(src=CLIENT, dst=VIP, tos=0x03, ttl=60), AF_INET6, True, outer6(tc=2)),
    ("v6 in v6, flow label 0", V6, AF_INET6, True, outer6()),
    ("v6 in v6, class", IPv6(src=CLIENT6, dst=VIP6, tc=0x88, hlim=60), AF_INET6, False, outer6(tc=0x88)),
    ("v6 with extension header in v6", V6 / IPv6ExtHdrHopByHop(), AF_INET6, True, outer6()),
]


@pytest.mark.parametrize(("inner", "af", "pmtu", "outer"), [r[1:] for r in ENCAP], ids=[r[0] for r in ENCAP])
def test_encap(inner: Any, af: int, pmtu: bool, outer: Any) -> None:
    inner = inner / DATA
    pkt = loaded(inner)
    assert encap(pkt, af, pmtu) == 0
    assert same(pkt.data, outer / inner)
    assert (pkt.iph.af, pkt.iph.off, pkt.iph.protocol) == (af, 0, 4 if inner.version == 4 else 41)
    assert pkt.iph.daddr == packed(SERVER if af == AF_INET else SERVER6)


@pytest.mark.parametrize(
    ("inner", "af", "fits"),
    [
        (V4 / bytes(PACKET_MAX - 40), AF_INET, True),
        (V4 / bytes(PACKET_MAX - 39), AF_INET, False),
        (V4 / bytes(PACKET_MAX - 20), AF_INET6, True),
        (V6 / bytes(PACKET_MAX - 40), AF_INET6, True),
        (V6 / bytes(PACKET_MAX - 39), AF_INET6, False),
        (V6 / bytes(PACKET_MAX - 60), AF_INET, True),
        (V6 / bytes(PACKET_MAX - 59), AF_INET, False),
    ],
)
def test_largest(inner: Any, af: int, fits: bool) -> None:
    pkt = loaded(inner)
    assert encap(pkt, af) == (0 if fits else Why.TOO_BIG)
    assert pkt.len == len(bytes(inner)) + (0 if not fits else 20 if af == AF_INET else 40)


def test_headroom_runs_out() -> None:
    pkt = loaded(V4 / DATA)
    assert [encap(pkt, AF_INET6) for _ in range(4)] == [0, 0, 0, Why.TOO_BIG]
    before = pkt.data
    assert encap(pkt, AF_INET6) == Why.TOO_BIG
    assert pkt.data == before


@pytest.mark.parametrize("ttl", [2, 3, 64, 128, 255])
def test_decrease_ttl_v4(ttl: int) -> None:
    pkt = loaded(IP(src=CLIENT, dst=VIP, ttl=ttl, options=[]) / TCP())
    assert pkt.decrease_ttl() == 0
    assert same(pkt.data, IP(src=CLIENT, dst=VIP, ttl=ttl - 1) / TCP())
    assert pkt.iph.ttl == ttl - 1


@pytest.mark.parametrize("hlim", [2, 64, 255])
def test_decrease_ttl_v6(hlim: int) -> None:
    pkt = loaded(IPv6(src=CLIENT6, dst=VIP6, hlim=hlim) / TCP())
    assert pkt.decrease_ttl() == 0
    assert same(pkt.data, IPv6(src=CLIENT6, dst=VIP6, hlim=hlim - 1) / TCP())


@pytest.mark.parametrize("ttl", [0, 1])
@pytest.mark.parametrize("build", [lambda n: IP(ttl=n), lambda n: IPv6(hlim=n)], ids=["v4", "v6"])
def test_ttl_exceeded(build: Any, ttl: int) -> None:
    packet = bytes(build(ttl) / TCP())
    pkt = loaded(packet)
    assert pkt.decrease_ttl() == Why.TTL
    assert pkt.data == packet
