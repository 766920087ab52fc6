"""What `iptables-save` prints, as a ruleset (iptables-save(8), iptables-extensions(8))."""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Iterator

from uvs.doctor import ruleset
from uvs.doctor.ruleset import Chain, Chains, Match, Rule, Verdict

OURS = "UVS-"
# include/uapi/linux/netfilter_ipv4.h, enum nf_ip_hook_priorities; only hooks that our packets pass
PRIORITIES = {"raw": -300, "mangle": -150, "nat": -100, "filter": 0, "security": 50}
HOOKS = {"PREROUTING": "prerouting", "INPUT": "input", "FORWARD": "forward"}
TARGETS: dict[str, Verdict] = {
    "ACCEPT": "accept", "DROP": "drop", "REJECT": "drop", "RETURN": "return", "NOTRACK": "notrack",
    "DNAT": "taken", "REDIRECT": "taken", "TPROXY": "taken", "NFQUEUE": "taken", "QUEUE": "taken",
}  # fmt: skip
# Targets that do something to a packet and let it go on.
ON = {"LOG", "NFLOG", "MARK", "CONNMARK", "TRACE", "CT", "SET", "TOS", "DSCP", "TCPMSS", "CLASSIFY", "AUDIT"}
PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132, "icmp": 1, "icmpv6": 58, "ipv6-icmp": 58}
FLAGS = frozenset({"fin", "syn", "rst", "psh", "ack", "urg"})
SILENT = {"--comment"}  # options that look at nothing; they have a value


@functools.lru_cache(8)
def parse(text: str, family: int) -> Chains:
    """All chains of all tables. `family`: 4 for iptables-save's text, 6 for ip6tables-save's."""
    back_end = "iptables" if family == 4 else "ip6tables"
    chains: Chains = {}
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith(":"):
            name, policy, *_ = [*line[1:].split(), "", "-"]
            hook = HOOKS.get(name, "") if policy != "-" else ""
            chains[back_end, table, name] = Chain(
                back_end,
                table,
                name,
                family,
                hook,
                # at INPUT nat comes after filter (NF_IP_PRI_NAT_SRC)
                100 if table == "nat" and hook == "input" else PRIORITIES.get(table, 0),
                "drop" if policy == "DROP" else "accept",
                name.startswith(OURS),
            )
        elif line.startswith("-A "):
            name = line.split()[1] if len(line.split()) > 1 else ""
            if chain := chains.get((back_end, table, name)):
                try:
                    chain.rules.append(_rule(line))
                except (ValueError, IndexError):  # nothing that iptables-save is known to say
                    chain.rules.append(Rule((ruleset.unknown,), "", "", line))
    return chains


def marks(text: str) -> set[int]:
    """Marks that rules set on packets."""
    return {int(mark, 0) for mark in re.findall(r"--set-x?mark (0x[0-9a-f]+|\d+)", text)}


def _rule(line: str) -> Rule:
    words = shlex.split(line)[2:]
    found: list[Match] = []
    verdict: Verdict = ""
    target = ""
    for option, values, contrary in _options(words):
        if option in ("-j", "-g", "--jump", "--goto"):
            verdict, target = _target(option, values)
            if verdict != "jump" and verdict != "goto":
                break  # the rest are options of the target
        elif option not in SILENT and option not in ("-m", "--match"):
            match = _match(option, values)
            found.append(ruleset.negated(match) if contrary else match)
    return Rule(tuple(found), verdict, target, line)


def _target(option: str, values: list[str]) -> tuple[Verdict, str]:
    name = values[0]
    if name == "CT" and "--notrack" in values:
        return "notrack", ""
    if name in TARGETS:
        return TARGETS[name], ""
    if name in ON:
        return "", ""
    return ("goto" if option in ("-g", "--goto") else "jump"), name


def _options(words: list[str]) -> Iterator[tuple[str, list[str], bool]]:
    """Each option with its values; a `!` before it is its contrary. A target takes all that is left."""
    at = 0
    while at < len(words):
        contrary = words[at] == "!"
        at += contrary
        option, at = words[at] if at < len(words) else "", at + 1
        end = at
        while end < len(words) and not words[end].startswith("-") and words[end] != "!":
            end += 1
        if option in SILENT:
            end = at + 1  # whatever it begins with
        if option in ("-j", "--jump"):
            end = len(words)
        yield option, words[at:end], contrary
        at = end


def _match(option: str, values: list[str]) -> Match:
    value = values[0] if values else ""
    match option:
        case "-s" | "--source":
            return ruleset.address("saddr", value.split(","))
        case "-d" | "--destination":
            return ruleset.address("daddr", value.split(","))
        case "--src-range":
            return ruleset.address("saddr", [value])
        case "--dst-range":
            return ruleset.address("daddr", [value])
        case "-i" | "--in-interface":
            return ruleset.device("iif", [_wildcard(value)])
        case "-o" | "--out-interface":
            return ruleset.device("oif", [_wildcard(value)])
        case "-p" | "--protocol":
            known = PROTOCOLS.get(value, int(value) if value.isdigit() else None)
            return ruleset.unknown if known is None else ruleset.number("protocol", [(known, known)])
        case "--dport" | "--dports" | "--destination-port":
            return _ports("dport", value)
        case "--sport" | "--sports" | "--source-port":
            return _ports("sport", value)
        case "--ctstate" | "--state":
            return ruleset.state([name.lower() for name in value.split(",")])
        case "--tcp-flags":
            mask, wanted = (_flags(part) for part in [*values, "", ""][:2])
            return ruleset.tcp_flags(mask, wanted)
        case "--dst-type":
            return ruleset.to_local if value == "LOCAL" else ruleset.unknown
    return ruleset.unknown


def _flags(text: str) -> frozenset[str]:
    names = frozenset(text.lower().split(",")) - {"none", ""}
    return FLAGS if "all" in names else names


def _wildcard(name: str) -> str:
    return name[:-1] + "*" if name.endswith("+") else name


def _ports(which: str, text: str) -> Match:
    ranges = []
    for part in text.split(","):
        low, colon, high = part.partition(":")
        if not (low or "0").isdigit() or not (high or "0").isdigit():
            return ruleset.unknown
        ranges.append((int(low or 0), int(high or 65535) if colon else int(low)))
    return ruleset.number(which, ranges)
