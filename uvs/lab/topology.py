"""What a lab consists of: one description per forwarding method, as data, and its drawing.

    nat   client --A-- director --B-- rs1 rs2 rs3      the director is the servers' gateway
    dr    client, director, rs1 rs2 rs3 all on A       VIP on lo of the servers, silent in ARP
    tun   client, director, router on A; router --B-- rs1 rs2 rs3      replies go round the director

Networks are those of RFC 5737 and RFC 3849 (documentation); both families have the same last digits.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import zip_longest

MODES = ("nat", "dr", "tun")
FORWARDING = {"nat": "-m", "dr": "-g", "tun": "-i"}  # uvsadm's option for each
METHOD_NAMES = {"nat": "NAT", "dr": "direct routing", "tun": "tunnelling"}
TUN_TYPES = ("ipip", "gue", "gre")
GUE_PORT = 6080
HTTP_PORT = 80
ECHO_PORT = 7
MAX_SERVERS = 9

VIP = {4: "192.0.2.100", 6: "2001:db8:a::100"}
_NETS = {"A": ("192.0.2.", "2001:db8:a::"), "B": ("198.51.100.", "2001:db8:b::")}

# Sysctls of every host. New namespaces take IPv4's settings from the machine (devconf_inherit_init_net): all
# on which a lab depends are said here. No DAD: addresses are usable at once.
_EVERY_HOST = {
    "net/ipv4/ip_forward": "0",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
    "net/ipv4/conf/all/arp_ignore": "0",
    "net/ipv4/conf/all/arp_announce": "0",
    "net/ipv6/conf/all/disable_ipv6": "0",
    "net/ipv6/conf/default/disable_ipv6": "0",
    "net/ipv6/conf/all/forwarding": "0",
    "net/ipv6/conf/default/accept_dad": "0",
    "net/ipv6/conf/default/accept_ra": "0",
}
_FORWARDS = {"net/ipv4/ip_forward": "1", "net/ipv6/conf/all/forwarding": "1"}
# A reply to the director's own request comes from its own VIP: a martian for IPv4 unless accepted.
_LOCAL_SOURCE = {"net/ipv4/conf/all/accept_local": "1"}
# A real server must neither answer ARP for the VIP nor use it in its own ARP requests.
SILENT_VIP = {"net/ipv4/conf/all/arp_ignore": "1", "net/ipv4/conf/all/arp_announce": "2"}


@dataclass(frozen=True, slots=True)
class Interface:
    """An interface: the segment it is plugged into (none: `lo`), its addresses with prefix length."""

    name: str
    segment: str | None
    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the lab. `gateways`: default routes. `notes` are written beneath its name in the drawing."""

    name: str
    interfaces: tuple[Interface, ...]
    gateways: tuple[str, ...] = ()
    sysctls: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    decapsulates: bool = False

    def address(self, family: int, segment: str | None = None) -> str:
        """Its first address of family 4 or 6 (on `segment`), without the prefix length."""
        for interface in self.interfaces:
            if interface.segment and segment in (None, interface.segment):
                for address in interface.addresses:
                    if (":" in address) == (family == 6):
                        return address.partition("/")[0]
        raise LookupError(f"{self.name} has no IPv{family} address on {segment or 'any segment'}")

    @property
    def segments(self) -> tuple[str, ...]:
        """The segments it is plugged into."""
        return tuple(i.segment for i in self.interfaces if i.segment)


@dataclass(frozen=True, slots=True)
class Topology:
    """A lab: forwarding method, hosts, the way a request and its reply take, kind of tunnel (TUN_TYPES)."""

    mode: str
    hosts: tuple[Host, ...]
    path: str
    tun_type: str = TUN_TYPES[0]

    def __getitem__(self, name: str) -> Host:
        for host in self.hosts:
            if host.name == name:
                return host
        raise KeyError(name)

    @property
    def title(self) -> str:
        """Its mode, and the kind of tunnel if that is not the usual one: `tun by gue`."""
        return self.mode if self.tun_type == TUN_TYPES[0] else f"{self.mode} by {self.tun_type}"

    @property
    def forwarding(self) -> tuple[str, ...]:
        """uvsadm's options for its forwarding method."""
        options: tuple[str, ...] = (FORWARDING[self.mode],)
        if self.tun_type != TUN_TYPES[0]:
            options += ("--tun-type", self.tun_type)
        return (*options, "--tun-port", str(GUE_PORT)) if self.tun_type == "gue" else options

    @property
    def servers(self) -> tuple[Host, ...]:
        """The real servers, rs1 first."""
        return tuple(h for h in self.hosts if h.name.startswith("rs"))

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the Ethernet segments."""
        return tuple(sorted({s for h in self.hosts for s in h.segments}))

    def draw(self) -> str:
        """The lab in ASCII: hosts on segment A above it, hosts on both between, hosts behind B below."""
        return _draw(self)


def service(family: int, port: int = HTTP_PORT, address: str | None = None) -> str:
    """`address:port` as uvsadm takes it; the VIP unless another address is given."""
    host = address or VIP[family]
    return f"[{host}]:{port}" if family == 6 else f"{host}:{port}"


def url(family: int, path: str = "/") -> str:
    """The virtual service's URL."""
    return f"http://[{VIP[6]}]{path}" if family == 6 else f"http://{VIP[4]}{path}"


