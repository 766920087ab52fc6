"""Scapy expressions that are read, not run."""

from __future__ import annotations

import socket
import sys

import pytest
from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.sendrecv import conf

from uvs.errors import UserError
from uvs.walk import expressions

HEAD = 'IP(src="192.0.2.2", dst="192.0.2.100")'


def ip(**kw: object) -> IP:
    return IP(src="192.0.2.2", dst="192.0.2.100", **kw)


@pytest.mark.parametrize(
    ("text", "packet"),
    [
        (f'{HEAD}/TCP(sport=1024, dport=80, flags="S")', ip() / TCP(sport=1024, dport=80, flags="S")),
        (f"{HEAD}/UDP(dport=53)/(b'x' * 100)", ip() / UDP(dport=53) / Raw(b"x" * 100)),
        (f"{HEAD}/UDP(dport=53)/Raw('text')", ip() / UDP(dport=53) / Raw("text")),
        (f"{HEAD}/TCP(options=[('MSS', 1460), ('NOP', None)])", ip() / TCP(options=[("MSS", 1460), ("NOP", None)])),
        (f"{HEAD}/ICMP(type=3, code=4)/{HEAD}/UDP()", ip() / ICMP(type=3, code=4) / ip() / UDP()),
        ('IPv6(src="2001:db8::1", dst="2001:db8::2")/UDP()', IPv6(src="2001:db8::1", dst="2001:db8::2") / UDP()),
        (f"{HEAD}/TCP(seq=0xffffffff, window=-1 * 0)", None),
        (f"  {HEAD}/UDP(dport=53)\n", ip() / UDP(dport=53)),
    ],
)  # fmt: skip
def test_what_scapy_makes_of_it(text: str, packet: IP | None) -> None:
    if packet is None:
        with pytest.raises(UserError):
            expressions.packets(text)
        return
    (made,) = expressions.packets(text)
    assert made == (bytes(packet), None)


def test_a_list_is_several_packets() -> None:
    found = expressions.packets(f"[{HEAD}/UDP(dport=53), {HEAD}/UDP(dport=54)]")
    assert [IP(p.data).dport for p in found] == [53, 54]


def test_a_set_is_several_packets() -> None:
    found = expressions.packets(f"{HEAD}/TCP(sport=[1, 2], dport=(80, 82))")
    ports = sorted((IP(p.data).sport, IP(p.data).dport) for p in found)
    assert ports == [(s, d) for s in (1, 2) for d in (80, 81, 82)]


def test_a_frame_tells_its_addresses() -> None:
    frame = 'Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")'
    (made,) = expressions.packets(f"{frame}/{HEAD}/UDP()")
    assert made.frame == {"src": "02:00:00:00:00:01", "dst": "02:00:00:00:00:02"}
    assert made.data == bytes(ip() / UDP())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not an expression"),
        ("IP(", "not an expression"),
        ("1", "a packet begins with IP(...)"),
        ("[]", "no packet"),
        (f"{HEAD}/TPC(dport=80)", "no layer 'TPC' (did you mean TCP?) at column"),
        (f"{HEAD}/TCP(dprt=80)", "TCP has no field 'dprt' (did you mean dport?) at column"),
        (f"{HEAD}/TCP(80)", "TCP takes name=value only at column"),
        (f"{HEAD}/TCP", "TCP is written TCP(...)"),
        (f"{HEAD}/TCP(dport='no such port')", "TCP takes no such value ('no such port')"),
        (f"{HEAD}/TCP(sport=(1, 60000), dport=(1, 60000))", "more than 10000 packets"),
        (f"{HEAD}/TCP(flags='Q')", ""),
        ("TCP(dport=80)", "a packet begins with IP(...)"),
        ('IP(dst="192.0.2.1")', "IP needs src= and dst="),
        ('IP(src="www.example.org", dst="192.0.2.1")', "src='www.example.org' is no address"),
        ('IP(src="192.0.2.0/24", dst="192.0.2.1")', "is no address"),
        (f"Ether()/{HEAD}", "Ether needs src= and dst="),
        (f"{HEAD}/UDP()/(b'x' * 1000000)", "more than 65535 bytes"),
        (f"{HEAD}/UDP()/(('x' * 60000) * 60000)", "more than 65535 bytes"),
        ("'x' / 'y'", "'/' puts a layer, or bytes, behind a layer"),
        (f"{HEAD} * 3", "'*' repeats a text or bytes"),
        (f"{HEAD} + {HEAD}", "not allowed"),
        ("__import__('os').system('true')", "not allowed"),
        ("open('/etc/passwd')", "no layer 'open'"),
        ("().__class__", "not allowed"),
        ("[IP for x in (1,)]", "not allowed"),
        (f"{HEAD}/Raw(load=__builtins__)", "no layer '__builtins__'"),
        ("(lambda: 1)()", "not allowed"),
        ("IP(**{'src': '192.0.2.1'})", "no field '**'"),
        (f"{HEAD}/Raw(f'{{1}}')", "not allowed"),
        ("-" * 50_000 + "1", ""),
        ("(" * 5000, ""),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text: str, said: str) -> None:
    with pytest.raises(UserError) as e:
        expressions.packets(text)
    assert said in str(e.value)
    assert len(str(e.value).splitlines()) == 1
    assert e.value.status == 2


def test_a_column_is_where_the_fault_is() -> None:
    text = f"{HEAD}/TCP(dprt=80)"
    with pytest.raises(UserError, match=f"at column {text.index('80)') + 1}"):
        expressions.packets(text)


def test_nothing_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither names nor routes nor neighbours."""

    def asked(*args: object, **kw: object) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr(socket, "getaddrinfo", asked)
    monkeypatch.setattr(socket, "gethostbyname", asked)
    monkeypatch.setattr(conf.route.__class__, "route", asked)
    monkeypatch.setattr(conf.route6.__class__, "route", asked)
    for text in (
        f"{HEAD}/TCP(sport=1024)",
        'IPv6(src="2001:db8::1", dst="2001:db8::2")/UDP()',
        f'Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")/{HEAD}/UDP()',
        f"{HEAD}/GRE()/{HEAD}",
    ):
        expressions.packets(text)


def test_without_scapy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scapy.layers.inet", None)
    with pytest.raises(UserError, match=r"scapy: pip install 'uvs\[lab\]'"):
        expressions.packets(HEAD)


def test_every_layer_is_scapys() -> None:
    assert sorted(expressions.scapy()) == expressions.LAYERS
    assert Ether in expressions.scapy().values()
