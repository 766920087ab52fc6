"""Diversion by nftables: one table, `inet uvs`, whose chains have the priorities of ip_vs itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable

from uvs.netfilter import nfnetlink
from uvs.netfilter.plan import (
    AF_INET,
    AF_INET6,
    ICMP_ERRORS,
    ICMPV6_INFORMATIONAL,
    PROTOCOLS,
    Class,
    Entry,
    Plan,
    Set,
    by_set,
)
from uvs.netfilter.tool import ToolError, run, which

TABLE = "uvs"
# Every fragment, the first ones too: a datagram of which only some reach us would be lost.
FRAGMENT = {AF_INET: "ip frag-off & 0x3fff != 0", AF_INET6: "exthdr frag exists"}
# net/netfilter/ipvs/ip_vs_core.c, ip_vs_ops4: our one chain holds both directions of a hook.
PRIORITIES = {"input": 99, "forward": 99, "output": -99}
TCP = "meta l4proto tcp "
SYN = "tcp flags & (fin | syn | rst | ack) == syn "
FAMILIES = (AF_INET, AF_INET6)
ADDRESSES = (Set.VIPS, Set.REALS, Set.HOSTS)  # sets of addresses alone


def set_name(which_set: Set, af: int) -> str:
    """Name of one of our sets."""
    return f"{which_set.value}{4 if af == AF_INET else 6}"


def set_type(which_set: Set, af: int) -> str:
    """The type of its members."""
    address = "ipv4_addr" if af == AF_INET else "ipv6_addr"
    if which_set is Set.MARKS:
        return "mark"
    return address if which_set in ADDRESSES else f"{address} . inet_proto . inet_service"


def member(entry: Entry) -> str:
    """A set member as nft writes it."""
    if entry.set is Set.MARKS:
        return f"{entry.mark:#x}"
    if entry.set in ADDRESSES:
        return entry.text
    return f"{entry.text} . {PROTOCOLS[entry.protocol]} . {entry.port}"


def set_changes(table: str, added: Iterable[Entry], removed: Iterable[Entry]) -> str:
    """Commands that change members of our sets."""
    lines = []
    for verb, entries in (("delete", removed), ("add", added)):
        for (which_set, af), group in by_set(entries).items():
            members = ", ".join(member(entry) for entry in group)
            lines.append(f"{verb} element inet {table} {set_name(which_set, af)} {{ {members} }}\n")
    return "".join(lines)


def queue(queues: range) -> str:
    """The statement that queues a packet; several queues share them by their addresses."""
    return f"queue num {queues[0]}" if len(queues) == 1 else f"queue num {queues[0]}-{queues[-1]}"


def queue_numbers(listing: str) -> set[int]:
    """Queues named by the rules that `nft list` shows; how it writes the statement depends on its version."""
    found = re.findall(r"\bqueue (?:num|to|flags \S+ to) (\d+)(?:-(\d+))?", listing)
    return {number for first, last in found for number in range(int(first), int(last or first) + 1)}


def icmp_errors(table: str, plan: Plan) -> str:
    """Commands that fill the chain for ICMP errors anew: a family without services has no rule."""
    target = queue(plan.queues[Class.OTHER])
    lines = [f"flush chain inet {table} icmp_errors\n"]
    if plan.has_service(AF_INET):
        types = ", ".join(str(number) for number in ICMP_ERRORS)
        lines.append(f"add rule inet {table} icmp_errors icmp type {{ {types} }} {target}\n")
    if plan.has_service(AF_INET6):
        lines.append(f"add rule inet {table} icmp_errors icmpv6 type < {ICMPV6_INFORMATIONAL} {target}\n")
    return "".join(lines)


def ruleset(
    table: str, plan: Plan, parts: Collection[str] = ("notrack", "defrag"), hooked: bool = True
) -> str:
    """The whole table as one batch; it replaces an older one in the same transaction.

    No bypass: without a director the packets are dropped. `hooked`: False makes chains without a hook, to
    ask a kernel what it knows without touching traffic.
    """
    requests: list[str] = []
    replies: list[str] = []
    untracked, to, of = [], [], []
    for af, ip, icmp in ((AF_INET, "ip", "icmp"), (AF_INET6, "ip6", "ipv6-icmp")):
        other = f"meta l4proto != {icmp}"
        family = f"meta nfproto {'ipv4' if af == AF_INET else 'ipv6'}"
        names = {each: f"@{set_name(each, af)}" for each in Set}
        requests += [
            f"{ip} daddr . meta l4proto . th dport {names[Set.SERVICES]} jump request",
            f"{ip} daddr {names[Set.VIPS]} {other} jump request",
            f"{family} meta mark {names[Set.MARKS]} {other} jump request",
        ]
        replies += [
            f"{ip} saddr . meta l4proto . th sport {names[Set.SERVERS]} jump reply",
            f"{ip} saddr {names[Set.REALS]} {other} jump reply",
            f"{ip} saddr . meta l4proto . th sport {names[Set.SERVICES]} jump reply",
            f"{ip} saddr {names[Set.VIPS]} {other} jump reply",
            f"{ip} saddr . meta l4proto . th sport {names[Set.ANSWERS]} jump reply",
        ]
        if "fragments" in parts:
            target = queue(plan.queues[Class.OTHER])
            of.append(f"{FRAGMENT[af]} {ip} saddr {names[Set.HOSTS]} {target}")
            to.append(f"{FRAGMENT[af]} {ip} daddr {names[Set.HOSTS]} {target}")
        untracked += [
            f"{ip} saddr . meta l4proto . th sport {names[Set.SERVERS]} notrack",
            f"{ip} daddr . meta l4proto . th dport {names[Set.SERVERS]} notrack",
            f"{ip} saddr {names[Set.REALS]} notrack",
            f"{ip} daddr {names[Set.REALS]} notrack",
        ]
    ours = [f"meta mark & {plan.mask:#x} == {plan.mark:#x} return"] if plan.mask else []
    # A tproxy statement switches defragmentation on while it exists (net/netfilter/nft_tproxy.c,
    # nft_tproxy_init()); no packet has these destinations at PREROUTING.
    defragmented = [
        "ip daddr 255.255.255.255 meta l4proto udp tproxy ip to :1",
        "ip6 daddr ff02::dead meta l4proto udp tproxy ip6 to :1",
    ]
    chains: dict[str, tuple[str, list[str]]] = {
        "icmp_errors": ("", []),
        "request": ("", [f"{match}{queue(queues)}" for match, queues in plan.requests(SYN, TCP)]),
        "reply": ("", [f"{match}{queue(queues)}" for match, queues in plan.replies(TCP)]),
        "input": (
            f"type filter hook input priority {PRIORITIES['input']};",
            [*ours, *of, *to, *requests, *replies, "jump icmp_errors"],
        ),
        "forward": (
            f"type filter hook forward priority {PRIORITIES['forward']};",
            [*of, *replies, "jump icmp_errors"],
        ),
        "output": (
            f"type filter hook output priority {PRIORITIES['output']};",
            [*ours, *of, *to, *replies, *requests, "jump icmp_errors"],
        ),
    }
    if "notrack" in parts:
        chains["raw_prerouting"] = ("type filter hook prerouting priority -300;", untracked)
        chains["raw_output"] = ("type filter hook output priority -300;", untracked)
    if "defrag" in parts:
        chains["defrag"] = ("type filter hook prerouting priority -300;", defragmented)
    # Adding before deleting: a delete alone fails where there is no table.
    lines = [f"add table inet {table}", f"delete table inet {table}", f"table inet {table} {{"]
    for af in FAMILIES:
        lines += [f"set {set_name(each, af)} {{ type {set_type(each, af)}; }}" for each in Set]
    for chain, (hook, rules) in chains.items():
        lines += [f"chain {chain} {{", *([hook] if hooked else []), *rules, "}"]
    return "\n".join([*lines, "}", ""]) + icmp_errors(table, plan) + set_changes(table, plan.entries, ())


class Nft:
    """The back end."""

    name = kind = "nft"

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self._parts: list[str] | None = None
        self._shape: object = None
        self._expected = ""
        self._plan: Plan | None = None
        self._generation: int | None = None

    @property
    def program(self) -> str:
        return os.path.realpath(which("nft") or "nft")

    def leftovers(self) -> set[int] | None:
        if which("nft") is None:
            return None
        try:
            listing = self._list()
        except ToolError:
            return None
        return queue_numbers(listing)

    def install(self, plan: Plan) -> None:
        if self._parts is None:
            self._find_parts(plan)
        else:
            run("nft", "-f", "-", batch=ruleset(TABLE, plan, self._parts))
        self._shape = self._shape_of(plan)
        self._plan = plan
        self._note()

    def change(self, plan: Plan, added: Collection[Entry], removed: Collection[Entry]) -> None:
        before = nfnetlink.ruleset_generation()
        batch = set_changes(TABLE, added, removed)
        reshaped = self._shape != self._shape_of(plan)
        if reshaped:
            batch += icmp_errors(TABLE, plan)
        if not batch:
            return
        run("nft", "-f", "-", batch=batch)
        self._shape = self._shape_of(plan)
        if before is None or before != self._generation:
            self._generation = None
        elif reshaped:
            self._note()
        else:
            self._generation = before + 1  # ours; had another change come between, check() looks again

    def intact(self) -> bool:
        generation = nfnetlink.ruleset_generation()
        if generation is not None and generation == self._generation:
            return True
        try:
            if self._list() != self._expected or self._members() != self._wanted():
                return False
        except ToolError:
            return False
        self._generation = generation
        return True

    def remove(self) -> None:
        if which("nft") is None:
            return
        try:
            self._list()
        except ToolError:
            return
        run("nft", "delete", "table", "inet", TABLE)
        self._expected = ""

    @staticmethod
    def _list() -> str:
        return run("nft", "-t", "list", "table", "inet", TABLE)

    @staticmethod
    def _members() -> int:
        """How many members our sets have: somebody may have flushed them and left the rules alone."""
        listing = json.loads(run("nft", "-j", "list", "table", "inet", TABLE))["nftables"]
        return sum(len(each["set"].get("elem", ())) for each in listing if "set" in each)

    def _wanted(self) -> int:
        return len(self._plan.entries) if self._plan else 0

    @staticmethod
    def _shape_of(plan: Plan) -> object:
        return plan.has_service(AF_INET), plan.has_service(AF_INET6)

    def _find_parts(self, plan: Plan) -> None:
        """First installation: use what this kernel has, and say what it lacks."""
        attempts = (
            ("notrack", "defrag"),
            ("notrack", "fragments"),
            ("notrack",),
            ("defrag",),
            ("fragments",),
            (),
        )
        first: ToolError | None = None
        for parts in attempts:
            try:
                run("nft", "-f", "-", batch=ruleset(TABLE, plan, parts))
            except ToolError as error:
                first = first or error
                continue
            self._parts = list(parts)
            break
        else:
            raise first or ToolError("nft: nothing works")
        if "notrack" not in self._parts:
            self.warnings.append(f"replies of real servers pass through conntrack (notrack: {first})")
        if not {"defrag", "fragments"} & set(self._parts):
            self.warnings.append(f"fragments are not handled (defragmentation: {first})")

    def _note(self) -> None:
        """Remember how the kernel lists our table, to know it again."""
        self._generation = nfnetlink.ruleset_generation()
        self._expected = self._list()
