"""Health, fallback servers and drains over the control socket."""

from __future__ import annotations

import errno

import pytest
from support.world import RIP, VIP, packed

from uvs.control import extension
from uvs.control.client import Client
from uvs.ipvs.spec import DestSpec, IpvsError, ServiceKey, ServiceSpec
from uvs.layers import Health

KEY = ServiceKey(2, 6, packed(VIP), 80)
MARK6 = ServiceKey(10, 6, bytes(16), 0, 5)
SERVER = 2, packed(RIP[1]), 80


@pytest.fixture
def client(director):
    with director.client() as client:
        client.add_service(ServiceSpec(KEY))
        client.add_dest(KEY, DestSpec(*SERVER, weight=4))
        client.add_service(ServiceSpec(MARK6, netmask=128))
        client.add_dest(MARK6, DestSpec(10, packed("2001:db8::5"), 0, 3, weight=1))
        yield client


def weight(client: Client) -> list[int]:
    return [entry.spec.weight for entry in client.dests(KEY)]


def test_health_is_told_and_listed(client):
    client.set_health(KEY, SERVER, Health(up=False, about={"reason": "refused"}))
    assert weight(client) == [0]
    first, second = client.get_health()
    assert first == {
        "service": f"tcp:{VIP}:80",
        "server": f"{RIP[1]}:80",
        "configured": 4,
        "effective": 0,
        "present": True,
        "fallback": False,
        "up": False,
        "weight": None,
        "share": 1.0,
        "connections": {"active": 0, "inactive": 0, "templates": 0},
        "drain": None,
        "about": {"reason": "refused"},
    }
    assert (second["service"], second["server"], second["up"]) == ("fwmark:5/ipv6", "[2001:db8::5]:0", None)
    client.set_health(KEY, SERVER, Health(up=False, remove=True))
    assert weight(client) == []
    assert client.get_health()[0]["present"] is False
    client.set_health(KEY, SERVER, None)
    assert weight(client) == [4]


def test_a_fallback_server(client):
    client.set_fallback(KEY, DestSpec(2, packed(RIP[3]), 8080))
    assert [row["fallback"] for row in client.get_health()] == [False, True, False]
    with pytest.raises(IpvsError) as error:
        client.set_fallback(KEY, DestSpec(*SERVER))
    assert error.value.errno == errno.EEXIST
    client.set_fallback(KEY, None)
    assert weight(client) == [4]


def test_a_drain(client):
    client.drain(KEY, SERVER, deadline=60)
    assert weight(client) == [0]
    drain = client.get_health()[0]["drain"]
    assert drain["deadline"] == pytest.approx(drain["since"] + 60)
    client.drain(KEY, SERVER, cancel=True)
    assert weight(client) == [4]
    with pytest.raises(IpvsError) as error:
        client.drain(KEY, SERVER, cancel=True)
    assert error.value.errno == errno.ENOENT


def test_without_a_configuration_there_is_nothing_to_reload(client):
    with pytest.raises(IpvsError) as error:
        client.reload()
    assert error.value.errno == errno.ENOENT


S, R = "tcp:192.0.2.1:80", "192.0.2.9:80"


@pytest.mark.parametrize(
    ("command", "row"),
    [
        ("SET_HEALTH", None),
        ("SET_HEALTH", []),
        ("SET_HEALTH", {"service": 1, "server": R, "health": None}),
        ("SET_HEALTH", {"service": "tcp:192.0.2.1", "server": R, "health": None}),
        ("SET_HEALTH", {"service": "fwmark:0", "server": R, "health": None}),
        ("SET_HEALTH", {"service": S, "server": "192.0.2.9:65536", "health": None}),
        ("SET_HEALTH", {"service": S, "server": "[192.0.2.9]:80", "health": None}),
        ("SET_HEALTH", {"service": S, "server": R, "health": {}}),
        ("SET_HEALTH", {"service": S, "server": R, "health": {"up": 1}}),
        ("SET_HEALTH", {"service": S, "server": R, "health": {"up": True, "share": 2}}),
        ("SET_HEALTH", {"service": S, "server": R, "health": {"up": True, "weight": -1}}),
        ("SET_HEALTH", {"service": S, "server": R, "health": {"up": True, "about": []}}),
        ("SET_FALLBACK", {"service": S, "dest": {"family": 3}}),
        ("DRAIN", {"service": S, "server": R, "deadline": -1}),
        ("DRAIN", {"service": S, "server": R, "deadline": "soon"}),
        ("DRAIN", {"service": S, "server": None}),
    ],
)
def test_what_is_no_request(client, command, row):
    payload = b"" if row is None else extension.json_text(row)
    with pytest.raises(IpvsError) as error:
        client.request("UVS", extension.Cmd[command], payload)
    assert error.value.errno == errno.EINVAL
