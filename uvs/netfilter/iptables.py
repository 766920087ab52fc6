"""Diversion by iptables and ipset: the `security` table, the only one that comes after `filter`.

Our rules are in chains of our own, `UVS-…`: one for each hook, with one jump from its built-in chain, and
those that they jump to. Our sets are `uvs4-…` and `uvs6-…`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from itertools import product

from uvs.netfilter import nfnetlink, xtables
from uvs.netfilter.backend import ipv6_enabled
from uvs.netfilter.plan import AF_INET, AF_INET6, ICMP_ERRORS, Class, Entry, Plan, Set
from uvs.netfilter.tool import ToolError, run, which

PREFIX = "UVS-"
# What the chains of the hooks jump to: each sorts what is diverted into the queues of the classes.
SORTERS = ("REQUEST", "REPLY", "ERROR")
SET_TYPES = {
    Set.SERVICES: "hash:ip,port",
    Set.VIPS: "hash:ip",
    Set.SERVERS: "hash:ip,port",
    Set.REALS: "hash:ip",
    Set.ANSWERS: "hash:ip,port",
    Set.HOSTS: "hash:ip",
}
MAXELEM = 1 << 20
LOOK_AGAIN_S = 10
SPARE = "-new"  # suffix of a set that is filled before it takes the place of the one in use
# ip6tables has no ranges of types: those below 128 that IANA has assigned.
ICMPV6_ERRORS = (1, 2, 3, 4, 100, 101, 127)
# A match on a socket switches defragmentation on for the whole namespace while the rule exists
# (net/netfilter/xt_socket.c, socket_mt_v1_check()); no packet has these destinations at PREROUTING.
NEVER = {AF_INET: "255.255.255.255", AF_INET6: "ff02::dead"}
# Every fragment, the first ones too (`-f` leaves them out): a datagram of which only some reach us would be
# lost.
FRAGMENT = {AF_INET: "-m u32 --u32 4&0x3FFF=1:0x3FFF", AF_INET6: "-m frag"}


def set_name(which_set: Set, af: int) -> str:
    """Name of one of our ipset sets."""
    return f"uvs{4 if af == AF_INET else 6}-{which_set.value}"


def member(entry: Entry, suffix: str = "") -> str:
    """A set (its name with `suffix`) and a member as ipset writes them."""
    name = set_name(entry.set, entry.af) + suffix
    if SET_TYPES[entry.set] == "hash:ip":
        return f"{name} {entry.text}"
    # A number: ipset reads /etc/protocols for each name.
    return f"{name} {entry.text},{entry.protocol}:{entry.port}"


def create_sets(af: int, entries: Iterable[Entry]) -> str:
    """Lines for `ipset restore`: the sets of one family with these members, at once in place of old ones."""
    family = "inet" if af == AF_INET else "inet6"
    lines = []
    for each, kind in SET_TYPES.items():
        name = set_name(each, af)
        lines += [f"create {n} {kind} family {family} maxelem {MAXELEM}" for n in (name, name + SPARE)]
        lines.append(f"flush {name}{SPARE}")
        members = (member(entry, SPARE) for entry in entries if (entry.set, entry.af) == (each, af))
        lines += [f"add {text}" for text in members]
        lines += [f"swap {name}{SPARE} {name}", f"destroy {name}{SPARE}"]
    return "".join(f"{line}\n" for line in lines)


def set_changes(added: Iterable[Entry], removed: Iterable[Entry]) -> str:
    """Lines for `ipset restore`."""
    lines = [f"del {member(entry)}\n" for entry in removed if entry.set in SET_TYPES]
    lines += [f"add {member(entry)}\n" for entry in added if entry.set in SET_TYPES]
    return "".join(lines)


def untracked(af: int) -> dict[str, list[str]]:
    """Chains of the raw table that keep conntrack away from what the servers send and get."""
    servers, reals = set_name(Set.SERVERS, af), set_name(Set.REALS, af)
    rules = [
        f"-m set --match-set {servers} src,src -j CT --notrack",
        f"-m set --match-set {servers} dst,dst -j CT --notrack",
        f"-m set --match-set {reals} src -j CT --notrack",
        f"-m set --match-set {reals} dst -j CT --notrack",
    ]
    return {"PREROUTING": rules, "OUTPUT": list(rules)}


def defragmented(af: int) -> dict[str, list[str]]:
    """The rule of the raw table that has fragments put together before any of our hooks."""
    return {"PREROUTING": [f"-d {NEVER[af]} -m socket --nowildcard -j ACCEPT"]}


def queue_target(queues: range) -> str:
    """The target that queues a packet; several queues share them by their addresses."""
    if len(queues) == 1:
        return f"-j NFQUEUE --queue-num {queues[0]}"
    return f"-j NFQUEUE --queue-balance {queues[0]}:{queues[-1]}"


def diverted(plan: Plan, af: int, fragments: bool = False) -> dict[str, list[str]]:
    """Chains that queue what the plan says. No bypass: without a director the packets are dropped.

    `fragments`: divert fragments too, since nothing puts them together before.
    """
    icmp = "icmp" if af == AF_INET else "icmpv6"
    request, reply, error = (f"-j {PREFIX}{chain}" for chain in SORTERS)

    def members(each: Set, ends: str) -> str:
        return f"-m set --match-set {set_name(each, af)} {ends}"

    replies = [
        f"{members(Set.SERVERS, 'src,src')} {reply}",
        f"! -p {icmp} {members(Set.REALS, 'src')} {reply}",
        f"{members(Set.SERVICES, 'src,src')} {reply}",
        f"! -p {icmp} {members(Set.VIPS, 'src')} {reply}",
        f"{members(Set.ANSWERS, 'src,src')} {reply}",
    ]
    requests = [
        f"{members(Set.SERVICES, 'dst,dst')} {request}",
        f"! -p {icmp} {members(Set.VIPS, 'dst')} {request}",
        *(f"! -p {icmp} -m mark --mark {mark:#x} {request}" for mark in plan.marks(af)),
    ]
    errors = [f"-p {icmp} {error}"] if plan.has_service(af) else []
    other = queue_target(plan.queues[Class.OTHER])
    types = ICMP_ERRORS if af == AF_INET else ICMPV6_ERRORS
    ours = [f"-m mark --mark {plan.mark:#x}/{plan.mask:#x} -j RETURN"] if plan.mask else []
    of, to = [
        [f"{FRAGMENT[af]} {members(Set.HOSTS, end)} {other}"] if fragments else [] for end in ("src", "dst")
    ]
    sorters = (
        [f"{match}{queue_target(queues)}" for match, queues in plan.requests("-p tcp --syn ", "-p tcp ")],
        [f"{match}{queue_target(queues)}" for match, queues in plan.replies("-p tcp ")],
        [f"-p {icmp} --{icmp}-type {number} {other}" for number in types],
    )
    # What most packets of a hook are comes first; of what is both, either may be said.
    return {
        "INPUT": [*ours, *of, *to, *requests, *replies, *errors],
        "FORWARD": [*of, *replies, *errors],
        "OUTPUT": [*ours, *of, *to, *replies, *requests, *errors],
        **dict(zip(SORTERS, sorters, strict=True)),
    }


def restore(table: str, chains: dict[str, list[str]], jumps: Collection[str], first: bool) -> str:
    """One table for `iptables-restore --noflush`: our chains filled anew, missing jumps put in.

    `jumps`: built-in chains that have our jump already; `first`: a new jump goes before the user's rules.
    """
    lines = [f"*{table}"]
    lines += [f":{PREFIX}{chain} - [0:0]" for chain in chains]
    for chain, rules in chains.items():
        if chain not in jumps and chain not in SORTERS:
            lines.append(f"{'-I' if first else '-A'} {chain} -j {PREFIX}{chain}")
        lines += [f"-A {PREFIX}{chain} {rule}" for rule in rules]
    return "\n".join([*lines, "COMMIT", ""])


@dataclass(frozen=True)
class Listing:
    """What `iptables-save` says of one table: the lines about us, and whether anything else is in it."""

    ours: tuple[str, ...]
    empty: bool

    @property
    def jumps(self) -> list[str]:
        """Built-in chains with a jump to us, one item for each jump."""
        found = (re.fullmatch(rf"-A (\S+) -j {PREFIX}\S+", line) for line in self.ours)
        return [match[1] for match in found if match]

    @property
    def chains(self) -> list[str]:
        """Our chains."""
        return [line[1:].split()[0] for line in self.ours if line.startswith(":")]

    @property
    def queues(self) -> set[int]:
        """Queue numbers in our rules."""
        found = re.findall(r"--queue-(?:num|balance) (\d+)(?::(\d+))?", "\n".join(self.ours))
        return {number for first, last in found for number in range(int(first), int(last or first) + 1)}

    def removal(self, table: str) -> str:
        """Lines for `iptables-restore --noflush` that take our chains out; "" if there are none."""
        if not self.chains:
            return ""
        lines = [f"*{table}"]
        lines += [f"-D {line[3:]}" for line in self.ours if re.match(rf"-A \S+ -j {PREFIX}", line)]
        lines += [f"-F {chain}" for chain in self.chains]
        lines += [f"-X {chain}" for chain in self.chains]
        return "\n".join([*lines, "COMMIT", ""])


def parse_save(text: str) -> Listing:
    """Read the `iptables-save` text of one table."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "*", "COMMIT"))]
    ours = tuple(
        re.sub(r" \[\d+:\d+\]$", "", line)
        for line in lines
        if line.startswith((f":{PREFIX}", f"-A {PREFIX}")) or re.match(rf"-A \S+ -j {PREFIX}", line)
    )
    others = [line for line in lines if not re.match(r":[A-Z]+ ACCEPT ", line) and PREFIX not in line]
    return Listing(ours, not others)


