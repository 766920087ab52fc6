"""The user's own rules: what they do to services' packets before the director's rules see them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from uvs.doctor import iptables_text, nft_json
from uvs.doctor.finding import HERE, Finding, Name, some
from uvs.doctor.host import Host
from uvs.doctor.knobs import devices, sysctl
from uvs.doctor.ruleset import Chains, Outcome, Packet, ends
from uvs.doctor.table import PROTOCOLS, Real, Virtual, addressed, reals, virtuals

MOST = 64  # services, and servers, whose packets are followed through the rules
MENDED = 16  # services, in one mending command
OUR_PRIORITY = 99  # of our hooks at INPUT and FORWARD by nft (uvs.netfilter.nft.PRIORITIES)
SYN, ACK = frozenset({"syn"}), frozenset({"ack"})


def rules(host: Host) -> Chains | None:
    """All rules of this host, by whatever tool; None if none is to be read (not root, no tool)."""
    told = False
    chains: Chains = {}
    if (listed := host.output("nft", "-j", "list", "tables")) is not None:
        told = True
        for family, name in nft_json.tables(listed):
            if family in nft_json.FAMILIES:
                terse = ("-t",) if (family, name) == nft_json.OURS else ()  # of thousands of services
                texts = nft_json.handles(host.output("nft", "-a", "-t", "list", "table", family, name))
                table = host.output("nft", "-j", *terse, "list", "table", family, name)
                chains |= nft_json.parse(table, texts)
    for program, version, legacy in (
        ("iptables", 4, "/proc/net/ip_tables_names"),
        ("ip6tables", 6, "/proc/net/ip6_tables_names"),
    ):
        # Asked by name, a legacy table comes into being: only where there are some.
        for tool in (f"{program}-save", *([f"{program}-legacy-save"] if host.read(legacy) else [])):
            if (text := host.output(tool)) is not None:
                told = True
                for where, chain in iptables_text.parse(text, version).items():
                    if chain.rules or where not in chains:
                        chains[where] = chain
    return chains if told else None


class _Way(NamedTuple):
    """A packet that has to get through, and what for."""

    what: str
    hooks: tuple[str, ...]
    packets: list[Packet]
    accept: dict[str, str]  # how to let it through, by back end: of addresses and ports


def check_firewall(host: Host) -> Iterator[Finding]:
    """A packet of each service, and a reply of each NAT server: do they reach the director's rules?"""
    if not virtuals(host):
        return
    chains = rules(host)
    if chains is None:
        yield Finding(Name.FIREWALL, "note", "rules cannot be read: ask as root", "sudo uvs doctor", HERE)
        return
    stopped: dict[tuple[str, str], tuple[Outcome, Packet, list[_Way]]] = {}
    for way in _ways(host):
        for packet in way.packets:
            for end in ends(chains, way.hooks, _ours(chains, way.hooks[-1], packet.family), packet):
                ways = stopped.setdefault((end.text, way.hooks[-1]), (end, packet, []))[2]
                if way not in ways:
                    ways.append(way)
    for end, packet, ways in stopped.values():
        does = "takes away" if end.verdict == "taken" else "drops"
        unless = "" if end.sure else ", unless a rule before it accepts"
        yield Finding(
            Name.FIREWALL,
            "fail" if end.sure else "warn",
            f"{end.text}: {does} {some([way.what for way in ways])}{_why(packet)}{unless}",
            "; ".join(dict.fromkeys(_mend(end, way) for way in ways[:MENDED])),
            HERE,
        )
    if not stopped:
        yield Finding(Name.FIREWALL, "ok", "no rule stands in front of services and NAT servers")


def _ours(chains: Chains, hook: str, family: int) -> int:
    """The priority from which on rules come after the director's: in its table of iptables it is the last."""
    name = f"UVS-{hook.upper()}"
    ours = [c.priority for c in chains.values() if c.ours and c.name == name and c.family == family]
    return ours[0] + 1 if ours else OUR_PRIORITY


def _why(packet: Packet) -> str:
    """What of the packet surprises the authors of rules."""
    if packet.flags == ACK and packet.state == "new":
        return " after the SYN (they are NEW: what is stolen at INPUT is never confirmed to conntrack)"
    known = {"untracked": " (UNTRACKED)", "invalid": " after the SYN (INVALID: nf_conntrack_tcp_loose is 0)"}
    return known.get(packet.state, "")


