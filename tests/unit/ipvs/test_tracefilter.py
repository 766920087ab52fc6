"""What a filter says, how it is read, and what is said of one that is wrong."""

from __future__ import annotations

import pytest

from uvs.engine.core import Why
from uvs.engine.trace import PROGRAM_MAX, Op
from uvs.ipvs.skb import Hook, Verdict
from uvs.ipvs.tracefilter import HOOKS, TEXT_MAX, UNTOLD, VERDICTS, FilterError, parse, program


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("tcp", "tcp"),
        ("TCP PORT 80", "tcp and port 80"),
        ("tcp port 80 or udp port 53", "(tcp and port 80) or (udp and port 53)"),
        # as pcap-filter: from the left, whichever it is
        ("tcp or udp and port 53", "(tcp or udp) and port 53"),
        ("tcp and udp or port 53", "(tcp and udp) or port 53"),
        ("not tcp and not not udp", "not tcp and not not udp"),
        ("!(tcp||udp)&&ip6", "not (tcp or udp) and ip6"),
        ("proto 6", "tcp"),
        ("proto icmp6 and proto 0x2f", "icmp6 and proto 47"),
        ("client 10.1.2.3/8", "client 10.0.0.0/8"),
        ("client 10.1.2.3/32", "client 10.1.2.3"),
        (
            "service 10.0.0.1:80 and server [2001:DB8::1]:443",
            "service 10.0.0.1:80 and server [2001:db8::1]:443",
        ),
        ("host 2001:db8::/32", "host 2001:db8::/32"),
        ("mark 0x10", "mark 16"),
        ("hook LOCAL_IN and verdict Drop and why no_dest", "hook local_in and verdict drop and why no_dest"),
        ("tcp and (udp and sctp)", "tcp and (udp and sctp)"),
    ],
)
def test_read(text: str, read: str) -> None:
    assert str(parse(text)) == read
    assert parse(read) == parse(text)


@pytest.mark.parametrize("text", ["", " \t "])
def test_nothing_means_everything(text: str) -> None:
    assert parse(text) is None
    assert program(None) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("prot 6", "column 1 of the filter, `prot`: did you mean `proto`?"),
        ("tcp and nosuchword", "column 9 of the filter, `nosuchword`: one of client, service, "),
        ("tcp udp", "column 5 of the filter, `udp`: `and` or `or` is missing before it"),
        ("tcp)", "column 4 of the filter, `)`: there is no ( that it closes"),
        ("(tcp", "the filter ends too early: `)` is missing after `tcp`"),
        ("(tcp udp)", "column 6 of the filter, `udp`: `and`, `or` or `)` is missing before it"),
        ("tcp or", "the filter ends too early: a condition is missing after `or`"),
        ("port", "the filter ends too early: the number of `port` is missing after `port`"),
        ("port 0", "column 6 of the filter, `0`: port takes a number, 1..65535"),
        ("port http", "column 6 of the filter, `http`: port takes a number, 1..65535"),
        ("proto 256", "`256`: proto takes a number, 0..255"),
        ("mark -1", "`-1`: mark takes a number, 0..4294967295"),
        (
            "client 10.0.0.256",
            "`10.0.0.256`: client takes ADDRESS, ADDRESS/LENGTH, ADDRESS:PORT, [IPv6 ADDRESS]:PORT",
        ),
        ("server 10.0.0.1:0", "`10.0.0.1:0`: server takes ADDRESS"),
        ("server 10.0.0.1/8:80", "server takes ADDRESS"),
        ("server fe80::1%eth0", "server takes ADDRESS"),
        ("host 10.0.0.1:80", "`10.0.0.1:80`: host takes ADDRESS, ADDRESS/LENGTH"),
        ("hook PRE_ROUTING", "`PRE_ROUTING`: no hook has this name: one of local_in, forward, local_out"),
        ("verdict dropped", "`dropped`: no verdict has this name: did you mean `drop`?"),
        ("why no_servic", "`no_servic`: no reason has this name: did you mean `no_service`?"),
        ("why send", "`send`: no walk ends so; `uvs trace --summary` counts it"),
        ("tcp & udp", "column 5 of the filter, `&`: `and` or `or` is missing before it"),
        ("\x1b[31m", "`'\\x1b[31m'`: one of client"),
        ("x" * 100, "column 1 of the filter, `xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx...`: one of"),
        ("x" * (TEXT_MAX + 1), f"a filter has at most {TEXT_MAX} characters, not {TEXT_MAX + 1}"),
        ("(" * 40 + "tcp" + ")" * 40, "column 33 of the filter, `(`: more than 32 parentheses and `not`s"),
        ("not " * 40 + "tcp", "more than 32 parentheses and `not`s within each other"),
        (
            " or ".join(["tcp"] * 33),
            f"the filter is too long: 65 conditions, and, or and not; at most {PROGRAM_MAX}",
        ),
        ("tcp or (" * 16 + "tcp" + ")" * 16, "the filter is nested too deeply: more than 16 conditions"),
    ],
)
def test_wrong(text: str, said: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_are_those_of_the_hook_path() -> None:
    assert {name.upper(): number for name, number in HOOKS.items()} == {h.name: int(h) for h in Hook}
    assert {name.upper(): number for name, number in VERDICTS.items()} == {v.name: int(v) for v in Verdict}
    for why in set(Why) - UNTOLD:
        (cond,) = program(parse(f"why {why.label}"))
        assert (cond.op, cond.number) == (Op.WHY, why)