def topology(mode: str, servers: int = 3, tun_type: str = TUN_TYPES[0]) -> Topology:
    """The lab for `mode` (one of MODES) with that many real servers. ValueError if there is none such."""
    if mode not in MODES:
        raise ValueError(f"no forwarding method {mode!r}: one of {', '.join(MODES)}")
    if not 1 <= servers <= MAX_SERVERS:
        raise ValueError(f"{servers} real servers: from 1 to {MAX_SERVERS}")
    if tun_type not in TUN_TYPES or (mode != "tun" and tun_type != TUN_TYPES[0]):
        raise ValueError(f"no tunnel {tun_type!r} in mode {mode}: mode tun has {', '.join(TUN_TYPES)}")
    return replace({"nat": _nat, "dr": _dr, "tun": _tun}[mode](range(1, servers + 1)), tun_type=tun_type)


def _on(segment: str, last: int, name: str = "eth0", vip: bool = False) -> Interface:
    v4, v6 = _NETS[segment]
    own = (f"{v4}{last}/24", f"{v6}{last}/64")
    return Interface(name, segment, (*own, *_VIP_ADDRESSES) if vip else own)


def _gateway(segment: str, last: int) -> tuple[str, ...]:
    return tuple(f"{net}{last}" for net in _NETS[segment])


_VIP_ADDRESSES = (f"{VIP[4]}/32", f"{VIP[6]}/128")
_VIP_ON_LO = Interface("lo", None, _VIP_ADDRESSES)


def _nat(numbers: range) -> Topology:
    return Topology(
        "nat",
        (
            Host("client", (_on("A", 2),), _gateway("A", 1), _EVERY_HOST),
            Host(
                "director",
                (_on("A", 1, vip=True), _on("B", 1, "eth1")),
                sysctls=_EVERY_HOST | _FORWARDS,
                notes=("VIP on eth0",),
            ),
            *(
                Host(f"rs{i}", (_on("B", 10 + i),), _gateway("B", 1), _EVERY_HOST, ("gateway .1",))
                for i in numbers
            ),
        ),
        "request and reply both pass the director, which translates addresses",
    )


def _dr(numbers: range) -> Topology:
    return Topology(
        "dr",
        (
            Host("client", (_on("A", 2),), (), _EVERY_HOST),
            Host(
                "director",
                (_on("A", 1, vip=True),),
                sysctls=_EVERY_HOST | _LOCAL_SOURCE,
                notes=("VIP on eth0",),
            ),
            *(
                Host(
                    f"rs{i}",
                    (_VIP_ON_LO, _on("A", 10 + i)),
                    sysctls=_EVERY_HOST | SILENT_VIP,
                    notes=("VIP on lo",),
                )
                for i in numbers
            ),
        ),
        "the director changes only the MAC address; the reply goes straight to the client",
    )


def _tun(numbers: range) -> Topology:
    return Topology(
        "tun",
        (
            Host("client", (_on("A", 2),), _gateway("A", 254), _EVERY_HOST),
            Host(
                "director",
                (_on("A", 1, vip=True),),
                _gateway("A", 254),
                _EVERY_HOST | _LOCAL_SOURCE,
                ("VIP on eth0",),
            ),
            Host("router", (_on("A", 254), _on("B", 1, "eth1")), sysctls=_EVERY_HOST | _FORWARDS),
            *(
                Host(
                    f"rs{i}",
                    (_VIP_ON_LO, _on("B", 10 + i)),
                    _gateway("B", 1),
                    _EVERY_HOST,
                    ("VIP on lo",),
                    decapsulates=True,
                )
                for i in numbers
            ),
        ),
        "the director puts the request into a tunnel; the reply goes by the router, not by the director",
    )


# ---- drawing

_COLUMN = 20


def _draw(lab: Topology) -> str:
    between = [h for h in lab.hosts if h.segments == ("A", "B")]
    above = [h for h in lab.hosts if h.segments == ("A",)]
    below = [h for h in lab.hosts if h.segments == ("B",)]
    if not below:  # one segment: the client above, all others below it
        above, below = above[:1], above[1:]
    columns = max(len(above), len(below), 3)
    rows = [*_boxes(above), _stems(above), _wire("A", columns)]
    if between:
        rows += [_stems(between), *_boxes(between), _stems(between), _wire("B", columns)]
    rows += [_stems(below), *_boxes(below)]
    lines = [row.center(columns * _COLUMN).rstrip() for row in rows]
    return "\n".join([*lines, "", f"VIP {VIP[4]}  {VIP[6]}", lab.path])


def _boxes(hosts: list[Host]) -> list[str]:
    texts = [_text(h) for h in hosts]
    rows = zip_longest(*texts, fillvalue="")
    return ["".join(cell.center(_COLUMN) for cell in row) for row in rows]


def _text(host: Host) -> list[str]:
    first, *rest = ([host.address(family, segment) for family in (4, 6)] for segment in host.segments)
    if rest:  # between two segments: its addresses stand on the side where they belong
        return [*first, host.name, *host.notes, *rest[0]]
    return [host.name, *first, *host.notes]


def _stems(hosts: list[Host]) -> str:
    return "".join("|".center(_COLUMN) for _ in hosts)


def _wire(segment: str, columns: int) -> str:
    v4, v6 = _NETS[segment]
    return f" {segment}: {v4}0/24  {v6}/64 ".center(columns * _COLUMN, "=")
