"""A configuration that is wrong: every fault at once, each with line and key, and what is allowed."""

from __future__ import annotations

import os

import pytest

from uvs.config.load import SIZE_MAX, ConfigError, load, parse
from uvs.config.specs import dest_spec, service_spec, wanted
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

WHOLE = b"""\
[director]
interface = "eth0"
vips = ["192.0.2.100", "2001:db8::100"]

[sysctl]
expire_nodest_conn = 1
sync_threshold = "4 60"

[timeouts]
tcp = 3600

[[service]]
address = "192.0.2.100:80"
scheduler = "mh"
flags = ["mh-port"]
persistent = 300
netmask = 24
quorum = 2
hysteresis = 1
fallback = "127.0.0.1:80"

[[service.check]]
type = "tcp"

[[service.server]]
address = "198.51.100.11"
weight = 3

[[service.server]]
address = "[2001:db8:1::11]:80"
method = "tun"
tunnel = { type = "gue", port = 5555, checksum = "full" }
u_threshold = 20
l_threshold = 10
check = [{ type = "http", path = "/up", interval = 2 }]

[[service]]
fwmark = 7
family = "ipv6"
method = "dr"
one_packet = true

[[service.server]]
address = "2001:db8:1::12"
"""


def faults(text: str | bytes) -> list[str]:
    with pytest.raises(ConfigError) as error:
        parse(text.encode() if isinstance(text, str) else text, "uvs.toml")
    return str(error.value).splitlines()


def test_what_a_configuration_asks_for():
    config = parse(WHOLE, "uvs.toml")
    first, second = config.service
    key = ServiceKey(2, 6, bytes([192, 0, 2, 100]), 80)
    assert service_spec(first) == ServiceSpec(key, "mh", 0x11, 300, 0xFFFFFF00, "")
    assert [dest_spec(first, server) for server in first.server] == [
        DestSpec(2, bytes([198, 51, 100, 11]), 80, 0, 3),
        DestSpec(10, bytes.fromhex("20010db8000100000000000000000011"), 80, 2, 1, 20, 10, 1, 5555, 1),
    ]
    assert service_spec(second) == ServiceSpec(ServiceKey(10, 6, bytes(16), 0, 7), "wlc", 4, 0, 128, "")
    assert dest_spec(second, second.server[0]).port == 0
    found = wanted(config)
    assert found.sysctls == {"expire_nodest_conn": "1", "sync_threshold": "4\t60"}
    assert found.timeouts == (3600, 120, 300)
    assert len(found.checked) == 2
    assert found.fallbacks == {key.lookup: DestSpec(2, bytes([127, 0, 0, 1]), 80)}


def test_nothing_is_a_configuration():
    assert parse(b"", "uvs.toml").service == []


