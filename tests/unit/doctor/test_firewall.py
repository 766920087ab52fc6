"""The user's own rules in front of the director, and marks that nobody sets."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.machine import (
    GOOD_FILES,
    OUTPUTS,
    VIP,
    VIP6,
    Fault,
    Machine,
    check,
    directing,
    of,
    real,
    service,
)

NAT = service(VIP, 80, real("nat", "198.51.100.11"))
NAT6 = service(VIP6, 80, real("nat", "2001:db8:b::11"))
UDP = service(VIP, 53, real("dr", "192.0.2.11", 53), protocol=17)
MARK = service(mark=7)
EVERY = service(VIP, 0, real("dr", "192.0.2.11", 0))


def table(name: str, chain: str, *rules: str, policy: str = "ACCEPT") -> str:
    """A table of iptables-save."""
    return "\n".join(
        [f"*{name}", f":{chain} {policy} [0:0]", *(f"-A {chain} {r}" for r in rules), "COMMIT", ""]
    )


def behind(text: str, *services: object, program: str = "iptables-save", loose: str = "1") -> Machine:
    """A director behind these rules, beside its own."""
    machine = directing(*(services or (NAT,)))  # type: ignore[arg-type]
    outputs = OUTPUTS | {(program,): OUTPUTS["iptables-save",] + text}
    loosely = {"/proc/sys/net/netfilter/nf_conntrack_tcp_loose": loose}
    return replace(machine, outputs=outputs, files=GOOD_FILES | loosely)


def nft(text: str) -> Machine:
    """One table of nft's, `inet user`."""
    listed = {
        (
            "nft",
            "-j",
            "list",
            "tables",
        ): '{"nftables": [{"table": {"family": "inet", "name": "user", "handle": 1}}]}',
        ("nft", "-j", "list", "table", "inet", "user"): text,
        ("nft", "-a", "-t", "list", "table", "inet", "user"): "\t\ttcp dport 80 drop # handle 9\n",
    }
    return replace(directing(NAT), outputs=OUTPUTS | listed)