def parse_saves(text: str) -> dict[str, Listing]:
    """Read the `iptables-save` text of several tables, by name."""
    parts = re.split(r"^\*(\S+)$", text, flags=re.MULTILINE)
    return {table: parse_save(lines) for table, lines in zip(parts[1::2], parts[2::2], strict=True)}


class Iptables:
    """The back end. `variant`: "" (what this system calls iptables), "-nft" or "-legacy"."""

    def __init__(self, variant: str = "") -> None:
        self.name = f"iptables{variant}"
        self.warnings: list[str] = []
        self._variant = variant
        self._parts: dict[int, list[str]] = {}  # family: working parts of the raw table; missing: no family
        self._table: dict[int, str] = {}  # family: the table that diverts
        self._fragments: dict[int, bool] = {}  # family: are fragments diverted?
        self._shape: dict[int, object] = {}  # family: what the rules in the kernel were made from
        self._expected: dict[tuple[int, str], tuple[str, ...]] = {}
        self._plan: Plan | None = None  # what the sets were filled from
        self._sets_due = 0.0  # when their number of members is to be looked at
        self._seen: object = None  # fingerprint of the rules when they were last looked at
        self._is_nft: bool | None = None

    @property
    def kind(self) -> str:
        """Which kernel interface holds the rules."""
        return "iptables-nft" if self._uses_nft() else "iptables-legacy"

    # ------------------------------------------------------------------------------------- programs
    def _program(self, af: int, part: str = "") -> str:
        return f"{'iptables' if af == AF_INET else 'ip6tables'}{self._variant}{part}"

    def _restore(self, af: int, batch: str) -> None:
        run(self._program(af, "-restore"), "-w", "10", "--noflush", batch=batch)

    def _list(self, af: int, table: str) -> Listing:
        return parse_save(run(self._program(af, "-save"), "-t", table))

    def _uses_nft(self) -> bool:
        if self._is_nft is None:
            self._is_nft = "nf_tables" in run(self._program(AF_INET), "-V")
        return self._is_nft

    def _families(self) -> list[int]:
        return [af for af in (AF_INET, AF_INET6) if which(self._program(af, "-restore"))]

    def _list_all(self, af: int) -> dict[str, Listing]:
        """All tables that exist: asking for a legacy one by name would make the kernel create it."""
        try:
            return parse_saves(run(self._program(af, "-save")))
        except ToolError:
            return {}

    # ------------------------------------------------------------------------------------ interface
    @property
    def program(self) -> str:
        name = self._program(AF_INET, "-restore")
        return os.path.realpath(which(name) or name)

    def leftovers(self) -> set[int] | None:
        found = [
            listing for af in self._families() for listing in self._list_all(af).values() if listing.chains
        ]
        if not found and not self._sets():
            return None
        return {queue for listing in found for queue in listing.queues}

    def install(self, plan: Plan) -> None:
        families = [AF_INET]
        for program in (self._program(AF_INET, "-restore"), self._program(AF_INET, "-save"), "ipset"):
            if which(program) is None:
                raise ToolError(f"{program} is not installed")
        first_time = not self._parts
        if self._parts:
            families = list(self._parts)
        elif not ipv6_enabled():
            self.warnings.append("this host has no IPv6: only IPv4 packets are diverted")
        elif which(self._program(AF_INET6, "-restore")) is None:
            self.warnings.append(
                f"{self._program(AF_INET6)} is not installed: only IPv4 packets are diverted"
            )
        else:
            families.append(AF_INET6)
        batch = "".join(create_sets(af, plan.entries) for af in families)
        run("ipset", "-exist", "restore", batch=batch)
        self._plan = plan
        for af in families:
            if first_time:
                self._find_parts(af, plan)
            else:
                self._fill(af, plan)
        self._note()

    def change(self, plan: Plan, added: Collection[Entry], removed: Collection[Entry]) -> None:
        batch = set_changes(
            (entry for entry in added if entry.af in self._parts),
            (entry for entry in removed if entry.af in self._parts),
        )
        if batch:
            run("ipset", "-exist", "restore", batch=batch)
        stale = [af for af in self._parts if self._shape[af] != self._shape_of(plan, af)]
        if stale and self.intact():
            for af in stale:
                table = self._table[af]
                chains = self._diverted(plan, af)
                self._restore(af, restore(table, chains, list(chains), first=False))
                self._shape[af] = self._shape_of(plan, af)
            self._note()

    def intact(self) -> bool:
        now = time.monotonic()
        if now >= self._sets_due:
            self._sets_due = now + LOOK_AGAIN_S
            if not self._sets_full():
                return False
        fingerprint = self._fingerprint()
        if fingerprint is not None and fingerprint == self._seen:
            return True
        for (af, table), expected in self._expected.items():
            listing = self._try_list(af, table)
            if listing is None or listing.ours != expected:
                return False
        self._seen = fingerprint
        return True

    def remove(self) -> None:
        for af in self._families():
            ours = {table: listing for table, listing in self._list_all(af).items() if listing.chains}
            if not ours:
                continue
            self._restore(af, "".join(listing.removal(table) for table, listing in ours.items()))
            for table, listing in ours.items():
                if listing.empty and self._uses_nft():
                    self._drop_empty_table(af, table)
        for name in self._sets():
            run("ipset", "destroy", name)
        self._expected.clear()

    # -------------------------------------------------------------------------------------- details
    def _try_list(self, af: int, table: str) -> Listing | None:
        try:
            return self._list(af, table)
        except ToolError:
            return None

    def _sets_full(self) -> bool:
        """Have our sets as many members as they should? Scripts of firewalls begin with `ipset flush`."""
        assert self._plan is not None
        wanted = {set_name(each, af): self._plan.counts[each, af] for each in SET_TYPES for af in self._parts}
        try:
            listing = run("ipset", "list", "-t")
        except ToolError:
            return False
        found = re.findall(r"^Name: (\S+)$.*?^Number of entries: (\d+)$", listing, re.MULTILINE | re.DOTALL)
        return all(wanted[name] == int(members) for name, members in found if name in wanted)

    def _sets(self) -> list[str]:
        if which("ipset") is None:
            return []
        ours = {
            set_name(each, af) + suffix
            for each in SET_TYPES
            for af in (AF_INET, AF_INET6)
            for suffix in ("", SPARE)
        }
        try:
            return [name for name in run("ipset", "list", "-n").split() if name in ours]
        except ToolError:
            return []

    @staticmethod
    def _shape_of(plan: Plan, af: int) -> object:
        return plan.marks(af), plan.has_service(af)

    def _raw(self, af: int, parts: Iterable[str]) -> dict[str, list[str]]:
        chains: dict[str, list[str]] = {"PREROUTING": [], "OUTPUT": []}
        for part in parts:
            for chain, rules in (untracked if part == "notrack" else defragmented)(af).items():
                chains[chain] += rules
        return {chain: rules for chain, rules in chains.items() if rules}

    def _find_parts(self, af: int, plan: Plan) -> None:
        """First installation: use what this kernel has, and say what it lacks."""
        family = "IPv4" if af == AF_INET else "IPv6"
        working: list[str] = []
        lacking: dict[str, str] = {}
        for part in ("notrack", "defrag"):
            chains = self._raw(af, [*working, part])
            try:
                self._restore(af, restore("raw", chains, self._jumps(af, "raw"), first=True))
                working.append(part)
            except ToolError as error:
                lacking[part] = f"table raw, {part}: {error}"
        if "notrack" in lacking:
            self.warnings.append(f"replies of real servers pass through conntrack ({lacking['notrack']})")
        tried: dict[tuple[str, bool], str] = {}
        # Where nothing puts fragments together before our hooks, they are diverted as they come.
        for table, fragments in product(
            ("security", "mangle"), (True, False) if "defrag" in lacking else (False,)
        ):
            self._fragments[af] = fragments
            try:
                chains = self._diverted(plan, af)
                self._restore(af, restore(table, chains, self._jumps(af, table), first=False))
            except ToolError as error:
                tried[table, fragments] = f"table {table}: {error}"
                continue
            break
        else:
            raise ToolError("; ".join(dict.fromkeys(tried.values())))
        if table == "mangle":
            why = next(iter(tried.values()))
            self.warnings.append(
                f"{family} packets are diverted in table mangle, before the filter rules ({why})"
            )
        if "defrag" in lacking and not fragments:
            self.warnings.append(f"fragments of {family} packets are not handled ({lacking['defrag']})")
        self._parts[af] = working
        self._table[af] = table
        self._shape[af] = self._shape_of(plan, af)

    def _diverted(self, plan: Plan, af: int) -> dict[str, list[str]]:
        return diverted(plan, af, self._fragments[af])

    def _jumps(self, af: int, table: str) -> list[str]:
        listing = self._try_list(af, table)
        return listing.jumps if listing else []

    def _fill(self, af: int, plan: Plan) -> None:
        table = self._table[af]
        batch = restore(table, self._diverted(plan, af), self._jumps(af, table), first=False)
        if raw := self._raw(af, self._parts[af]):
            batch = restore("raw", raw, self._jumps(af, "raw"), first=True) + batch
        self._restore(af, batch)
        self._shape[af] = self._shape_of(plan, af)

    def _note(self) -> None:
        """Remember how the kernel lists our rules, to know them again."""
        fingerprint = self._fingerprint()
        self._expected = {(af, table): self._list(af, table).ours for af, table in self._tables()}
        self._seen = fingerprint

    def _tables(self) -> list[tuple[int, str]]:
        """The tables that hold rules of ours, by family."""
        return [
            (af, table)
            for af, parts in self._parts.items()
            for table in (self._table[af], *(["raw"] if parts else []))
        ]

    def _fingerprint(self) -> object:
        """What changes when somebody changes rules, asked without a program. None: the kernel does not say.

        A legacy table of the same shape may hold other rules, so that it is looked at now and then.
        """
        if self._uses_nft():
            return nfnetlink.ruleset_generation()
        try:
            shapes = [xtables.table_shape(af, table) for af, table in self._tables()]
        except OSError:
            return None
        return shapes, int(time.monotonic()) // LOOK_AGAIN_S

    def _drop_empty_table(self, af: int, table: str) -> None:
        """iptables-nft leaves a table with empty base chains behind: remove it.

        Should somebody have put a rule into it meanwhile, the kernel refuses.
        """
        run(self._program(af), "-w", "10", "-t", table, "-X")
        # nf_tables families are NFPROTO_*: equal to AF_* for these two (include/uapi/linux/netfilter.h).
        nfnetlink.delete_empty_table(af, table)
