"""Texts for and of nft."""

from __future__ import annotations

import pytest

from uvs.netfilter.nft import queue_numbers, ruleset
from uvs.netfilter.plan import AF_INET, Entry, Plan, Set, one_queue, queues_by_class


def chain(text: str, name: str) -> list[str]:
    """The rules of a chain."""
    return text.split(f"chain {name} {{\n")[1].split("\n}")[0].strip().splitlines()


@pytest.mark.parametrize(
    ("count", "queues"),
    [(1, ["7", "8", "9", "10"]), (2, ["7-8", "9-10", "11-12", "13-14"])],
)
def test_each_class_has_its_queues(count: int, queues: list[str]) -> None:
    """One, or several that share it; ours to be known again either way."""
    plan = Plan(queues_by_class(7, count), 0, 0)
    plan.include(Entry(Set.MARKS, AF_INET, mark=9))
    text = ruleset("uvs", plan)
    other, request, reply, syn = (f"queue num {each}" for each in queues)
    assert chain(text, "request") == [
        f"tcp flags & (fin | syn | rst | ack) == syn {syn}",
        f"meta l4proto tcp {request}",
        other,
    ]
    assert chain(text, "reply") == [f"meta l4proto tcp {reply}", other]
    assert f"icmp_errors icmp type {{ 3, 4, 11 }} {other}\n" in text
    assert queue_numbers(text) == set(range(7, 7 + 4 * count))
    assert "bypass" not in text


def test_one_queue_for_all() -> None:
    text = ruleset("uvs", Plan(one_queue(7), 0, 0), ("fragments",))
    assert chain(text, "request") == chain(text, "reply") == ["queue num 7"]
    assert chain(text, "forward")[1].startswith("ip frag-off & 0x3fff != 0 ip saddr @hosts4 queue num 7")


@pytest.mark.parametrize(
    ("listing", "numbers"),
    [
        ("tcp dport 80 queue num 3", {3}),
        ("tcp dport 80 queue to 3", {3}),
        ("tcp dport 80 queue num 3-5", {3, 4, 5}),
        ("tcp dport 80 queue to 3-5", {3, 4, 5}),
        ("queue flags bypass to 1-2\n queue to 65535", {1, 2, 65535}),
        ("set queue { type mark; }", set()),
    ],
)
def test_how_versions_of_nft_list_queues(listing: str, numbers: set[int]) -> None:
    assert queue_numbers(listing) == numbers
