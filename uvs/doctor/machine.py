"""The machine itself: privileges, what its kernel has, its clock, its network cards."""

from __future__ import annotations

from collections.abc import Iterator

from uvs.doctor.finding import HERE, Finding, Name
from uvs.doctor.host import Host
from uvs.doctor.knobs import devices, sysctl

# include/uapi/linux/capability.h
CAP_NET_ADMIN = 12
CAP_NET_RAW = 13


def capabilities(host: Host) -> int:
    """The effective capabilities of this process as a bit mask (proc(5), CapEff)."""
    for line in (host.read("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def lacks_all_privileges(host: Host) -> bool:
    """Is this an ordinary user, who may do nothing of what a director does?"""
    return not capabilities(host) & (1 << CAP_NET_ADMIN | 1 << CAP_NET_RAW)


def check_privileges(host: Host) -> Iterator[Finding]:
    """CAP_NET_ADMIN for queues, rules and routes; CAP_NET_RAW for sending."""
    have = capabilities(host)
    wanted = {"CAP_NET_ADMIN": CAP_NET_ADMIN, "CAP_NET_RAW": CAP_NET_RAW}
    lacking = [name for name, bit in wanted.items() if not have >> bit & 1]
    if not lacking:
        yield Finding(Name.PRIVILEGES, "ok", "CAP_NET_ADMIN and CAP_NET_RAW are there")
        return
    works, _ = host.user_namespace()
    detail = f"{' and '.join(lacking)} missing: a director of this host cannot run"
    if works:
        yield Finding(Name.PRIVILEGES, "warn", f"{detail}; a lab can (uvs lab demo)", "sudo uvs run", HERE)
    else:
        yield Finding(Name.PRIVILEGES, "fail", detail, "run as root: sudo uvs doctor, sudo uvs run")


def check_queue(host: Host) -> Iterator[Finding]:
    """NFQUEUE, by binding a queue."""
    works, why = host.bind_queue()
    if works:
        yield Finding(Name.NFQUEUE, "ok", "a queue can be bound")
    else:
        yield Finding(
            Name.NFQUEUE, "fail", f"no queue can be bound: {why}", *_module(host, "nfnetlink_queue")
        )


def _module(host: Host, name: str) -> tuple[str, str | None]:
    """What brings a module: the command and where, or advice."""
    if host.has_module(name):
        return f"modprobe {name}", HERE
    return "use a kernel that has it, such as Debian's linux-image-amd64", None


def check_rules(host: Host) -> Iterator[Finding]:
    """A rule back end: one that works is enough."""
    ends = host.rule_back_ends()
    good = [(name, about) for name, works, about in ends if works]
    bad = "; ".join(f"{name}: {why}" for name, works, why in ends if not works)
    if good:
        (best, about), others = good[0], ", ".join(name for name, _ in good[1:])
        detail = f"{best}: {about}" if about else best
        detail += f"; also usable: {others}" if others else ""
        yield Finding(Name.BACK_END, "ok", detail + (f"; not usable: {bad}" if bad else ""))
    else:
        yield Finding(
            Name.BACK_END,
            "fail",
            f"nothing can divert packets: {bad or 'no back end known'}",
            "apt-get install nftables iptables ipset, on a kernel with nft's queue or xt_NFQUEUE and ip_set",
        )


def check_packet_socket(host: Host) -> Iterator[Finding]:
    """AF_PACKET, by which packets leave."""
    works, why = host.packet_socket()
    if works:
        yield Finding(Name.AF_PACKET, "ok", "a packet socket can be opened")
    else:
        yield Finding(Name.AF_PACKET, "fail", f"no packet socket: {why}", *_module(host, "af_packet"))


def check_user_namespaces(host: Host) -> Iterator[Finding]:
    """User namespaces, for a lab without root, and what forbids them."""
    found = False
    for key, forbidding, who in (
        ("kernel.unprivileged_userns_clone", 0, "Debian's switch"),
        ("user.max_user_namespaces", 0, "the limit"),
        ("kernel.apparmor_restrict_unprivileged_userns", 1, "AppArmor"),
    ):
        value = sysctl(host, key)
        if value == forbidding:
            found = True
            yield Finding(
                Name.USER_NAMESPACES,
                "warn",
                f"{key} is {value}: {who} forbids a lab without root (root may: sudo uvs lab demo)",
                f"sysctl -w {key}={15000 if 'max' in key else 1 - forbidding}",
                HERE,
            )
    if found:
        return
    works, why = host.user_namespace()
    if works:
        yield Finding(Name.USER_NAMESPACES, "ok", "a lab needs no root")
    else:
        yield Finding(
            Name.USER_NAMESPACES, "warn", f"none can be made: {why}", "run labs as root: sudo uvs lab demo"
        )


def check_ipip(host: Host) -> Iterator[Finding]:
    """ipip, for this machine as a real server of TUN services."""
    if host.has_module("ipip") and host.has_module("ip6_tunnel"):
        yield Finding(Name.IPIP, "ok", "this kernel can end tunnels itself, as a TUN server")
    elif "tun" in host.names("/dev/net"):
        detail = "this kernel lacks ipip or ip6_tunnel: as a TUN server it needs uvs decap"
        yield Finding(Name.IPIP, "note", detail, "uvs decap", HERE)
    else:
        detail = "this kernel lacks ipip, and /dev/net/tun for uvs decap: it cannot be a TUN server"
        yield Finding(Name.IPIP, "note", detail, "modprobe tun", HERE)


# Read without a system call (arch/*/include/asm/vdso/); other clock sources cost each packet a microsecond.
QUICK_CLOCKS = {
    "tsc",
    "kvm-clock",
    "hyperv_clocksource_tsc_page",
    "arch_sys_counter",
    "timebase",
    "stp",
    "riscv_clocksource",
}


def check_clock(host: Host) -> Iterator[Finding]:
    """Time: of a clock that is quick to read, as fast as real time, and the same as other hosts'."""
    source = host.read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    rate = host.environment("UVS_CLOCK_RATE") or "1"
    found = False
    if rate != "1":
        found = True
        detail = f"UVS_CLOCK_RATE is {rate}: a director started so has all time-outs that much shorter"
        yield Finding(Name.CLOCK, "warn", detail, "unset UVS_CLOCK_RATE", HERE)
    if source and source not in QUICK_CLOCKS:
        found = True
        detail = f"the clock source is {source}, slow to read: each packet costs more"
        yield Finding(Name.CLOCK, "note", detail, "boot with clocksource=tsc, if the machine's is stable")
    if host.synchronized() is False:
        found = True
        detail = "this host's clock follows no other: times in logs differ (time-outs do not depend on it)"
        yield Finding(Name.CLOCK, "note", detail, "timedatectl set-ntp true", HERE)
    if not found:
        yield Finding(Name.CLOCK, "ok", "quick to read, and in step")


def check_offload(host: Host) -> Iterator[Finding]:
    """Network cards: LRO makes packets that cannot be sent on; without GRO each segment is handled alone."""
    cards = [d for d in devices(host) if host.names(f"/sys/class/net/{d}/device")]
    merging = [d for d in cards if "lro" in host.offloads(d)]
    single = [d for d in cards if "gro" not in host.offloads(d)]
    for device in merging:
        detail = (
            f"{device} merges packets for good (LRO): they are too large to be sent on, or sent on wrongly"
        )
        yield Finding(Name.OFFLOAD, "warn", detail, f"ethtool -K {device} lro off", HERE)
    for device in single:
        detail = (
            f"{device} does not merge packets for a while (GRO): bulk transfers cost several times as much"
        )
        yield Finding(Name.OFFLOAD, "note", detail, f"ethtool -K {device} gro on", HERE)
    if not merging + single:
        yield Finding(Name.OFFLOAD, "ok", "no network card has LRO on or GRO off")
