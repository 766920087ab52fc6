"""Rules as data: which packets they stop, and of which that is not sure."""

from __future__ import annotations

from dataclasses import replace

import pytest

from uvs.doctor import ruleset
from uvs.doctor.ruleset import Chain, Chains, Match, Packet, Rule, Verdict, ends

PACKET = Packet(
    4, frozenset({"eth0", "eth1"}), frozenset({"eth1"}), "198.51.100.11", "192.0.2.100", 6, 80, 1024, "new",
    frozenset({"syn"}),
)  # fmt: skip
ALL: tuple[Match, ...] = ()
MAYBE = (ruleset.unknown,)
NEVER = (ruleset.of_family(6),)


def chain(*rules: tuple[tuple[Match, ...], Verdict, str], name: str = "in", **more: object) -> Chain:
    about: dict[str, object] = {"hook": "input"} | more
    made = Chain("nft", "inet t", name, **about)  # type: ignore[arg-type]
    made.rules = [
        Rule(matches, verdict, target, f"{name} {n}") for n, (matches, verdict, target) in enumerate(rules)
    ]
    return made


def stopped(*chains: Chain, packet: Packet = PACKET) -> list[tuple[str, str, bool]]:
    """Verdict, rule (or policy) and certainty of each end."""
    named: Chains = {(c.back_end, c.table, c.name): c for c in chains}
    return [
        (e.verdict, e.rule.text if e.rule else e.text.rpartition(": ")[2], e.sure)
        for e in ends(named, ("prerouting", "input"), 99, packet)
    ]


SUB = chain((MAYBE, "accept", ""), (ALL, "return", ""), (ALL, "drop", ""), name="sub", hook="")
DROPS = chain((ALL, "drop", ""), name="drops", hook="")


@pytest.mark.parametrize(
    ("what", "chains", "expected"),
    [
        ("nothing", [], []),
        ("no rule", [chain()], []),
        ("a drop", [chain((ALL, "drop", ""))], [("drop", "in 0", True)]),
        ("a drop of others", [chain((NEVER, "drop", ""))], []),
        ("a drop of some", [chain((MAYBE, "drop", ""))], []),
        ("an accept first", [chain((ALL, "accept", ""), (ALL, "drop", ""))], []),
        ("an accept of some first", [chain((MAYBE, "accept", ""), (ALL, "drop", ""))], [("drop", "in 1", False)]),
        ("an accept of others first", [chain((NEVER, "accept", ""), (ALL, "drop", ""))], [("drop", "in 1", True)]),
        ("policy", [chain(policy="drop")], [("drop", "policy DROP", True)]),
        ("policy and an accept of some", [chain((MAYBE, "accept", ""), policy="drop")], [("drop", "policy DROP", False)]),
        ("a return to the policy", [chain((ALL, "return", ""), (ALL, "accept", ""), policy="drop")],
         [("drop", "policy DROP", True)]),
        ("taken away", [chain((ALL, "taken", ""))], [("taken", "in 0", True)]),
        ("a jump", [chain((ALL, "jump", "drops")), DROPS], [("drop", "drops 0", True)]),
        ("a jump of some", [chain((MAYBE, "jump", "drops")), DROPS], []),
        ("a jump that comes back", [chain((ALL, "jump", "sub"), (ALL, "drop", "")), SUB], [("drop", "in 1", False)]),
        ("a goto that comes back", [chain((ALL, "goto", "sub"), (ALL, "drop", "")), SUB], []),
        ("a jump to nowhere", [chain((ALL, "jump", "gone"), (ALL, "drop", ""))], [("drop", "in 1", True)]),
        ("a jump in a circle", [chain((ALL, "jump", "in"), (ALL, "drop", ""))], [("drop", "in 1", True)]),
        ("after ours", [chain((ALL, "drop", ""), priority=99)], []),
        ("ours", [chain((ALL, "drop", ""), ours=True)], []),
        ("of the other family", [chain((ALL, "drop", ""), family=6)], []),
        ("of another hook", [chain((ALL, "drop", ""), hook="forward")], []),
        ("accepted in one, dropped in the next",
         [chain((ALL, "accept", "")), chain((ALL, "drop", ""), name="later", priority=1)], [("drop", "later 0", True)]),
        ("untracked before", [chain((ALL, "notrack", ""), name="raw", hook="prerouting", priority=-300),
                              chain(((ruleset.state(["untracked"]),), "drop", ""))], [("drop", "in 0", True)]),
    ],
)  # fmt: skip
def test_what_stops_a_packet(what: str, chains: list[Chain], expected: list[tuple[str, str, bool]]) -> None:
    assert stopped(*chains) == expected, what


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (ruleset.unknown, None),
        (ruleset.negated(ruleset.unknown), None),
        (ruleset.of_family(4), True),
        (ruleset.negated(ruleset.of_family(4)), False),
        (ruleset.device("iif", ["lo"]), False),
        (ruleset.device("iif", ["eth*"]), True),
        (ruleset.device("iif", ["eth0"]), None),
        (ruleset.device("oif", ["eth1"]), True),
        (ruleset.address("saddr", ["198.51.100.0/24"]), True),
        (ruleset.address("saddr", ["2001:db8::/32", "10.0.0.1"]), False),
        (ruleset.address("daddr", ["192.0.2.99-192.0.2.101"]), True),
        (ruleset.number("sport", [(1, 79), (80, 80)]), True),
        (ruleset.number("dport", [(80, 80)]), False),
        (ruleset.state(["established", "related"]), False),
        (ruleset.tcp_flags(frozenset({"syn", "ack"}), frozenset({"syn"})), True),
        (ruleset.tcp_flags(frozenset({"syn", "ack"}), frozenset({"ack"})), False),
        (ruleset.to_local, False),
    ],
)
def test_what_rules_look_at(match: Match, expected: bool | None) -> None:
    assert match(PACKET) is expected


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        (ruleset.device("iif", ["lo"]), None),
        (ruleset.address("saddr", ["198.51.100.0/24"]), None),
        (ruleset.address("saddr", ["0.0.0.0/0"]), True),
        (ruleset.number("sport", [(80, 80)]), None),
        (ruleset.tcp_flags(frozenset({"syn"}), frozenset({"syn"})), None),
    ],
)
def test_what_is_not_known_of_a_packet(match: Match, expected: bool | None) -> None:
    assert match(replace(PACKET, iif=None, saddr=None, sport=None, flags=None)) is expected
