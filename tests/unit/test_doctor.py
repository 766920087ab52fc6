"""`uvs doctor`: each fault that is planted is named, with the command that mends it."""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from support.control import running

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
QUEUE: dict[str, int | str | None] = {
    "queue": 1, "class": "tcp", "packets": 90, "fast": 80, "slow": 10, "lost": 0, "cut": 0, "refused": 0,
    "unsaid": 0, "errors": 0, "dropped": 0, "waiting": 3,
}  # fmt: skip
TABLE = {"conns": 5, "templates": 1, "dests": 2, "services": 1, "conn_max": 1024, "full": 0}
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
    counters: doctor.Counters | str = field(default_factory=lambda: doctor.Counters([QUEUE], TABLE))

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

    def director(self) -> doctor.Counters | str:
        return self.counters


def counted(queue: dict[str, int | str | None], **table: int) -> Machine:
    """A good machine whose director has counted what else would be 0."""
    return Machine(counters=doctor.Counters([QUEUE, QUEUE | queue], TABLE | table))


def with_files(**changes: str) -> Machine:
    """A good machine whose sysctls (dots as __) are changed."""
    paths = {"/proc/sys/" + k.replace("__", "/"): v for k, v in changes.items()}
    return Machine(files=GOOD_FILES | paths)


def test_a_good_machine_has_no_findings_but_ok() -> None:
    findings = doctor.examine(Machine())
    assert {f.state for f in findings} == {"ok"}
    assert (
        len({f.name for f in findings}) == len(doctor.CHECKS) + 2
    )  # forwarding has two, so has the director


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
    ("no director", Machine(counters="no director listens on /run/x"),
     "director", "note", "no director listens on /run/x", None),
    ("no room in the socket", counted({"lost": 10, "dropped": 10}),
     "queue dropping", "warn", "queue 1 (tcp): 10 of 100 packets found no room", "net.core.rmem_max"),
    ("no room, in a user namespace", counted({"lost": 10, "dropped": None, "waiting": None}),
     "queue dropping", "warn", "10 of 100 packets found no room", "uvs run --queues N"),
    ("no room, every packet by Python", counted({"class": "all", "lost": 1, "dropped": 1}),
     "queue dropping", "warn", "queue 1 (all): 1 of 91 packets", "uvs run --driver native"),
    ("queue full", counted({"dropped": 7}),
     "queue dropping", "warn", "7 packets found the queue full", "uvs run --queues N"),
    ("cut", counted({"cut": 2}), "queue dropping", "warn", "2 of 90 packets handed over in part", "smaller datagrams"),
    ("not sent", counted({"refused": 2}), "queue dropping", "warn", "kernel refused", "log"),
    ("no verdict", counted({"unsaid": 2}), "queue dropping", "warn", "verdict", "net.core.wmem_max"),
    ("the director failed", counted({"errors": 2}), "queue dropping", "warn", "2 of 90 packets dropped", "log"),
    ("table full", counted({}, full=4),
     "table full", "warn", "4 times: 9 of 1024 records", "uvs run --conn-max 2048"),
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


def test_each_loss_of_each_queue_is_told() -> None:
    """Packets that found the queue full have no number, so that no gap tells of them."""
    worse = QUEUE | {"lost": 3, "dropped": 10, "cut": 1}
    machine = Machine(counters=doctor.Counters([worse, worse | {"queue": 2}], TABLE))
    found = [f.detail for f in doctor.examine(machine) if f.name == "queue dropping"]
    assert [detail.split(" (")[0] for detail in found] == ["queue 1"] * 3 + ["queue 2"] * 3
    assert "3 of 93 packets found no room" in found[0]
    assert "7 packets found the queue full" in found[1]


def test_the_machine_s_own_director_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UVS_SOCKET", str(tmp_path / "control.sock"))
    assert "no director listens" in str(doctor.System().director())
    with running(tmp_path) as director:
        director.ipvs.queues = lambda: [QUEUE]
        counters = doctor.System().director()
        assert isinstance(counters, doctor.Counters)
        assert counters.queues == [QUEUE]
        assert counters.table == director.ipvs.table.info() | {"waiting": 0, "waited": 0}
