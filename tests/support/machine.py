"""A machine for the doctor in which all is well, until a test plants a fault."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from dataclasses import dataclass, field

from uvs.control.extension import ConnEntry
from uvs.control.messages import NO_STATS, DestEntry, ServiceEntry, Stats
from uvs.doctor.examination import examine
from uvs.doctor.finding import Finding
from uvs.doctor.host import Address, Asked, Attempt, Director, Knock, Route
from uvs.ipvs.spec import DestSpec, ServiceKey, ServiceSpec

ROOT = "Name:\tuvs\nCapEff:\t000001ffffffffff\n"
NOBODY = "Name:\tuvs\nCapEff:\t0000000000000000\n"
YES = (True, "")
VIP, VIP6 = "192.0.2.100", "2001:db8:a::100"

GOOD_FILES = {
    "/proc/self/status": ROOT,
    "/proc/sys/net/ipv4/ip_forward": "1",
    "/proc/sys/net/ipv6/conf/all/forwarding": "1",
    "/proc/sys/net/ipv4/conf/all/rp_filter": "0",
    "/proc/sys/net/ipv4/conf/eth0/rp_filter": "2",
    "/proc/sys/net/ipv4/conf/eth1.7/rp_filter": "0",
    "/proc/sys/net/ipv4/conf/all/accept_local": "1",
    "/proc/sys/net/ipv4/conf/all/send_redirects": "1",
    "/proc/sys/net/netfilter/nf_conntrack_count": "10",
    "/proc/sys/net/netfilter/nf_conntrack_max": "1000",
    "/proc/sys/net/netfilter/nf_conntrack_tcp_loose": "1",
    "/proc/sys/user/max_user_namespaces": "15000",
    "/sys/devices/system/clocksource/clocksource0/current_clocksource": "tsc",
    "/sys/class/net/eth0/device/vendor": "0x1af4",
}
ADDRESSES = [
    Address("lo", "127.0.0.1", 8),
    Address("eth0", "192.0.2.1", 24),
    Address("eth0", VIP, 32),
    Address("eth0", "2001:db8:a::1", 64),
    Address("eth0", VIP6, 128),
    Address("eth1.7", "198.51.100.1", 24),
    Address("eth1.7", "2001:db8:b::1", 64),
]
QUEUE: dict[str, int | str | None] = {
    "queue": 1, "class": "tcp", "packets": 90, "fast": 80, "slow": 10, "lost": 0, "cut": 0, "refused": 0,
    "unsaid": 0, "errors": 0, "dropped": 0, "waiting": 3,
}  # fmt: skip
TABLE = {"conns": 5, "templates": 1, "dests": 2, "services": 1, "conn_max": 1024, "full": 0}
FORWARD = {"nat": 0, "tun": 2, "dr": 3}
# What the tools of a firewall say while the director's own rules are there, and no others.
OUTPUTS: dict[tuple[str, ...], str] = {
    ("iptables-save",): """\
