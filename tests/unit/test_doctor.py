"""`uvs doctor`: each fault that is planted is named, with the command that mends it."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field, replace

import pytest

from uvs import doctor

ROOT = "Name:\tuvs\nCapEff:\t000001ffffffffff\n"
NOBODY = "Name:\tuvs\nCapEff:\t0000000000000000\n"
YES = (True, "")

GOOD_FILES = {
    "/proc/self/status": ROOT,
    "/proc/sys/net/ipv4/ip_forward": "1",
    "/proc/sys/net/ipv6/conf/all/forwarding": "1",
    "/proc/sys/net/ipv4/conf/all/rp_filter": "0",
    "/proc/sys/net/ipv4/conf/eth0/rp_filter": "2",
    "/proc/sys/net/ipv4/conf/eth1.7/rp_filter": "0",
    "/proc/sys/net/ipv4/conf/all/accept_local": "1",
    "/proc/sys/user/max_user_namespaces": "15000",
}
WITHOUT_RIGHTS = GOOD_FILES | {"/proc/self/status": NOBODY}


@dataclass
class Machine:
    """A machine in which all is well, until a test plants a fault."""

    files: dict[str, str] = field(default_factory=lambda: dict(GOOD_FILES))
    queue: doctor.Attempt = YES
    back_ends: list[tuple[str, bool, str]] = field(default_factory=lambda: [("nft", True, "")])
    packet: doctor.Attempt = YES
    userns: doctor.Attempt = YES
    modules: frozenset[str] = frozenset({"ipip", "ip6_tunnel", "nfnetlink_queue", "af_packet"})
    tun: bool = True

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, path: str) -> list[str]:
        if path == "/dev/net":
            return ["tun"] if self.tun else []
        return sorted({p[len(path) + 1 :].split("/")[0] for p in self.files if p.startswith(path + "/")})

    def bind_queue(self) -> doctor.Attempt:
        return self.queue

    def rule_back_ends(self) -> list[tuple[str, bool, str]]:
        return self.back_ends

    def packet_socket(self) -> doctor.Attempt:
        return self.packet

    def user_namespace(self) -> doctor.Attempt:
        return self.userns

    def has_module(self, name: str) -> bool:
        return name in self.modules


def with_files(**changes: str) -> Machine:
    """A good machine whose sysctls (dots as __) are changed."""
    paths = {"/proc/sys/" + k.replace("__", "/"): v for k, v in changes.items()}
    return Machine(files=GOOD_FILES | paths)


def test_a_good_machine_has_no_findings_but_ok() -> None:
    findings = doctor.examine(Machine())
    assert {f.state for f in findings} == {"ok"}
    assert len({f.name for f in findings}) == len(doctor.CHECKS) + 1  # forwarding has two


# what is wrong, the machine, finding's name, its state, words of the detail, words of the mending
FAULTS = [
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
    ("no forwarding", with_files(net__ipv4__ip_forward="0"),
     "IPv4 forwarding", "fail", "net.ipv4.ip_forward is 0", "sysctl -w net.ipv4.ip_forward=1"),
    ("no IPv6 forwarding", with_files(net__ipv6__conf__all__forwarding="0"),
     "IPv6 forwarding", "warn", "is 0", "sysctl -w net.ipv6.conf.all.forwarding=1"),
    ("rp_filter of one device", with_files(**{"net__ipv4__conf__eth1.7__rp_filter": "1"}),
     "rp_filter", "warn", "strict on eth1.7:", "sysctl -w net.ipv4.conf.eth1/7.rp_filter=2"),
    ("rp_filter everywhere", with_files(net__ipv4__conf__all__rp_filter="1"),
     "rp_filter", "warn", "strict on eth1.7:",
     "net.ipv4.conf.all.rp_filter=2 net.ipv4.conf.eth1/7.rp_filter=2"),
    ("accept_local", with_files(net__ipv4__conf__all__accept_local="0"),
     "accept_local", "note", "own DR or TUN", "sysctl -w net.ipv4.conf.all.accept_local=1"),
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
]  # fmt: skip


@pytest.mark.parametrize(("machine", "name", "state", "detail", "mend"), [f[1:] for f in FAULTS],
                         ids=[f[0] for f in FAULTS])  # fmt: skip
def test_a_fault_is_named_with_what_mends_it(
    machine: Machine, name: str, state: str, detail: str, mend: str | None
) -> None:
    findings = [f for f in doctor.examine(machine) if f.name == name]
    assert len(findings) == 1
    (finding,) = findings
    assert finding.state == state
    assert detail in finding.detail
    assert finding.mend is None if mend is None else mend in (finding.mend or "")


def test_a_machine_without_ipv6_is_no_fault() -> None:
    machine = Machine()
    del machine.files["/proc/sys/net/ipv6/conf/all/forwarding"]
    states = {f.name: f.state for f in doctor.examine(machine)}
    assert states["IPv6 forwarding"] == "note"
    assert "fail" not in states.values()


def test_the_report_shows_the_mending_below_its_finding() -> None:
    good = doctor.Finding("a", "ok", "fine", "not shown")
    bad = doctor.Finding("b", "fail", "broken", "mend b")
    assert doctor.report([good, bad], colour=False) == "ok    a: fine\nfail  b: broken\n      -> mend b"


@pytest.mark.parametrize(("fault", "status"), [(None, 0), ((False, "no"), 1)])
def test_exit_status_and_json(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    fault: doctor.Attempt | None,
    status: int,
) -> None:
    machine = Machine() if fault is None else replace(Machine(), queue=fault)
    monkeypatch.setattr(doctor, "System", lambda: machine)
    assert doctor.main(argparse.Namespace(json=True)) == status
    queue = next(f for f in json.loads(capsys.readouterr().out) if f["name"] == "NFQUEUE")
    assert queue["state"] == ("ok" if status == 0 else "fail")


def test_accept_local_of_every_device_is_enough() -> None:
    """The kernel takes either (IN_DEV_ACCEPT_LOCAL)."""
    each = {f"/proc/sys/net/ipv4/conf/{device}/accept_local": "1" for device in ("eth0", "eth1.7")}
    for files, state in ((each, "ok"), (dict([*each.items()][:1]), "note")):
        machine = Machine(files=GOOD_FILES | {"/proc/sys/net/ipv4/conf/all/accept_local": "0"} | files)
        assert [f.state for f in doctor.examine(machine) if f.name == "accept_local"] == [state]
