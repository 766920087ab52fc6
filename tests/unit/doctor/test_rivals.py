"""Others who want the same packets."""

from __future__ import annotations

import pytest
from support.machine import GOOD_FILES, OUTPUTS, Fault, Machine, check, of

HEAD = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port"
MODULE = {"/sys/module/ip_vs/refcnt": "0", "/proc/net/ip_vs": HEAD}
SERVICES = {"/proc/net/ip_vs": HEAD + "\nTCP  C0000264:0050 rr"}
NFT = {
    ("nft", "-j", "list", "tables"): '{"nftables": [{"table": {"family": "inet", "name": "uvs", "handle": 1}}]}',
    ("nft", "-j", "-t", "list", "table", "inet", "uvs"):
        '{"nftables": [{"chain": {"family": "inet", "table": "uvs", "name": "input", "handle": 3, "hook": "input", "prio": 99}}]}',
    ("iptables-save",): "",
}  # fmt: skip
GONE = "no director listens on /run/x"
FAULTS: list[Fault] = [
    ("rules of a dead director", Machine(told=GONE, processes=[]),
     "stale rules", "fail", "a director that is gone left its rules (iptables)",
     "iptables-save | grep -v UVS- | iptables-restore"),
    ("rules of a dead director, nft", Machine(told=GONE, processes=[], outputs=OUTPUTS | NFT),
     "stale rules", "fail", "(nft)", "nft delete table inet uvs"),
    ("a director with another socket", Machine(told=GONE), "stale rules", "ok", "only if one runs", None),
    ("no director, no rules", Machine(told=GONE, processes=[], outputs=OUTPUTS | {("iptables-save",): ""}),
     "stale rules", "ok", "", None),
    ("a director without rules", Machine(outputs=OUTPUTS | {("iptables-save",): ""}),
     "stale rules", "warn", "rules are gone", "log"),
    ("no ip_vs", Machine(), "ip_vs", "ok", "not loaded", None),
    ("ip_vs", Machine(files=GOOD_FILES | MODULE), "ip_vs", "note", "without services", "modprobe -r ip_vs"),
    ("ip_vs with services", Machine(files=GOOD_FILES | MODULE | SERVICES), "ip_vs", "fail", "both", "ipvsadm -C"),
    ("one director", Machine(), "two directors", "ok", "not more than one", None),
    ("two directors", Machine(processes=[(100, "uvs run"), (200, "uvs run --queue-num 9")]),
     "two directors", "fail", "2 of them run here (PIDs 100, 200)", "kill 200"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_rules_that_are_not_to_be_read() -> None:
    assert of(Machine(outputs={}), "stale rules") == []
