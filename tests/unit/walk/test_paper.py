"""The director on paper: its clock, its routes, its addresses."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address

import pytest
from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Raw

from uvs.engine.core import AF_INET, AF_INET6
from uvs.ipvs.skb import Hook
from uvs.walk import services
from uvs.walk.expressions import Packet
from uvs.walk.paper import START, Director, Settings, one_hop_less
from uvs.walk.routes import PaperRoutes

TABLE = "-A -t 192.0.2.100:80 -s rr\n-a -t 192.0.2.100:80 -r 198.51.100.11:8080 -m\n"


@pytest.fixture
def director() -> Iterator[Director]:
    made = Director(Settings(local=[ip_address("192.0.2.1").packed]))
    services.load(made.ipvs.services, TABLE.splitlines(), "table")
    yield made
    made.close()


def syn(sport: int = 1024, src: str = "192.0.2.2") -> Packet:
    return Packet(bytes(IP(src=src, dst="192.0.2.100") / TCP(sport=sport, dport=80, flags="S")))


def test_time_passes(director: Director) -> None:
    director.take(syn())
    assert director.wait(59.5) == 0
    assert director.wait(1) == 1
    assert director.now == START + 60_500_000_000


def test_a_long_wait_is_short(director: Director) -> None:
    director.take(syn())
    assert director.wait(10**8) == 1
    assert director.now == START + 10**17


def test_its_addresses_follow_the_services(director: Director) -> None:
    vip = ip_address("192.0.2.101").packed
    assert not director.routes.is_local(AF_INET, vip)
    services.change(director.ipvs.services, "uvsadm -A -u 192.0.2.101:53", "here")
    assert director.routes.is_local(AF_INET, vip)
    services.change(director.ipvs.services, "ipvsadm -D -u 192.0.2.101:53", "here")
    assert not director.routes.is_local(AF_INET, vip)
    assert director.routes.source[AF_INET] == ip_address("192.0.2.1").packed
    assert director.routes.source[AF_INET6] == bytes(16)


def test_timeouts_are_set(director: Director) -> None:
    services.change(director.ipvs.services, "--set 5 0 7", "here")
    assert director.table.timeouts(6)[1] == 5000
    assert director.table.timeouts(17)[0] == 7000


def test_a_mac_address_is_learnt(director: Director) -> None:
    director.take(
        Packet(syn(src="198.51.100.11").data, {"src": "02:00:00:00:00:11", "dst": "02:00:00:00:00:01"})
    )
    assert director.take(syn(1025))["sent"][0]["nexthop"] == "198.51.100.11 lladdr 02:00:00:00:00:11"


def test_what_nobody_answers_for_does_not_leave(director: Director) -> None:
    director.settings.gone.add(ip_address("198.51.100.11").packed)
    walk = director.take(syn())
    assert (walk["why"], [s["own"] for s in walk["sent"]]) == ("no_neighbour", [False, True])
    assert [IP(data).dst for _, data in director.leaves] == ["192.0.2.2"]


@pytest.mark.parametrize("data", [b"", b"\x45", b"\x60" + bytes(20), bytes(19), b"\x45" + bytes(30)])
@pytest.mark.parametrize("hook", list(Hook))
def test_what_is_no_packet_is_dropped(data: bytes, hook: Hook, director: Director) -> None:
    walk = director.take(Packet(data), hook)
    assert walk["verdict"] == "DROP"
    assert walk["why"] in ("short", "malformed", "ttl")


def test_one_hop_less() -> None:
    v4, v6 = (
        IP(src="192.0.2.2", dst="192.0.2.3", ttl=9) / UDP(),
        IPv6(src="::1", dst="::2", hlim=9) / UDP() / Raw(b"x"),
    )
    less = IP(src="192.0.2.2", dst="192.0.2.3", ttl=8) / UDP()
    assert one_hop_less(bytes(v4)) == bytes(less)
    assert IPv6(one_hop_less(bytes(v6))).hlim == 8


@pytest.mark.parametrize(
    ("address", "good"),
    [
        ("192.0.2.1", True),
        ("224.0.0.1", False),
        ("2001:db8::1", True),
        ("fd00::1", True),
        ("fe80::1", False),
        ("ff02::1", False),
    ],
)
def test_who_may_be_a_server(address: str, good: bool) -> None:
    af = AF_INET6 if ":" in address else AF_INET
    assert PaperRoutes().is_unicast(af, ip_address(address).packed) is good


def test_a_family_has_the_engines_number(director: Director, monkeypatch: pytest.MonkeyPatch) -> None:
    """AF_INET6 is 30 on macOS and 23 on Windows."""
    packet = Packet(
        bytes(IPv6(src="2001:db8::2", dst="2001:db8::100") / TCP(sport=1024, dport=80, flags="S"))
    )
    monkeypatch.setattr("uvs.adm.grammar.AF_INET6", 30)
    monkeypatch.setattr("uvs.adm.address.socket.AF_INET6", 30)
    monkeypatch.setattr("uvs.adm.address.socket.inet_pton", lambda af, text: ip_address(text).packed)
    for line in ("-A -t [2001:db8::100]:80 -s rr", "-a -t [2001:db8::100]:80 -r [2001:db8::11]:80 -m"):
        services.change(director.ipvs.services, line, "here")
    assert director.take(packet)["why"] == "forwarded"
