"""Packets that stand for many TCP segments: cut as the kernel cuts them, and translated with half a checksum."""

from __future__ import annotations

from typing import Any

import pytest
from scapy.layers.inet import IP, TCP
from scapy.layers.inet6 import IPv6
from support.packets import (
    CLIENT,
    CLIENT6,
    CPORT,
    DPORT,
    SERVER,
    SERVER6,
    VIP,
    VIP6,
    VPORT,
    conn4,
    conn6,
    half,
    loaded,
    packed,
)
from support.world import dissect, sums_right

from uvs.engine.core import (
    AF_INET,
    AF_INET6,
    Conn,
    DestFlag,
    Dir,
    FastPath,
    NextHop,
    NextHops,
    Step,
    Table,
)
from uvs.ipvs.skb import Hook

DATA = bytes(range(256)) * 40
V4, V6 = IP(src=CLIENT, dst=VIP, id=65534, ttl=63), IPv6(src=CLIENT6, dst=VIP6, hlim=63)
STAMPS = [("NOP", None), ("NOP", None), ("Timestamp", (7, 9))]
FAMILIES = pytest.mark.parametrize("ip", [V4, V6], ids=["IPv4", "IPv6"])


def tcp(**kw: Any) -> TCP:
    return TCP(**{"sport": CPORT, "dport": VPORT, "flags": "A", "seq": 0xFFFFFF00, "ack": 2} | kw)


def opened(ip: Any, *syns: int) -> tuple[Table, Conn]:
    """A connection in a table, whose SYNs said these maximum segment sizes."""
    table = Table(None, 100)
    dest = table.dest_new()
    assert dest
    dest.flags = DestFlag.AVAILABLE
    af = AF_INET if ip is V4 else AF_INET6
    client, virtual, server = map(packed, (CLIENT, VIP, SERVER) if ip is V4 else (CLIENT6, VIP6, SERVER6))
    conn = table.conn_new(af, 6, client, CPORT, virtual, VPORT, af, server, DPORT, 0, 0, dest.index, 0)
    assert conn
    for n, mss in enumerate(syns):
        syn = loaded(ip / tcp(flags="SA" if n else "S", options=[("NOP", None), ("MSS", mss)]))
        table.set_state(conn, Dir.OUTPUT if n else Dir.INPUT, syn.iph)
    return table, conn


@FAMILIES
def test_segments_make_the_packet(ip: Any) -> None:
    """In order, numbered on, each whole by itself; only the last one pushes and ends."""
    _, conn = opened(ip, 1000)
    parts = [
        dissect(part) for part in loaded(ip / tcp(flags="FPAC", options=STAMPS) / DATA).segments(conn, 1500)
    ]
    assert b"".join(bytes(part[TCP].payload) for part in parts) == DATA
    size = 1000 - 12
    assert [len(part[TCP].payload) for part in parts] == [size] * (len(DATA) // size) + [len(DATA) % size]
    assert [part[TCP].seq for part in parts] == [(0xFFFFFF00 + n * size) % 2**32 for n in range(len(parts))]
    assert [str(part[TCP].flags) for part in parts] == ["AC", *["A"] * (len(parts) - 2), "FPA"]
    assert all(sums_right(part) and part[TCP].options == STAMPS for part in parts)
    if ip is V4:
        assert [part.id for part in parts] == [(65534 + n) % 65536 for n in range(len(parts))]


@pytest.mark.parametrize(
    ("syns", "options", "mtu", "size"),
    [
        ((1460,), [], 1500, 1460),
        ((1460,), STAMPS, 1500, 1448),
        ((1460, 1360), [], 1500, 1360),
        ((1360, 8960), [], 9000, 1360),
        ((8960, 8960), [], 1500, 1460),
        ((), [], 1500, 536),
        ((), STAMPS, 1500, 524),
        ((), [], 400, 360),
        ((1460,), [], 40, 0),
        ((1460,), [], 30, 0),
    ],
)
def test_segment_size(syns: tuple[int, ...], options: Any, mtu: int, size: int) -> None:
    """No larger than either end said, or than fits; 536 where nothing was said."""
    _, conn = opened(V4, *syns)
    parts = loaded(V4 / tcp(options=options) / DATA).segments(conn, mtu)
    assert (len(dissect(parts[0])[TCP].payload) if parts else 0) == size


@FAMILIES
def test_half_a_checksum_is_finished(ip: Any) -> None:
    packet = half(ip / tcp() / DATA)
    assert not sums_right(dissect(packet.data))
    packet.csum_finish()
    assert sums_right(dissect(packet.data))
    assert packet.data == loaded(ip / tcp() / DATA).data


@FAMILIES
@pytest.mark.parametrize("reply", [False, True], ids=["request", "reply"])
def test_nat_keeps_half_a_checksum(ip: Any, reply: bool) -> None:
    """Translated and then finished is finished and then translated."""
    conn = conn4() if ip is V4 else conn6()
    first, last = half(ip / tcp() / DATA), half(ip / tcp() / DATA)
    first.csum_finish()
    for packet in (first, last):
        (packet.snat if reply else packet.dnat)(conn)
    last.csum_finish()
    assert first.data == last.data
    assert sums_right(dissect(first.data))


@FAMILIES
@pytest.mark.parametrize(("mss", "size"), [(1000, 1000), (0, None), (9000, 1460)])
def test_fast_path_says_how_to_cut(ip: Any, mss: int, size: int | None) -> None:
    """A packet of many segments is sent whole, with what the kernel is to cut it to."""
    table, conn = opened(ip, *([mss] if mss else []))
    hops = NextHops()
    hops.put(5, NextHop(1, 1500 if ip is V4 else 1520), True)
    conn.nexthop = 5
    packet = half(ip / tcp() / DATA)
    packet.gso = 1
    done = FastPath(table, hops).step(packet, Hook.LOCAL_IN, 0)
    assert done == (Step.SEND, 5, size or (536 if packet.iph.af == AF_INET else 1220))
    sent = dissect(packet.data)
    assert (sent.dst, sent[TCP].dport) == (SERVER if ip is V4 else SERVER6, DPORT)
    packet.csum_finish()
    assert sums_right(dissect(packet.data))
