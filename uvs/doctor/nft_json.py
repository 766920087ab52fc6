"""What `nft -j list table` prints, as a ruleset (libnftables-json(5))."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from uvs.doctor import ruleset
from uvs.doctor.iptables_text import PROTOCOLS
from uvs.doctor.ruleset import Chain, Chains, Match, Rule, Verdict

OURS = ("inet", "uvs")
OF_IPTABLES = {"filter", "nat", "mangle", "raw", "security"}
FAMILIES = {"inet": 0, "ip": 4, "ip6": 6}
VERDICTS: dict[str, Verdict] = {
    "accept": "accept", "drop": "drop", "reject": "drop", "return": "return", "notrack": "notrack",
    "jump": "jump", "goto": "goto", "queue": "taken", "dnat": "taken", "redirect": "taken", "tproxy": "taken",
}  # fmt: skip
# Statements that look at nothing and let the packet go on.
ON = {
    "counter",
    "log",
    "mangle",
    "comment",
    "ct helper",
    "meter",
    "set",
    "map",
    "dup",
    "fwd",
    "snat",
    "masquerade",
}


def tables(text: str | None) -> list[tuple[str, str]]:
    """Family and name of each table, of `nft -j list tables`."""
    return [(t["family"], t["name"]) for kind, t in _objects(text) if kind == "table"]


def parse(text: str | None, lines: Mapping[int, str]) -> Chains:
    """All chains of one table of `nft -j list table`; none of one of iptables-nft's.

    `lines`: its rules as people write them, by handle.
    """
    chains: Chains = {}
    sets: dict[str, list[Any]] = {}
    for kind, one in _objects(text):
        if one.get("family") not in FAMILIES:
            continue
        table = f"{one['family']} {one.get('table', '')}"
        if kind == "set":
            sets[one["name"]] = one.get("elem", [])
        elif kind == "chain":
            chains["nft", table, one["name"]] = Chain(
                "nft",
                table,
                one["name"],
                FAMILIES[one["family"]],
                one.get("hook", ""),
                one.get("prio", 0),
                "drop" if one.get("policy") == "drop" else "accept",
                (one["family"], one["table"]) == OURS,
            )
        elif kind == "rule" and (chain := chains.get(("nft", table, one["chain"]))):
            written = lines.get(one["handle"], f"rule {one['handle']}")
            try:
                chain.rules += list(_rules(one["expr"], sets, written))
            except (ValueError, KeyError, TypeError, AttributeError, IndexError):  # a newer nft's words
                chain.rules.append(Rule((ruleset.unknown,), "", "", written))
    return {} if _is_of_iptables(chains) else chains


def handles(text: str | None) -> dict[int, str]:
    """Rules as people write them, by their handle, of `nft -a list table`."""
    found = re.findall(r"^\t\t(.*) # handle (\d+)$", text or "", re.M)
    return {int(handle): line for line, handle in found}


def marks(text: str | None) -> set[int]:
    """Marks that rules set on packets, of `nft -j list ruleset`."""
    found = set()
    for kind, one in _objects(text):
        for statement in one["expr"] if kind == "rule" else ():
            about = statement.get("mangle", {})
            if about.get("key") == {"meta": {"key": "mark"}} and isinstance(about["value"], int):
                found.add(about["value"])
    return found


def _is_of_iptables(chains: Chains) -> bool:
    """Did iptables-nft make this table? iptables-save tells of it, in words that are known."""
    return any(c.hook and c.name.isupper() and c.table.split()[1] in OF_IPTABLES for c in chains.values())


def _objects(text: str | None) -> Iterator[tuple[str, dict[str, Any]]]:
    for entry in json.loads(text)["nftables"] if text else ():
        yield from entry.items()


def _rules(expr: list[dict[str, Any]], sets: Mapping[str, list[Any]], text: str) -> Iterator[Rule]:
    """A rule, or several if it is a map of verdicts."""
    found: list[Match] = []
    for statement in expr:
        ((kind, about),) = statement.items()
        if kind == "match":
            found += _match(about["op"], about["left"], about["right"], sets)
        elif kind == "vmap":
            data = about["data"]
            pairs = data["set"] if isinstance(data, dict) else sets.get(str(data).removeprefix("@"), [])
            for value, end in pairs:
                ((verdict, target),) = end.items()
                one = _match("==", about["key"], value, sets)
                yield Rule((*found, *one), VERDICTS.get(verdict, ""), (target or {}).get("target", ""), text)
            return
        elif kind in VERDICTS:
            target = about["target"] if kind in ("jump", "goto") else ""
            yield Rule(tuple(found), VERDICTS[kind], target, text)
            return
        elif kind not in ON:
            found.append(ruleset.unknown)


def _match(op: str, left: Any, right: Any, sets: Mapping[str, list[Any]]) -> list[Match]:
    """What has to be met: the match itself, and what it takes for granted (`tcp dport` looks at TCP only)."""
    values = _values(right, sets)
    ((kind, about),) = left.items() if isinstance(left, dict) else (("", left),)
    implied: list[Match] = []
    match: Match = ruleset.unknown
    if values is not None and op in ("==", "!=", "in"):
        if kind == "payload" and "field" in about:
            implied, match = _payload(about["protocol"], about["field"], op, values)
        elif kind == "meta":
            match = _meta(about["key"], values)
        elif kind == "ct" and about.get("key") == "state":
            match = ruleset.state([str(v) for v in values])
        elif kind == "ct" and about.get("key") == "status" and values == ["dnat"]:
            match = ruleset.never  # of firewalld; a service's packet is not translated
        elif kind == "fib" and about == {"result": "type", "flags": ["daddr"]}:
            match = ruleset.to_local if values == ["local"] else ruleset.unknown
        elif kind == "&" and about[0] == {"payload": {"protocol": "tcp", "field": "flags"}}:
            implied = [_protocol([6])]
            match = ruleset.tcp_flags(frozenset(_words(about[1])), frozenset(map(str, values)))
    return [*implied, ruleset.negated(match) if op == "!=" else match]


def _payload(protocol: str, field: str, op: str, values: list[Any]) -> tuple[list[Match], Match]:
    implied: list[Match] = []
    if protocol in ("ip", "ip6"):
        implied = [ruleset.of_family(4 if protocol == "ip" else 6)]
    elif protocol in PROTOCOLS:
        implied = [_protocol([PROTOCOLS[protocol]])]
    if field in ("saddr", "daddr"):
        return implied, ruleset.address(field, [_network(v) for v in values])
    if field in ("sport", "dport"):
        return implied, ruleset.number(field, [_range(v) for v in values])
    if field in ("protocol", "nexthdr"):
        return implied, _protocol(values)
    if (protocol, field, op) == ("tcp", "flags", "in"):
        # `tcp flags syn`: any of them is set
        return (
            implied,
            lambda packet: None if packet.flags is None else bool(packet.flags & {*map(str, values)}),
        )
    return implied, ruleset.unknown


def _meta(key: str, values: list[Any]) -> Match:
    if key in ("iifname", "iif", "oifname", "oif"):
        return ruleset.device(key[:3], [str(v) for v in values])
    if key == "l4proto":
        return _protocol(values)
    if key == "nfproto" and len(values) == 1:
        return ruleset.of_family(4 if values[0] == "ipv4" else 6)
    return ruleset.unknown


def _protocol(values: list[Any]) -> Match:
    numbers = [v if isinstance(v, int) else PROTOCOLS.get(str(v), -1) for v in values]
    return ruleset.number("protocol", [(n, n) for n in numbers])


def _values(right: Any, sets: Mapping[str, list[Any]]) -> list[Any] | None:
    """All values that are meant; None if they are not known."""
    if isinstance(right, dict) and "set" in right:
        right = right["set"]
    elif isinstance(right, str) and right.startswith("@"):
        right = sets.get(right[1:])
    if right is None:
        return None
    values = right if isinstance(right, list) else [right]
    plain = [v["elem"]["val"] if isinstance(v, dict) and "elem" in v else v for v in values]
    known = all(
        isinstance(v, str | int) or (isinstance(v, dict) and v.keys() & {"range", "prefix"}) for v in plain
    )
    return plain if known else None


def _words(value: Any) -> Iterator[str]:
    """Flags, however they are joined."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _words(inner)
    else:
        for inner in value:
            yield from _words(inner)


def _network(value: Any) -> str:
    if isinstance(value, dict) and "prefix" in value:
        return f"{value['prefix']['addr']}/{value['prefix']['len']}"
    if isinstance(value, dict):
        return "-".join(value["range"])
    return str(value)


def _range(value: Any) -> tuple[int, int]:
    low, high = value["range"] if isinstance(value, dict) else (value, value)
    return (int(low), int(high)) if str(low).isdigit() and str(high).isdigit() else (-1, -1)