def _mend(end: Outcome, way: _Way) -> str:
    chain = end.chain
    nft, iptables = way.accept["nft"], way.accept["iptables"]
    if chain.hook == "forward":  # one rule for all servers: nothing else is untracked
        nft, iptables = "ct state untracked", "-m conntrack --ctstate UNTRACKED"
    if chain.back_end == "nft":
        return f"nft insert rule {chain.table} {chain.name} {nft} accept"
    return f"{chain.back_end} -t {chain.table} -I {chain.name} {iptables} -j ACCEPT"


def _ways(host: Host) -> Iterator[_Way]:
    loose = sysctl(host, "net.netfilter.nf_conntrack_tcp_loose") != 0
    for v in addressed(host)[:MOST]:
        yield _request(v, _outside(host, v), loose)
    for real in [r for r in reals(host) if r.method == "nat" and not r.local][:MOST]:
        if route := host.route(real.address):
            yield _reply(real, frozenset({route.device}), _outside(host, real.service))


def _outside(host: Host, v: Virtual) -> frozenset[str]:
    """Devices by which clients come: those that have the VIP, if it is not on lo alone; else any."""
    homes = {a.device for a in host.addresses() if a.address == v.address} - {"lo"}
    return frozenset(homes or devices(host))


def _request(v: Virtual, outside: frozenset[str], loose: bool) -> _Way:
    def packet(flags: frozenset[str] | None, state: str) -> Packet:
        port = v.port or None
        return Packet(
            v.family, outside, None, None, v.address, v.protocol, None, port, state, flags, local=True
        )

    if v.protocol == 6:
        # Without nf_conntrack_tcp_loose a connection that is met in its midst is invalid.
        packets = [packet(SYN, "new"), packet(ACK, "new" if loose else "invalid")]
    else:
        packets = [packet(None, "new")]
    accept = _accept(v.family, v.protocol, "d", v.address, v.port)
    return _Way(f"requests to {v.name}", ("prerouting", "input"), packets, accept)


def _reply(real: Real, device: frozenset[str], outside: frozenset[str]) -> _Way:
    service = real.service
    protocol = service.protocol or None
    packet = Packet(
        real.family, device, outside, real.address, None, protocol, real.port or None, None, "untracked",
        frozenset({"syn", "ack"}) if protocol == 6 else None,
    )  # fmt: skip
    accept = _accept(real.family, service.protocol, "s", real.address, real.port)
    return _Way(f"replies of {real.name}", ("prerouting", "forward"), [packet], accept)


def _accept(family: int, protocol: int, end: str, address: str, port: int) -> dict[str, str]:
    """The match of a rule that lets it through. `end`: d or s, destination or source."""
    ip = "ip" if family == 4 else "ip6"
    name = PROTOCOLS.get(protocol, "").lower()
    by_port = bool(name and port)
    return {
        "nft": f"{ip} {end}addr {address}" + (f" {name} {end}port {port}" if by_port else ""),
        "iptables": f"-{end} {address}" + (f" -p {name} --{end}port {port}" if by_port else ""),
    }


def check_marks(host: Host) -> Iterator[Finding]:
    """Services by mark: does any rule set that mark?"""
    marks = sorted({v.mark for v in virtuals(host) if v.mark})
    if not marks:
        return
    listed = host.output("nft", "-j", "-t", "list", "ruleset")
    saves = [host.output(f"{program}-save") for program in ("iptables", "ip6tables")]
    if listed is None and saves == [None, None]:
        return
    set_by_rules = nft_json.marks(listed).union(*(iptables_text.marks(text or "") for text in saves))
    for mark in marks:
        if mark not in set_by_rules:
            detail = f"no rule was found that sets mark {mark}: the service FWM {mark} gets nothing"
            rule = f"iptables -t mangle -A PREROUTING -d VIP -p tcp --dport PORT -j MARK --set-mark {mark}"
            yield Finding(Name.FWMARK, "warn", detail, f"such as: {rule}")
        else:
            yield Finding(Name.FWMARK, "ok", f"a rule sets mark {mark}")
