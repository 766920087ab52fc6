"""Connection tracking: a full table, and replies that it must not see."""

from __future__ import annotations

import pytest
from support.machine import OUTPUTS, VIP, Fault, Machine, check, directing, of, real, service, with_files

NAT = service(VIP, 80, real("nat", "198.51.100.11"))
NO_NOTRACK = {("iptables-save",): OUTPUTS["iptables-save",].replace("CT --notrack", "ACCEPT")}
FAULTS: list[Fault] = [
    ("full", with_files(net__netfilter__nf_conntrack_count="1000"),
     "conntrack full", "fail", "1000 of 1000", "sysctl -w net.netfilter.nf_conntrack_max=4000"),
    ("almost full", with_files(net__netfilter__nf_conntrack_count="900"),
     "conntrack full", "warn", "900 of 1000", "nf_conntrack_max=4000"),
    ("not full", Machine(), "conntrack full", "ok", "10 of 1000", None),
    ("no conntrack", with_files(net__netfilter__nf_conntrack_max="0"), "conntrack full", "ok", "does not track", None),
    ("kept from replies", directing(NAT), "notrack", "ok", "kept", None),
    ("not kept from replies", directing(NAT, outputs=OUTPUTS | NO_NOTRACK),
     "notrack", "warn", "they are invalid", "xt_CT"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda f: f[0])
def test_a_fault_is_named_with_what_mends_it(fault: Fault) -> None:
    check(*fault[1:])


@pytest.mark.parametrize(
    "machine", [directing(service(VIP, 80, real("dr", "192.0.2.11"))), directing(NAT, outputs={})]
)
def test_where_it_does_not_matter_or_is_not_known(machine: Machine) -> None:
    assert of(machine, "notrack") == []
