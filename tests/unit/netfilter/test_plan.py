"""Which set member stands for which service or server."""

from __future__ import annotations

import socket

import pytest

from uvs.netfilter.plan import (
    AF_INET,
    AF_INET6,
    Class,
    Element,
    Entry,
    Plan,
    Set,
    one_queue,
    queues_by_class,
)

A4, A6 = socket.inet_aton("192.0.2.1"), socket.inet_pton(socket.AF_INET6, "2001:db8::1")


@pytest.mark.parametrize(
    ("element", "entry"),
    [
        (Element("service", AF_INET, 6, A4, 80), Entry(Set.SERVICES, AF_INET, A4, 6, 80)),
        (Element("service", AF_INET6, 17, A6, 53), Entry(Set.SERVICES, AF_INET6, A6, 17, 53)),
        (Element("service", AF_INET, 132, A4, 3868), Entry(Set.SERVICES, AF_INET, A4, 132, 3868)),
        (Element("service", AF_INET, 6, A4, 0), Entry(Set.VIPS, AF_INET, A4)),
        (Element("service", AF_INET, 6, A4, 21), Entry(Set.VIPS, AF_INET, A4)),
        (Element("server", AF_INET, 6, A4, 80), Entry(Set.SERVERS, AF_INET, A4, 6, 80)),
        (Element("server", AF_INET6, 6, A6, 0), Entry(Set.REALS, AF_INET6, A6)),
        (Element("mark", AF_INET6, mark=7), Entry(Set.MARKS, AF_INET6, mark=7)),
    ],
)
def test_entry(element: Element, entry: Entry) -> None:
    assert element.entry() == entry


@pytest.mark.parametrize(
    "element",
    [
        Element("service", AF_INET, 6, A6, 80),
        Element("service", 1, 6, A4, 80),
        Element("service", AF_INET, 1, A4, 80),
        Element("server", AF_INET, 6, A4, 65536),
        Element("mark", AF_INET, mark=0),
        Element("mark", AF_INET, mark=1 << 32),
    ],
)
def test_what_no_set_can_hold(element: Element) -> None:
    with pytest.raises(ValueError, match=r".+"):
        element.entry()


def test_plan_knows_services_and_marks_of_each_family() -> None:
    plan = Plan(one_queue(0), 1, 1)
    entries = [
        Entry(Set.MARKS, AF_INET6, mark=9),
        Entry(Set.MARKS, AF_INET6, mark=2),
        Entry(Set.REALS, AF_INET, A4),
    ]
    for entry in entries:
        plan.include(entry)
    assert (plan.has_service(AF_INET), plan.has_service(AF_INET6)) == (False, True)
    assert (plan.marks(AF_INET), plan.marks(AF_INET6)) == ([], [2, 9])
    plan.exclude(entries[0])
    plan.exclude(entries[1])
    assert not plan.has_service(AF_INET6)
    assert plan.entries == {entries[2]}
    assert (plan.counts[Set.REALS, AF_INET], plan.counts[Set.MARKS, AF_INET6]) == (1, 0)


def test_queues_of_the_classes() -> None:
    """One class after the other, as many for each."""
    assert Plan(queues_by_class(10, 2), 0, 0).queues == {
        Class.OTHER: range(10, 12),
        Class.REQUEST: range(12, 14),
        Class.REPLY: range(14, 16),
        Class.SYN: range(16, 18),
    }
    assert Plan(queues_by_class(10, 2), 0, 0).all_queues == set(range(10, 18))
    assert Plan(one_queue(10), 0, 0).all_queues == {10}


X, T, S = range(1), range(1, 2), range(2, 3)


@pytest.mark.parametrize(
    ("other", "request_", "reply", "syn", "requests", "replies"),
    [
        (X, T, T, S, [("syn", S), ("tcp", T), ("", X)], [("tcp", T), ("", X)]),
        (X, T, X, T, [("tcp", T), ("", X)], [("", X)]),
        (X, X, X, X, [("", X)], [("", X)]),
        (X, X, T, S, [("syn", S), ("", X)], [("tcp", T), ("", X)]),
        (X, T, X, X, [("syn", X), ("tcp", T), ("", X)], [("", X)]),
    ],
)
def test_no_rule_says_what_the_next_says(
    other: range,
    request_: range,
    reply: range,
    syn: range,
    requests: list[tuple[str, range]],
    replies: list[tuple[str, range]],
) -> None:
    plan = Plan(dict(zip(Class, (other, request_, reply, syn), strict=True)), 0, 0)
    assert plan.requests("syn", "tcp") == requests
    assert plan.replies("tcp") == replies
