"""iptables-save's text, read."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from uvs.doctor.iptables_text import marks, parse
from uvs.doctor.ruleset import Packet, ends

SYN, ACK = frozenset({"syn"}), frozenset({"ack"})
PACKET = Packet(
    4, frozenset({"eth0"}), None, None, "192.0.2.100", 6, None, 80, "new", SYN, local=True
)  # a request


def dropped(rule: str, packet: Packet = PACKET, table: str = "filter", chain: str = "INPUT") -> bool | None:
    """Does a table with this rule stop the packet? None: not surely."""
    text = f"*{table}\n:{chain} ACCEPT [0:0]\n:EMPTY - [0:0]\n:DROPS - [0:0]\n-A DROPS -j DROP\n-A {chain} {rule}\nCOMMIT\n"
    hooks = ("prerouting", "input") if chain != "FORWARD" else ("prerouting", "forward")
    found = list(ends(parse(text, 4), hooks, 99, packet))
    return found[0].sure or None if found else False


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("-j DROP", True),
        ("-j REJECT --reject-with icmp-port-unreachable", True),
        ("-j LOG --log-prefix \"-j DROP\"", False),
        ("-j EMPTY", False),
        ("-j DROPS", True),
        ("-g DROPS", True),
        ("-i lo -j DROP", False),
        ("-i eth+ -j DROP", True),
        ("! -i lo -j DROP", True),
        ("-p tcp -j DROP", True),
        ("-p udp -j DROP", False),
        ("! -p udp -j DROP", True),
        ("-p 6 -j DROP", True),
        ("-d 192.0.2.0/24 -j DROP", True),
        ("! -d 192.0.2.0/24 -j DROP", False),
        ("-s 10.0.0.0/8 -j DROP", False),  # some clients' perhaps
        ("-p tcp -m tcp --dport 80 -j DROP", True),
        ("-p tcp -m tcp --dport 1:79 -j DROP", False),
        ("-p tcp -m tcp --dport :80 -j DROP", True),
        ("-p tcp -m multiport --dports 443,80:81 -j DROP", True),
        ("-p tcp -m tcp ! --dport 80 -j DROP", False),
        ("-p tcp -m multiport --dports http -j DROP", False),
        ("-m conntrack --ctstate NEW,UNTRACKED -j DROP", True),
        ("-m conntrack ! --ctstate NEW -j DROP", False),
        ("-m state --state INVALID -j DROP", False),
        ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", True),
        ("-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", False),
        ("-p tcp -m tcp --tcp-flags ALL NONE -j DROP", False),
        ("-m addrtype --dst-type LOCAL -j DROP", True),
        ("-m addrtype --dst-type BROADCAST -j DROP", False),
        ("-m comment --comment \"-j ACCEPT\" -j DROP", True),
        ("-m set --match-set bad src -j DROP", False),
        ("-m iprange --dst-range 192.0.2.1-192.0.2.200 -j DROP", True),
        ("-m limit --limit 5/sec -j DROP", False),
        ("-m mark --mark 0x1 -j DROP", False),
    ],
)  # fmt: skip
def test_rules(rule: str, expected: bool) -> None:
    assert dropped(rule) is expected


@pytest.mark.parametrize(
    ("table", "chain", "rule", "expected"),
    [
        ("nat", "PREROUTING", "-p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080", True),
        ("nat", "PREROUTING", "-p tcp -m tcp --dport 80 -j DNAT --to-destination 10.0.0.1", True),
        ("mangle", "PREROUTING", "-p tcp -m tcp --dport 80 -j MARK --set-xmark 0x7/0xffffffff", False),
        ("raw", "PREROUTING", "-j DROP", True),
        ("filter", "FORWARD", "-j DROP", True),
        ("filter", "OUTPUT", "-j DROP", False),
    ],
)
def test_tables(table: str, chain: str, rule: str, expected: bool) -> None:
    assert dropped(rule, PACKET, table, chain) is expected


def test_a_policy_and_counters() -> None:
    text = "*filter\n:INPUT DROP [12:345]\n[3:4] -A INPUT -j ACCEPT\n-A INPUT -p udp -j ACCEPT\nCOMMIT\n"
    (end,) = ends(parse(text, 4), ("input",), 99, PACKET)
    assert end.text == "iptables, table filter, INPUT: policy DROP"
    assert list(ends(parse(text, 6), ("input",), 99, PACKET)) == []  # another family's


def test_ours_are_known() -> None:
    text = "*security\n:INPUT ACCEPT [0:0]\n:UVS-INPUT - [0:0]\n-A INPUT -j UVS-INPUT\n-A UVS-INPUT -j NFQUEUE --queue-num 0\n"
    chains = parse(text, 4)
    assert [c.name for c in chains.values() if c.ours] == ["UVS-INPUT"]
    assert list(ends(chains, ("input",), 99, PACKET)) == []


def test_marks() -> None:
    text = "-A PREROUTING -j MARK --set-xmark 0x7/0xffffffff\n-A A -j MARK --set-mark 9\n-A B -m mark --mark 0x8 -j ACCEPT"
    assert marks(text) == {7, 9}


WORDS = ["-A", "INPUT", "-j", "DROP", "!", "-s", "-d", "10.0.0.0/8", "-p", "tcp", "--dport", "80", "1:x", "--tcp-flags",
         "SYN", "-m", "--comment", '"', "'", "-g", "-i", "eth+", "--ctstate", ":", "*", ":INPUT", "ACCEPT", "COMMIT"]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), max_size=5))
@example(
    ["-A INPUT -s no-address -j DROP", '-A INPUT -m comment --comment "', "-A", ":", "-A INPUT -j", ":INPUT"]
)
def test_whatever_is_said_is_at_worst_not_known(lines: list[str]) -> None:
    text = "\n".join(["*filter", ":INPUT ACCEPT [0:0]", *lines])
    list(ends(parse(text, 4), ("prerouting", "input"), 99, PACKET))
