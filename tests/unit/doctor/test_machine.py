"""Faults of the machine itself: privileges, kernel, clock, network cards."""

from __future__ import annotations

import pytest
from support.machine import GOOD_FILES, NOBODY, Fault, Machine, check, of, with_files

WITHOUT_RIGHTS = GOOD_FILES | {"/proc/self/status": NOBODY}
CLOCK = "/sys/devices/system/clocksource/clocksource0/current_clocksource"
FAULTS: list[Fault] = [
    ("no rights, no userns", Machine(files=WITHOUT_RIGHTS, userns=(False, "EPERM")),
     "privileges", "fail", "CAP_NET_ADMIN and CAP_NET_RAW missing", "sudo uvs run"),
    ("no rights, userns", Machine(files=WITHOUT_RIGHTS),
     "privileges", "warn", "a lab can", "sudo uvs run"),
    ("only NET_ADMIN", Machine(files=GOOD_FILES | {"/proc/self/status": "CapEff:\t0000000000001000"}),
     "privileges", "warn", "CAP_NET_RAW missing", "sudo"),
    ("queue module at hand", Machine(queue=(False, "Protocol not supported")),
     "NFQUEUE", "fail", "Protocol not supported", "modprobe nfnetlink_queue"),
    ("no queue at all", Machine(queue=(False, "no"), modules=frozenset()),
     "NFQUEUE", "fail", "no queue can be bound", "kernel that has it"),
    ("no back end", Machine(back_ends=[("nft", False, "no queue"), ("iptables", False, "not installed")]),
     "rule back end", "fail", "nft: no queue; iptables: not installed", "apt-get install"),
    ("one back end of two", Machine(back_ends=[("nft", False, "no queue"), ("iptables", True, "table mangle")]),
     "rule back end", "ok", "iptables: table mangle; not usable: nft: no queue", None),
    ("both back ends", Machine(back_ends=[("nft", True, ""), ("iptables", True, "table security")]),
     "rule back end", "ok", "nft; also usable: iptables", None),
    ("no packet socket", Machine(packet=(False, "Address family not supported by protocol")),
     "AF_PACKET", "fail", "Address family not supported", "modprobe af_packet"),
    ("Debian's switch", with_files(kernel__unprivileged_userns_clone="0"),
     "user namespaces", "warn", "Debian's switch forbids", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("limit", with_files(user__max_user_namespaces="0"),
     "user namespaces", "warn", "the limit forbids", "sysctl -w user.max_user_namespaces=15000"),
    ("AppArmor", with_files(kernel__apparmor_restrict_unprivileged_userns="1"),
     "user namespaces", "warn", "AppArmor forbids", "kernel.apparmor_restrict_unprivileged_userns=0"),
    ("userns by something else", Machine(userns=(False, "unshare failed: Operation not permitted")),
     "user namespaces", "warn", "Operation not permitted", "sudo uvs lab demo"),
    ("no ipip", Machine(modules=frozenset({"ip6_tunnel"})), "ipip", "note", "lacks ipip", "uvs decap"),
    ("no ipip, no tun", Machine(modules=frozenset(), tun=False),
     "ipip", "note", "/dev/net/tun", "modprobe tun"),
    ("a slow clock", Machine(files=GOOD_FILES | {CLOCK: "hpet"}), "clock", "note", "hpet, slow to read", "tsc"),
    ("a clock that follows none", Machine(in_step=False), "clock", "note", "follows no other", "timedatectl"),
    ("a clock of tests", Machine(variables={"UVS_CLOCK_RATE": "20"}), "clock", "warn", "UVS_CLOCK_RATE is 20", "unset"),
    ("LRO", Machine(merging=frozenset({"lro", "gro"})), "offload", "warn", "eth0 merges", "ethtool -K eth0 lro off"),
    ("no GRO", Machine(merging=frozenset()), "offload", "note", "(GRO)", "ethtool -K eth0 gro on"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


def test_only_network_cards_matter() -> None:
    """veth and the like have neither a device behind them nor LRO."""
    machine = Machine(merging=frozenset())
    del machine.files["/sys/class/net/eth0/device/vendor"]
    assert [f.state for f in of(machine, "offload")] == ["ok"]


def test_a_clock_of_which_nothing_is_known() -> None:
    machine = Machine(in_step=None)
    del machine.files[CLOCK]
    assert [f.state for f in of(machine, "clock")] == ["ok"]