SERVICE = '[[service]]\naddress = "192.0.2.1:80"\n'  # lines 1 and 2
SERVER = SERVICE + '[[service.server]]\naddress = "198.51.100.1:80"\n'  # lines 3 and 4


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = [", ["uvs.toml:1: no TOML: invalid value"]),
        ("\nx = 1\nx = 2", ["uvs.toml:3: no TOML: cannot overwrite a value"]),
        (b"# \xff", ["uvs.toml:1: it is no UTF-8 text"]),
        ("[servce]", ["uvs.toml:1: servce: no such key; did you mean service?"]),
        (
            "[[service]]\n",
            ['uvs.toml:1: service[0]: it has neither an address ("192.0.2.100:80") nor a fwmark (1)'],
        ),
        (SERVICE + "fwmark = 1", ["uvs.toml:3: service[0].fwmark: a service has an address or a fwmark, not both"]),
        (SERVICE + 'family = "ipv4"', ["uvs.toml:3: service[0].family: only a fwmark service has it: the address tells it"]),
        (
            '[[service]]\nfwmark = 0\nprotocol = "icmp"',
            [
                "uvs.toml:2: service[0].fwmark: 0: must be greater than or equal to 1",
                "uvs.toml:3: service[0].protocol: 'icmp': must be 'tcp', 'udp' or 'sctp'",
            ],
        ),
        (
            '[[service]]\naddress = "192.0.2.1"',
            ["uvs.toml:2: service[0].address: it has no port; a service of every port must be persistent (persistent = 300)"],
        ),
        (
            '[[service]]\naddress = "www:80"',
            ["uvs.toml:2: service[0].address: 'www:80' is no address: 192.0.2.1:80, [2001:db8::1]:80, with or without the port"],
        ),
        ('[[service]]\naddress = "192.0.2.1:65536"', ["uvs.toml:2: service[0].address: '192.0.2.1:65536' has no port: they are 0..65535"]),
        (SERVICE + "weight = 1", ["uvs.toml:3: service[0].weight: no such key; known here: address, check, engine"]),
        (SERVICE + 'scheduler = "wllc"', ["uvs.toml:3: service[0].scheduler: no scheduler 'wllc'; did you mean wlc?"]),
        (SERVICE + 'flags = ["sh-port"]', ["uvs.toml:3: service[0].flags[0]: sh-port is a flag of the scheduler sh only"]),
        (SERVICE + "netmask = 24", ["uvs.toml:3: service[0].netmask: only a persistent service has it (persistent = 300)"]),
        (SERVICE + "persistent = 9\nnetmask = 64", ["uvs.toml:4: service[0].netmask: 64: an IPv4 service takes a prefix length of 1..32"]),
        (SERVICE + "persistent = 9\nnetmask = true", ["uvs.toml:4: service[0].netmask: True: must be a valid integer or a valid string"]),
        (SERVICE + 'persistent = 9\nengine = "sap"', ["uvs.toml:4: service[0].engine: no persistence engine 'sap'"]),
        (SERVICE + "one_packet = true", ["uvs.toml:3: service[0].one_packet: only services of UDP or of a fwmark can have it"]),
        (SERVICE + "hysteresis = 1", ["uvs.toml:3: service[0].hysteresis: 1: it must be below quorum (1), or that is never lost"]),
        (SERVICE + SERVICE, ["uvs.toml:3: service[1]: the same service as service[0]"]),
        (SERVER + 'weight = "1"', ["uvs.toml:5: service[0].server[0].weight: '1': must be a valid integer"]),
        (SERVER + "weight = -1", ["uvs.toml:5: service[0].server[0].weight: -1: must be greater than or equal to 0"]),
        (SERVER + "l_threshold = 4", ["uvs.toml:5: service[0].server[0].l_threshold: 4: it may be u_threshold (0) at most"]),
        (
            SERVER + 'method = "tun"\ntunnel = { type = "gue" }',
            ["uvs.toml:6: service[0].server[0].tunnel: a gue tunnel needs a port"],
        ),
        (
            SERVER + 'tunnel = { type = "gre", port = 1, checksum = "remote" }',
            [
                "uvs.toml:5: service[0].server[0].tunnel.port: a gre tunnel has none",
                "uvs.toml:5: service[0].server[0].tunnel.checksum: 'remote': a gre tunnel has no such",
                "uvs.toml:5: service[0].server[0].tunnel: only a server by tun has it, not one by nat",
            ],
        ),
        (
            SERVICE + '[[service.server]]\naddress = "[2001:db8::1]:80"',
            ["uvs.toml:4: service[0].server[0].address: another address family only by tunnelling"],
        ),
        (
            SERVICE + 'method = "dr"\n[[service.server]]\naddress = "198.51.100.1:81"',
            ["uvs.toml:5: service[0].server[0].address: port 81: dr leaves the port as it is, the service's 80"],
        ),
        (
            SERVICE + '[[service.server]]\naddress = "224.0.0.1:80"',
            ["uvs.toml:4: service[0].server[0].address: 224.0.0.1 is no unicast address"],
        ),
        (
            SERVER + '[[service.server]]\naddress = "198.51.100.1"',
            ["uvs.toml:6: service[0].server[1].address: the same server as service[0].server[0]"],
        ),
        (
            SERVICE + 'fallback = "198.51.100.1:80"\n[[service.server]]\naddress = "198.51.100.1"',
            ["uvs.toml:3: service[0].fallback: it is a server of the service, service[0].server[0]"],
        ),
        (SERVICE + "[[service.server]]\nweight = 1", ["uvs.toml:3: service[0].server[0].address: it is missing"]),
        (
            SERVICE + '[[service.check]]\ntype = "htp"',
            ["uvs.toml:4: service[0].check[0].type: 'htp': must be one of command, dns, forward"],
        ),
        (SERVICE + "check = [{}]", ["uvs.toml:3: service[0].check[0].type: it is missing: must be one of command, dns"]),
        (
            SERVICE + '[[service.check]]\ntype = "command"\ncommand = 3\nintervall = 1',
            [
                "uvs.toml:5: service[0].check[0].command: 3: must be a valid string or a valid list",
                "uvs.toml:6: service[0].check[0].intervall: no such key; did you mean interval?",
            ],
        ),
        (
            '[[service]]\nfwmark = 1\n[[service.check]]\ntype = "tcp"\n[[service.server]]\naddress = "198.51.100.1"',
            ["uvs.toml:3: service[0].check[0]: which port? The server has none of its own (port = 80)"],
        ),
        (
            "[sysctl]\nexpire = 1\ndrop_entry = 4\nconntrack = \"1\"",
            [
                "uvs.toml:2: sysctl.expire: there is no such sysctl of IPVS",
                "uvs.toml:3: sysctl.drop_entry: 4: it takes 0..3",
                "uvs.toml:4: sysctl.conntrack: '1': it takes any integer",
            ],
        ),
        ("[timeouts]\ntcp = 0", ["uvs.toml:2: timeouts.tcp: 0: must be greater than or equal to 1"]),
        (
            '[director]\ninterface = "a/b"\nvips = [\n "192.0.2.1",\n "x",\n "192.0.2.1",\n]',
            [
                "uvs.toml:2: director.interface: 'a/b' is no name of a network interface",
                "uvs.toml:5: director.vips[1]: 'x' is not an IP address",
            ],
        ),
        ('[director]\nvips = ["::1", "::1"]', ["uvs.toml:2: director.vips[1]: ::1 is there twice"]),
        ("service = 3", ["uvs.toml:1: service: 3: must be a valid list"]),
        ("service = [3]", ["uvs.toml:1: service[0]: 3: must be a valid dictionary or instance of Service"]),
    ],
)  # fmt: skip
def test_what_is_wrong_where_and_what_is_allowed(text, told):
    found = faults(text)
    assert [line[: len(start)] for line, start in zip(found, told, strict=True)] == told


def test_faults_of_all_kinds_are_told_at_once():
    text = (
        SERVICE
        + "quorum = 0\n"
        + '[[service.server]]\naddress = "1.2.3.4:80"\nl_threshold = 3\nweight = -1\n'
    )
    text += SERVICE + 'scheduler = "x"\n'
    assert [line.split(":")[1] for line in faults(text)] == ["3", "6", "7", "8", "10"]


def test_a_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError) as error:
        load(str(tmp_path / "none.toml"))
    assert str(error.value) == f"{tmp_path}/none.toml: it cannot be read: No such file or directory"


def test_what_is_no_file_is_not_waited_for(tmp_path):
    """A named pipe would hold this reload, and all later ones; /dev/zero would take the memory."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/zero"):
        with pytest.raises(ConfigError, match=r"it is no regular file|it cannot be read: Is a directory"):
            load(str(path))
    with open(tmp_path / "large", "wb") as file:
        file.truncate(SIZE_MAX + 1)
    with pytest.raises(ConfigError, match="it is larger than 64 MiB"):
        load(str(tmp_path / "large"))