WHERE = '"family": "inet", "table": "user"'
DROPPING = (
    '{"nftables": [{"chain": {%s, "name": "in", "handle": 3, "hook": "%s", "prio": 0, "policy": "accept"}},'
    ' {"rule": {%s, "chain": "in", "handle": 9, "expr": [{"drop": null}]}}]}'
)
FAULTS: list[Fault] = [
    ("none", directing(NAT, NAT6, UDP, MARK, EVERY), "firewall", "ok", "no rule", None),
    ("a drop", behind(table("filter", "INPUT", "-p tcp -m tcp --dport 80 -j DROP")),
     "firewall", "fail", "iptables, table filter, INPUT: -A INPUT -p tcp -m tcp --dport 80 -j DROP: drops requests to TCP",
     "iptables -t filter -I INPUT -d 192.0.2.100 -p tcp --dport 80 -j ACCEPT"),
    ("a policy", behind(table("filter", "INPUT", policy="DROP")),
     "firewall", "fail", "policy DROP", "iptables -t filter -I INPUT -d 192.0.2.100 -p tcp"),
    ("a policy that some pass", behind(table("filter", "INPUT", "-s 10.0.0.0/8 -j ACCEPT", policy="DROP")),
     "firewall", "warn", "unless a rule before it accepts", "-I INPUT -d 192.0.2.100"),
    ("a policy that all pass", behind(table("filter", "INPUT", "-p tcp -m tcp --dport 80 -j ACCEPT", policy="DROP")),
     "firewall", "ok", "no rule", None),
    ("NEW must be SYN", behind(table("filter", "INPUT", "-p tcp -m tcp ! --syn -m state --state NEW -j DROP".replace(
        "! --syn", "! --tcp-flags FIN,SYN,RST,ACK SYN"))),
     "firewall", "fail", "after the SYN (they are NEW", "-I INPUT -d 192.0.2.100 -p tcp --dport 80 -j ACCEPT"),
    ("conntrack that is not loose", behind(table("filter", "INPUT", "-m state --state INVALID -j DROP"), loose="0"),
     "firewall", "fail", "INVALID: nf_conntrack_tcp_loose is 0", "-I INPUT"),
    ("conntrack that is loose", behind(table("filter", "INPUT", "-m state --state INVALID -j DROP")),
     "firewall", "ok", "", None),
    ("notrack of requests", behind(
        table("raw", "PREROUTING", "-p tcp -j NOTRACK")
        + table("filter", "INPUT", "-m state --state NEW,ESTABLISHED -j ACCEPT", policy="DROP")),
     "firewall", "fail", "policy DROP", "-I INPUT"),
    ("FORWARD that does not accept UNTRACKED", behind(
        table("filter", "FORWARD", "-m state --state NEW,ESTABLISHED -j ACCEPT", policy="DROP")),
     "firewall", "fail", "drops replies of 198.51.100.11:80 (UNTRACKED)",
     "iptables -t filter -I FORWARD -m conntrack --ctstate UNTRACKED -j ACCEPT"),
    ("the same, of no concern to DR", behind(table("filter", "FORWARD", policy="DROP"), UDP),
     "firewall", "ok", "", None),
    ("a redirection", behind(table("nat", "PREROUTING", "-p tcp -m tcp --dport 80 -j REDIRECT --to-ports 8080")),
     "firewall", "fail", "takes away requests", "iptables -t nat -I PREROUTING -d 192.0.2.100 -p tcp --dport 80"),
    ("a published port of Docker", behind(
        "*nat\n:PREROUTING ACCEPT [0:0]\n:DOCKER - [0:0]\n-A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER\n"
        "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination 172.17.0.2:80\nCOMMIT\n"),
     "firewall", "fail", "-A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT", "iptables -t nat -I PREROUTING -d"),
    ("a policy but for the inside", behind(table("filter", "INPUT", "-i eth1.7 -j ACCEPT", policy="DROP")),
     "firewall", "fail", "policy DROP", "-I INPUT"),
    ("UDP", behind(table("filter", "INPUT", "-p udp -j DROP"), UDP, NAT),
     "firewall", "fail", "drops requests to UDP 192.0.2.100:53:".rstrip(":"), "--dport 53 -j ACCEPT"),
    ("every port", behind(table("filter", "INPUT", "-j DROP"), EVERY),
     "firewall", "fail", "requests to TCP 192.0.2.100:0", "-I INPUT -d 192.0.2.100 -j ACCEPT"),
    ("IPv6", behind(table("filter", "INPUT", "-j DROP"), NAT6, program="ip6tables-save"),
     "firewall", "fail", "ip6tables, table filter, INPUT: -A INPUT -j DROP", "ip6tables -t filter -I INPUT -d 2001:db8:a::100"),
    ("nft", nft(DROPPING % (WHERE, "input", WHERE)),
     "firewall", "fail", "nft, table inet user, in: tcp dport 80 drop: drops requests",
     "nft insert rule inet user in ip daddr 192.0.2.100 tcp dport 80 accept"),
    ("nft, replies", nft(DROPPING % (WHERE, "forward", WHERE)),
     "firewall", "fail", "drops replies", "nft insert rule inet user in ct state untracked accept"),
    ("not to be read", directing(NAT, outputs={}), "firewall", "note", "ask as root", "sudo uvs doctor"),
    ("a mark that nobody sets", directing(MARK), "fwmark", "warn", "mark 7", "--set-mark 7"),
    ("a mark of iptables", behind(table("mangle", "PREROUTING", "-j MARK --set-xmark 0x7/0xffffffff"), MARK),
     "fwmark", "ok", "sets mark 7", None),
    ("a mark of nft", directing(MARK, outputs=OUTPUTS | {("nft", "-j", "-t", "list", "ruleset"): """{"nftables": [
        {"rule": {"expr": [{"mangle": {"key": {"meta": {"key": "mark"}}, "value": 7}}]}}]}"""}),
     "fwmark", "ok", "sets mark 7", None),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_the_legacy_tables_are_asked_only_if_there_are_some() -> None:
    """Asked by name they come into being."""
    drop = table("filter", "INPUT", "-j DROP")
    machine = replace(directing(NAT), outputs=OUTPUTS | {("iptables-legacy-save",): drop})
    assert [f.state for f in of(machine, "firewall")] == ["ok"]
    there = replace(machine, files=GOOD_FILES | {"/proc/net/ip_tables_names": "filter"})
    assert [f.state for f in of(there, "firewall")] == ["fail"]


def test_rules_that_come_after_the_director_s_are_not_in_front() -> None:
    """Without the table security its rules are in mangle, the last there."""
    ours = OUTPUTS["iptables-save",].replace("*security", "*mangle")
    for rules, state in (
        (table("filter", "INPUT", "-j DROP"), "ok"),
        (table("mangle", "PREROUTING", "-j DROP"), "fail"),
    ):
        machine = replace(directing(NAT), outputs=OUTPUTS | {("iptables-save",): ours + rules})
        assert {f.state for f in of(machine, "firewall")} == {state}
    first = ours.replace("-A INPUT -j UVS-INPUT", "-A INPUT -j DROP\n-A INPUT -j UVS-INPUT")
    machine = replace(directing(NAT), outputs=OUTPUTS | {("iptables-save",): first})
    assert [f.state for f in of(machine, "firewall")] == ["fail"]


def test_one_command_mends_it_for_all_services() -> None:
    services = [service(VIP, port, real("dr", "192.0.2.11", port)) for port in (80, 443)]
    (finding,) = of(behind(table("filter", "INPUT", "-j DROP"), *services), "firewall")
    assert finding.mend == "; ".join(
        f"iptables -t filter -I INPUT -d 192.0.2.100 -p tcp --dport {port} -j ACCEPT" for port in (80, 443)
    )


def test_marks_of_a_host_whose_rules_are_not_to_be_read() -> None:
    assert of(directing(MARK, outputs={}), "fwmark") == []
