"""Rules of a firewall as data, whoever wrote them, and what they do to a packet.

What a rule looks at and is not known of the packet makes it uncertain: an uncertain rule that drops is passed
over, one that accepts makes what comes after it uncertain.
"""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["", "accept", "drop", "taken", "return", "notrack", "jump", "goto"]
ENDS = ("drop", "taken")  # the packet does not go on
ORDER = ("prerouting", "input", "forward")


@dataclass(frozen=True, slots=True)
class Packet:
    """A packet as rules see it; None: not known. Devices: all by which it may come, or go."""

    family: int
    iif: frozenset[str] | None = None
    oif: frozenset[str] | None = None
    saddr: str | None = None
    daddr: str | None = None
    protocol: int | None = None
    sport: int | None = None
    dport: int | None = None
    state: str = "new"  # of its connection: new, established, invalid, untracked
    flags: frozenset[str] | None = None  # of TCP
    local: bool = False  # is the destination an address of this host?


Match = Callable[[Packet], bool | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: what it looks at, what it does, where it jumps to, and how its author wrote it."""

    matches: tuple[Match, ...]
    verdict: Verdict
    target: str = ""
    text: str = ""


@dataclass(slots=True)
class Chain:
    """A chain. `hook` and `priority`: of a base chain, "" of one that is jumped to. `family`: 0 = both."""

    back_end: str  # iptables, ip6tables, nft
    table: str
    name: str
    family: int = 0
    hook: str = ""
    priority: int = 0
    policy: Verdict = "accept"
    ours: bool = False
    rules: list[Rule] = field(default_factory=list)


Chains = dict[tuple[str, str, str], Chain]  # by back end, table and name


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a packet ended. `rule`: None if it was the chain's policy; `sure`: nothing unknown was before."""

    verdict: Verdict
    chain: Chain
    rule: Rule | None
    sure: bool

    @property
    def text(self) -> str:
        """For people."""
        where = f"{self.chain.back_end}, table {self.chain.table}, {self.chain.name}"
        return f"{where}: {self.rule.text if self.rule else f'policy {self.chain.policy.upper()}'}"


def bases(chains: Chains, hook: str, family: int) -> Iterator[Chain]:
    """Others' base chains of a hook, as the kernel goes through them."""
    found = [c for c in chains.values() if c.hook == hook and c.family in (0, family) and not c.ours]
    yield from sorted(found, key=lambda c: c.priority)


def ends(chains: Chains, hooks: tuple[str, ...], before: int, packet: Packet) -> Iterator[Outcome]:
    """Where the packet does not get through: one outcome for each base chain that ends its way.

    `before`: priority at the last hook from which on it is not asked.
    """
    state = packet.state
    for hook in hooks:
        for chain in bases(chains, hook, packet.family):
            if hook == hooks[-1] and chain.priority >= before:
                break
            path = _Path(chains, chain.back_end, chain.table, _with_state(packet, state))
            outcome = path.through(chain)
            if path.untracked:
                state = "untracked"
            if outcome and outcome.verdict in ENDS:
                yield outcome


def _with_state(packet: Packet, state: str) -> Packet:
    values = {name: getattr(packet, name) for name in Packet.__slots__}
    return Packet(**(values | {"state": state}))


class _Path:
    """A packet's path through the chains of one base chain."""

    DEPTH = 16  # of jumps, NF_TABLES_JUMP_STACK_SIZE

    def __init__(self, chains: Chains, back_end: str, table: str, packet: Packet) -> None:
        self._chains, self._where, self._packet = chains, (back_end, table), packet
        self._sure = True
        self._base: Chain | None = None
        self.untracked = False

    def through(self, base: Chain) -> Outcome:
        """The end of it."""
        self._base = base
        found = self._chain(base, 0)
        if found is None or found[0] == "return":
            return Outcome(base.policy, base, None, self._sure)
        return Outcome(found[0], base, found[1], self._sure)

    def _chain(self, chain: Chain, depth: int) -> tuple[Verdict, Rule] | None:
        if depth > self.DEPTH:
            return None
        for rule in chain.rules:
            hit = matches(rule, self._packet)
            if hit is False:
                continue
            if rule.verdict in ("jump", "goto"):
                target = self._chains.get((*self._where, rule.target))
                before = self._sure
                found = self._chain(target, depth + 1) if target and not target.ours else None
                if found and found[0] != "return":
                    if hit:
                        return found
                    self._sure = before and found[0] != "accept"
                elif hit and rule.verdict == "goto":
                    return None
            elif rule.verdict in ("accept", "return"):
                if hit:
                    return rule.verdict, rule
                self._sure = False
            elif rule.verdict == "notrack":
                self.untracked |= hit is True
            elif rule.verdict and hit:
                return rule.verdict, rule
        return None


def matches(rule: Rule, packet: Packet) -> bool | None:
    """Does the packet meet all that the rule looks at? None: that is not known."""
    answer: bool | None = True
    for match in rule.matches:
        one = match(packet)
        if one is False:
            return False
        if one is None:
            answer = None
    return answer


# ------------------------------------------------------------------------- what rules look at


def unknown(_: Packet) -> bool | None:
    """Something that the doctor does not know of packets."""
    return None


def never(_: Packet) -> bool | None:
    """Something that no service's packet is."""
    return False


def negated(match: Match) -> Match:
    """The contrary."""

    def contrary(packet: Packet) -> bool | None:
        answer = match(packet)
        return None if answer is None else not answer

    return contrary


def of_family(family: int) -> Match:
    """IPv4 or IPv6."""
    return lambda packet: packet.family == family


def device(which: str, names: list[str]) -> Match:
    """`iif` or `oif` is one of these names, which may end in a wildcard."""

    def match(packet: Packet) -> bool | None:
        possible: frozenset[str] | None = getattr(packet, which)
        if possible is None:
            return None
        hits = {any(fnmatch.fnmatchcase(d, n) for n in names) for d in possible}
        return hits.pop() if len(hits) == 1 else None

    return match


def address(which: str, networks: list[str]) -> Match:
    """`saddr` or `daddr` is in one of these: addresses, prefixes, ranges with `-`. ValueError: none such."""
    for network in networks:
        _within(ipaddress.IPv4Address(0), network)

    def match(packet: Packet) -> bool | None:
        text: str | None = getattr(packet, which)
        if text is None:
            return True if any(n in ("0.0.0.0/0", "::/0") for n in networks) else None
        one = ipaddress.ip_address(text)
        return any(_within(one, network) for network in networks)

    return match


def _within(one: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    low, dash, high = network.partition("-")
    if dash:
        first, last = ipaddress.ip_address(low), ipaddress.ip_address(high)
        return first.version == one.version and int(first) <= int(one) <= int(last)
    net = ipaddress.ip_network(network, strict=False)
    return net.version == one.version and one in net


def number(which: str, ranges: list[tuple[int, int]]) -> Match:
    """`sport`, `dport` or `protocol` is in one of these ranges."""

    def match(packet: Packet) -> bool | None:
        value: int | None = getattr(packet, which)
        return None if value is None else any(low <= value <= high for low, high in ranges)

    return match


def state(names: list[str]) -> Match:
    """The connection's state is one of these."""
    return lambda packet: packet.state in names


def tcp_flags(mask: frozenset[str], wanted: frozenset[str]) -> Match:
    """Of TCP's flags in the mask just the wanted ones are set."""
    return lambda packet: None if packet.flags is None else packet.flags & mask == wanted


def to_local(packet: Packet) -> bool | None:
    """The destination is an address of this host."""
    return packet.local