*raw
:PREROUTING ACCEPT [0:0]
:UVS-PREROUTING - [0:0]
-A PREROUTING -j UVS-PREROUTING
-A UVS-PREROUTING -m set --match-set uvs4-servers src,src -j CT --notrack
COMMIT
*security
:INPUT ACCEPT [0:0]
:UVS-INPUT - [0:0]
-A INPUT -j UVS-INPUT
-A UVS-INPUT -m mark --mark 0x7 -j UVS-REQUEST
COMMIT
""",
    ("ip6tables-save",): "",
    ("nft", "-j", "list", "tables"): '{"nftables": []}',
    ("nft", "-j", "-t", "list", "ruleset"): '{"nftables": []}',
}


def packed(address: str) -> tuple[int, bytes]:
    """Family and bytes of an address."""
    af = socket.AF_INET6 if ":" in address else socket.AF_INET
    return int(af), socket.inet_pton(af, address)


def real(
    method: str, address: str, port: int = 80, weight: int = 1, *, tun_type: int = 0, threshold: int = 0,
    conns: int = 0, packets: tuple[int, int] = (0, 0),
) -> DestEntry:  # fmt: skip
    """A server; `conns` of it active, `packets` that went there and came back."""
    spec = DestSpec(*packed(address), port, FORWARD[method], weight, threshold, tun_type=tun_type)
    return DestEntry(spec, conns, 0, 0, Stats(inpkts=packets[0], outpkts=packets[1]))


def service(
    address: str = VIP, port: int = 80, *servers: DestEntry, protocol: int = 6, mark: int = 0
) -> tuple[ServiceEntry, list[DestEntry]]:
    """A service with its servers; `mark` instead of the address."""
    key = ServiceKey(*((packed(address)[0], 0, b"", 0, mark) if mark else (*_key(protocol, address), port)))
    return ServiceEntry(ServiceSpec(key), NO_STATS), list(servers)


def _key(protocol: int, address: str) -> tuple[int, int, bytes]:
    af, addr = packed(address)
    return af, protocol, addr


def conn(client: str, server: str, state: str = "SYN_RECV", vip: str = VIP) -> ConnEntry:
    """A TCP connection to port 80."""
    af, caddr = packed(client)
    daf, daddr = packed(server)
    return ConnEntry(af, daf, 6, 1024, 80, 80, 0, 60_000, 0, state, caddr, packed(vip)[1], daddr)


@dataclass
class Machine:
    """Two devices, eth0 outside with the VIPs and eth1.7 inside; a director that answers."""

    files: dict[str, str] = field(default_factory=lambda: dict(GOOD_FILES))
    queue: Attempt = YES
    back_ends: list[tuple[str, bool, str]] = field(default_factory=lambda: [("nft", True, "")])
    packet: Attempt = YES
    userns: Attempt = YES
    modules: frozenset[str] = frozenset({"ipip", "ip6_tunnel", "nfnetlink_queue", "af_packet"})
    tun: bool = True
    in_step: bool | None = True
    variables: dict[str, str] = field(default_factory=dict)
    outputs: dict[tuple[str, ...], str] = field(default_factory=lambda: dict(OUTPUTS))
    told: Director | str = field(default_factory=lambda: Director([QUEUE], TABLE))
    processes: list[tuple[int, str]] = field(default_factory=lambda: [(100, "uvs run")])
    own: list[Address] = field(default_factory=lambda: list(ADDRESSES))
    routes: dict[str, Route | None] = field(default_factory=dict)
    merging: frozenset[str] = frozenset({"gro"})
    answers: dict[Asked, list[str]] | None = field(default_factory=dict)
    unanswered: dict[str, str] | None = field(default_factory=dict)  # by server's address

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> list[str]:
        if path == "/dev/net":
            return ["tun"] if self.tun else []
        return sorted({p[len(path) + 1 :].split("/")[0] for p in self.files if p.startswith(path + "/")})

    def environment(self, name: str) -> str:
        return self.variables.get(name, "")

    def output(self, *argv: str) -> str | None:
        return self.outputs.get(argv)

    def bind_queue(self) -> Attempt:
        return self.queue

    def rule_back_ends(self) -> list[tuple[str, bool, str]]:
        return self.back_ends

    def packet_socket(self) -> Attempt:
        return self.packet

    def user_namespace(self) -> Attempt:
        return self.userns

    def has_module(self, name: str) -> bool:
        return name in self.modules

    def synchronized(self) -> bool | None:
        return self.in_step

    def director(self) -> Director | str:
        return self.told

    def directors(self) -> list[tuple[int, str]]:
        return self.processes

    def addresses(self) -> list[Address]:
        return self.own

    def route(self, address: str) -> Route | None:
        if address in self.routes:
            return self.routes[address]
        if any(a.address == address for a in self.own) or address.startswith("127."):
            return Route(True, "lo", None, 65536, "127.0.0.1")
        inside = address.startswith(("198.51.100.", "2001:db8:b:"))
        four = ":" not in address
        source = (
            ("198.51.100.1" if four else "2001:db8:b::1")
            if inside
            else "192.0.2.1"
            if four
            else "2001:db8:a::1"
        )
        return Route(False, "eth1.7" if inside else "eth0", None, 1500, source)

    def offloads(self, device: str) -> frozenset[str]:
        return self.merging

    def who_has(self, asked: Iterable[Asked]) -> dict[Asked, list[str]] | None:
        """Everybody who is not a VIP of ours answers, by a MAC address made of its own."""
        if self.answers is None:
            return None
        mine = {a.address for a in self.own}
        usual = {one: [] if one.address in mine else [mac_of(one.address)] for one in asked}
        return usual | {one: macs for one, macs in self.answers.items() if one in usual}

    def knock(self, knocks: Iterable[Knock]) -> dict[Knock, str]:
        if self.unanswered is None:
            return {}
        texts = {
            k: socket.inet_ntop(socket.AF_INET if len(k.server) == 4 else socket.AF_INET6, k.server)
            for k in knocks
        }
        return {k: self.unanswered.get(text, "") for k, text in texts.items()}


def mac_of(address: str) -> str:
    """The MAC address with which a server answers."""
    return "02:00:" + socket.inet_aton(address).hex(":")


def with_files(**changes: str) -> Machine:
    """A good machine with other sysctls (dots as __)."""
    paths = {"/proc/sys/" + k.replace("__", "/"): v for k, v in changes.items()}
    return Machine(files=GOOD_FILES | paths)


def directing(*services: tuple[ServiceEntry, list[DestEntry]], **more: object) -> Machine:
    """A good machine whose director has these services; further fields of Machine, or `conns`, `reasons`, `layers`."""
    about = {name: more.pop(name) for name in ("conns", "reasons", "layers") if name in more}
    return Machine(told=Director([QUEUE], TABLE, services=list(services), **about), **more)  # type: ignore[arg-type]


# What is wrong, the machine, the finding's name, its state, words of its detail, words of what mends it (None: nothing)
Fault = tuple[str, Machine, str, str, str, str | None]


def of(machine: Machine, name: str) -> list[Finding]:
    """The findings of a name."""
    return [f for f in examine(machine) if f.name == name]


def check(machine: Machine, name: str, state: str, detail: str, mend: str | None) -> None:
    """There is exactly one such finding, and it says so."""
    findings = of(machine, name)
    assert len(findings) == 1, findings
    (finding,) = findings
    assert finding.state == state, finding
    assert detail in finding.detail
    assert finding.mend is None if mend is None else mend in (finding.mend or "")
    assert finding.on is None or finding.mend
