"""nft's JSON, read: as nft 1.0.6 prints it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uvs.doctor.nft_json import handles, marks, parse, tables
from uvs.doctor.ruleset import Packet, ends

PACKET = Packet(
    4, frozenset({"eth0"}), None, None, "192.0.2.100", 6, None, 80, "new", frozenset({"syn"}), local=True
)  # a request
SETS = [
    {"set": {"family": "inet", "name": "nets", "table": "t", "elem": [{"prefix": {"addr": "192.0.2.0", "len": 24}}]}},
    {"set": {"family": "inet", "name": "ports", "table": "t", "elem": [80, {"range": [8000, 8100]}]}},
    {"set": {"family": "inet", "name": "timed", "table": "t", "elem": [{"elem": {"val": "192.0.2.100", "timeout": 9}}]}},
]  # fmt: skip
DROP: dict[str, Any] = {"drop": None}


def payload(protocol: str, field: str) -> dict[str, Any]:
    return {"payload": {"protocol": protocol, "field": field}}


def match(left: Any, right: Any, op: str = "==") -> dict[str, Any]:
    return {"match": {"op": op, "left": left, "right": right}}


def table(
    *rules: list[dict[str, Any]], hook: str = "input", policy: str = "accept", name: str = "in", of: str = "t"
) -> str:
    where = {"family": "inet", "table": of}
    chains: list[dict[str, Any]] = [
        {"chain": where | {"name": "drops", "handle": 1}},
        {"rule": where | {"chain": "drops", "handle": 2, "expr": [DROP]}},
        {
            "chain": where
            | {"name": name, "handle": 3, "type": "filter", "hook": hook, "prio": 0, "policy": policy}
        },
    ]
    made = [{"rule": where | {"chain": name, "handle": 9 + n, "expr": expr}} for n, expr in enumerate(rules)]
    return json.dumps({"nftables": [{"metainfo": {}}, *SETS, *chains, *made]})


def stopped(text: str, packet: Packet = PACKET) -> bool | None:
    found = list(ends(parse(text, {}), ("prerouting", "input"), 99, packet))
    return found[0].sure or None if found else False


KEYS = st.sampled_from(
    ["match", "left", "right", "op", "payload", "protocol", "field", "meta", "key", "ct", "fib", "set", "range", "prefix",
     "addr", "len", "vmap", "data", "jump", "target", "drop", "accept", "&", "|", "elem", "val", "concat", "result", "flags"]
)  # fmt: skip
FLAGS = {"&": [payload("tcp", "flags"), ["fin", "syn", "rst", "ack"]]}
OLD_FLAGS = {"&": [payload("tcp", "flags"), {"|": [{"|": ["fin", "syn"]}, "ack"]}]}


@pytest.mark.parametrize(
    ("what", "expr", "expected"),
    [
        ("drop", [DROP], True),
        ("reject", [{"reject": {"type": "icmpx"}}], True),
        ("counted and logged", [{"counter": {"packets": 0, "bytes": 0}}, {"log": {"prefix": "x"}}, DROP], True),
        ("a limit", [{"limit": {"rate": 5, "per": "second"}}, DROP], False),
        ("iptables' own", [{"xt": {"type": "match", "name": "conntrack"}}, DROP], False),
        ("a jump", [{"jump": {"target": "drops"}}], True),
        ("a goto", [{"goto": {"target": "drops"}}], True),
        ("redirected", [{"redirect": {"port": 8080}}], True),
        ("tcp dport 80", [match(payload("tcp", "dport"), 80), DROP], True),
        ("udp dport 80", [match(payload("udp", "dport"), 80), DROP], False),
        ("tcp dport != 80", [match(payload("tcp", "dport"), 80, "!="), DROP], False),
        ("tcp dport { 22, 80-90 }", [match(payload("tcp", "dport"), {"set": [22, {"range": [80, 90]}]}), DROP], True),
        ("tcp dport @ports", [match(payload("tcp", "dport"), "@ports"), DROP], True),
        ("tcp dport @gone", [match(payload("tcp", "dport"), "@gone"), DROP], False),
        ("th dport 80", [match(payload("th", "dport"), 80), DROP], True),
        ("ip daddr @nets", [match(payload("ip", "daddr"), "@nets"), DROP], True),
        ("ip daddr @timed", [match(payload("ip", "daddr"), "@timed"), DROP], True),
        ("ip daddr range", [match(payload("ip", "daddr"), {"range": ["192.0.2.1", "192.0.2.200"]}), DROP], True),
        ("ip6 daddr", [match(payload("ip6", "daddr"), {"prefix": {"addr": "2001:db8::", "len": 32}}), DROP], False),
        ("ip saddr, of some", [match(payload("ip", "saddr"), "10.0.0.1"), DROP], False),
        ("ip protocol tcp", [match(payload("ip", "protocol"), "tcp"), DROP], True),
        ("ip ttl", [match(payload("ip", "ttl"), 1), DROP], False),
        ("meta l4proto { tcp, udp }", [match({"meta": {"key": "l4proto"}}, {"set": ["tcp", 17]}), DROP], True),
        ("meta nfproto ipv6", [match({"meta": {"key": "nfproto"}}, "ipv6"), DROP], False),
        ("meta mark", [match({"meta": {"key": "mark"}}, 7), DROP], False),
        ("iifname lo", [match({"meta": {"key": "iifname"}}, "lo"), DROP], False),
        ("iifname eth*", [match({"meta": {"key": "iifname"}}, {"set": ["eth*", "br0"]}), DROP], True),
        ("ct state new", [match({"ct": {"key": "state"}}, "new", "in"), DROP], True),
        ("ct state { established, related }",
         [match({"ct": {"key": "state"}}, {"set": ["established", "related"]}), DROP], False),
        ("ct state established,related", [match({"ct": {"key": "state"}}, ["established", "new"], "in"), DROP], True),
        ("fib daddr type local", [match({"fib": {"result": "type", "flags": ["daddr"]}}, "local"), DROP], True),
        ("fib saddr . iif oif missing", [match({"fib": {"result": "oif", "flags": ["saddr", "iif"]}}, False), DROP], False),
        ("ct status dnat", [match({"ct": {"key": "status"}}, "dnat", "in"), DROP], False),
        ("ct status assured", [match({"ct": {"key": "status"}}, "assured", "in"), DROP], False),
        ("a SYN", [match(FLAGS, "syn"), DROP], True),
        ("no SYN", [match(FLAGS, "syn", "!="), DROP], False),
        ("a SYN, nested", [match(OLD_FLAGS, "syn"), DROP], True),
        ("tcp flags syn", [match(payload("tcp", "flags"), "syn", "in"), DROP], True),
        ("a concatenation", [match({"concat": [payload("ip", "saddr"), payload("tcp", "dport")]},
                                   {"set": [{"concat": ["192.0.2.9", 80]}]}), DROP], False),
        ("ct state vmap", [{"vmap": {"key": {"ct": {"key": "state"}}, "data": {
            "set": [["established", {"accept": None}], ["new", {"drop": None}]]}}}], True),
        ("iifname vmap", [{"vmap": {"key": {"meta": {"key": "iifname"}}, "data": {
            "set": [["lo", {"accept": None}], ["eth0", {"jump": {"target": "drops"}}]]}}}], True),
    ],
)  # fmt: skip
def test_rules(what: str, expr: list[dict[str, Any]], expected: bool) -> None:
    assert stopped(table(expr)) is expected, what


def test_a_policy_after_an_accept_of_some() -> None:
    some = [match(payload("ip", "saddr"), "10.0.0.1"), {"accept": None}]
    assert stopped(table(policy="drop")) is True
    assert stopped(table(some, policy="drop")) is None


def test_firewalld_s_accept_of_what_is_translated_leaves_its_reject_sure() -> None:
    """No packet of a service is; what is not known would."""
    for status, sure in (("dnat", True), ("assured", None)):
        accept = [match({"ct": {"key": "status"}}, status, "in"), {"accept": None}]
        assert stopped(table(accept, [{"reject": {"type": "icmpx"}}])) is sure


def test_notrack_makes_untracked() -> None:
    chains = parse(table([{"notrack": None}], hook="prerouting"), {})
    rule = [match({"ct": {"key": "state"}}, "untracked", "in"), DROP]
    chains |= parse(table(rule, name="later"), {})
    assert len(list(ends(chains, ("prerouting", "input"), 99, PACKET))) == 1
    assert stopped(table(rule), replace(PACKET, state="new")) is False


def test_tables_of_iptables_are_iptables() -> None:
    """iptables-save tells of them in words that are known."""
    where = {"family": "ip", "table": "filter"}
    chain = where | {
        "name": "INPUT",
        "handle": 1,
        "type": "filter",
        "hook": "input",
        "prio": 0,
        "policy": "drop",
    }
    assert parse(json.dumps({"nftables": [{"chain": chain}]}), {}) == {}
    assert len(parse(json.dumps({"nftables": [{"chain": chain | {"name": "input"}}]}), {})) == 1


def test_ours_are_known() -> None:
    assert all(c.ours for c in parse(table([DROP], of="uvs"), {}).values())
    assert stopped(table([DROP], of="uvs")) is False


def test_rules_as_people_write_them() -> None:
    listing = "table inet t { # handle 4\n\tchain in { # handle 3\n\t\ttype filter hook input priority 0;\n\t\ttcp dport 80 drop # handle 9\n\t}\n}\n"
    texts = handles(listing)
    assert texts == {9: "tcp dport 80 drop"}
    (end,) = ends(parse(table([DROP]), texts), ("input",), 99, PACKET)
    assert end.text == "nft, table inet t, in: tcp dport 80 drop"
    (end,) = ends(parse(table([DROP]), {}), ("input",), 99, PACKET)
    assert end.text.endswith("rule 9")


def test_names_of_tables_and_marks() -> None:
    assert tables(
        '{"nftables": [{"metainfo": {}}, {"table": {"family": "ip", "name": "a", "handle": 1}}]}'
    ) == [("ip", "a")]
    assert (tables(None), parse(None, {}), handles(None), marks(None)) == ([], {}, {}, set())
    mangle = {"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}}
    assert marks(table([mangle], [{"mangle": {"key": {"ct": {"key": "mark"}}, "value": 8}}])) == {7}


words = st.sampled_from(
    ["ip", "tcp", "saddr", "dport", "state", "==", "in", "@ports", "drop", "vmap", "10.0.0.1", "x"]
)
json_values = st.recursive(
    words | st.integers(-1, 70000) | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)
statements = st.dictionaries(KEYS, json_values, min_size=1, max_size=2)


@settings(max_examples=150, deadline=None)
@given(st.lists(statements, max_size=4))
@example(
    [
        {
            "match": {
                "op": "==",
                "left": {"payload": {"protocol": "ip", "field": "saddr"}},
                "right": "no address",
            }
        },
        DROP,
    ]
)
def test_whatever_a_newer_nft_says_is_at_worst_not_known(expr: list[dict[str, Any]]) -> None:
    stopped(table(expr, [DROP]))
