"""`uvs walk`: whatever comes, it is told, or refused in a line."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment
from scapy.layers.l2 import GRE
from scapy.packet import Raw
from support.schema import wrong

from uvs.errors import UserError
from uvs.ipvs.skb import Hook
from uvs.walk import expressions, services, text
from uvs.walk.diff import changes
from uvs.walk.fields import layers
from uvs.walk.jsontext import complete
from uvs.walk.paper import Director

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/walk.schema.json").read_text())
TABLE = """\
-A -t 192.0.2.100:80 -s rr
-a -t 192.0.2.100:80 -r 198.51.100.11:8080 -m
-A -u 192.0.2.100:53 -s rr
-a -u 192.0.2.100:53 -r 198.51.100.11:53 -i --tun-type gue --tun-port 6080
-A -t [2001:db8::100]:80 -s rr -p 300
-a -t [2001:db8::100]:80 -r [2001:db8::11]:80 -m
-A -t 192.0.2.100:21 -s rr
-a -t 192.0.2.100:21 -r 198.51.100.11:21 -m
""".splitlines()
V4, V6 = IP(src="192.0.2.2", dst="192.0.2.100"), IPv6(src="2001:db8::2", dst="2001:db8::100")
BACK = IP(src="198.51.100.11", dst="192.0.2.2")
SAMPLES = [
    bytes(p)
    for p in (
        V4 / TCP(sport=1024, dport=80, flags="S"),
        BACK / TCP(sport=8080, dport=1024, flags="SA"),
        V4 / UDP(sport=1024, dport=53) / Raw(b"\x1b[2J\r\n"),
        V6 / TCP(sport=1024, dport=80, flags="S"),
        V6 / IPv6ExtHdrFragment(m=1) / UDP(sport=9) / Raw(b"x" * 8),
        V4 / TCP(sport=1024, dport=21, flags="S"),
        V4 / TCP(sport=1024, dport=21, flags="PA") / Raw(b"PORT 192,0,2,2,4,1\r\n"),
        V4 / ICMP(type=3, code=4) / IP(src="192.0.2.100", dst="192.0.2.2") / TCP(sport=80, dport=1024),
        BACK / ICMP(type=3, code=3) / IP(src="192.0.2.2", dst="198.51.100.11") / TCP(sport=1024, dport=8080),
        V4 / GRE() / V4 / UDP(),
        IP(src="192.0.2.2", dst="192.0.2.100", flags="MF") / UDP(sport=1024, dport=53) / Raw(b"x" * 8),
    )
]
EXPRESSION = 'IP(src="192.0.2.2", dst="192.0.2.100")/TCP(sport=1024, dport=[80, 81], flags="S")/(b"x" * 10)'


@st.composite
def packets(draw: st.DrawFn) -> bytes:
    """One of the samples, some bytes of it changed, and perhaps cut."""
    data = bytearray(draw(st.sampled_from(SAMPLES)))
    for _ in range(draw(st.integers(0, 4))):
        data[draw(st.integers(0, len(data) - 1))] = draw(st.integers(0, 255))
    return bytes(data[: draw(st.none() | st.integers(0, len(data)))])


@given(st.lists(st.tuples(packets() | st.binary(max_size=80), st.none() | st.sampled_from(Hook)), max_size=8))
def test_whatever_comes_its_walk_is_told(coming: list[tuple[bytes, Hook | None]]) -> None:
    director = Director()
    try:
        services.load(director.ipvs.services, TABLE, "table")
        for data, hook in coming:
            walk = complete(director.take(expressions.Packet(data), hook))
            assert list(wrong(SCHEMA, json.loads(json.dumps(walk)))) == []
            assert all(line.isprintable() for line in text.render(walk).splitlines())
            director.wait(1)
    finally:
        director.close()


@given(packets() | st.binary(max_size=120), packets())
@example(b"", b"")
def test_whatever_it_is_it_is_taken_apart(data: bytes, other: bytes) -> None:
    layers(data, other)
    assert changes(data, data) == []
    assert changes(data, other) or layers(data) == layers(other, data)


@given(
    st.text()
    | st.builds(
        lambda at, put, cut: EXPRESSION[:at] + put + EXPRESSION[at + cut :],
        st.integers(0, len(EXPRESSION)), st.text("()[]{}/*,=1x'\"b -\n\x1b.\\", max_size=4), st.integers(0, 12),
    )
)  # fmt: skip
def test_whatever_is_typed_it_is_packets_or_a_line(typed: str) -> None:
    said = ""
    try:
        assert all(p.data for p in expressions.packets(typed))
    except UserError as e:
        said = str(e)
    assert said.isprintable()
