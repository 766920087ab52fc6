"""Others who want the same packets: ip_vs itself, a second director, rules that a dead one left behind."""

from __future__ import annotations

from collections.abc import Iterator

from uvs.doctor.finding import HERE, Finding, Name, some
from uvs.doctor.firewall import rules
from uvs.doctor.host import Host


def check_stale(host: Host) -> Iterator[Finding]:
    """There is no bypass: with rules and without a director, packets of services are dropped."""
    chains = rules(host)
    if chains is None:
        return
    ours = [c for c in chains.values() if c.ours]
    alive = not isinstance(host.director(), str)
    if ours and not alive and not host.directors():
        tools = sorted({c.back_end for c in ours})
        by_nft = "nft delete table inet uvs"
        # Jumps go first: a chain that is jumped to cannot be removed.
        by_iptables = [f"{t}-save | grep -v UVS- | {t}-restore" for t in tools if t != "nft"]
        mend = "; ".join([*([by_nft] if "nft" in tools else []), *by_iptables])
        detail = (
            f"a director that is gone left its rules ({some(tools)}): packets of its services are dropped"
        )
        yield Finding(Name.STALE, "fail", f"{detail} until one is started", mend, HERE)
    elif alive and not ours:
        detail = "the director's rules are gone: it puts them back within a second, unless it cannot"
        yield Finding(
            Name.STALE, "warn", detail, "see the director's log: it names what the firewall's tools say"
        )
    else:
        yield Finding(Name.STALE, "ok", "there are rules of a director only if one runs")


def check_ip_vs(host: Host) -> Iterator[Finding]:
    """The kernel's own IPVS sits at the same hooks, and comes first."""
    if "ip_vs" not in host.names("/sys/module"):
        yield Finding(Name.IP_VS, "ok", "the kernel's own ip_vs is not loaded")
        return
    # Three lines of headings, then services and their servers (ip_vs_info_seq_show).
    listed = (host.read("/proc/net/ip_vs") or "").splitlines()[3:]
    if listed:
        detail = "the kernel's ip_vs has services here: both would take their packets"
        yield Finding(Name.IP_VS, "fail", detail, "ipvsadm -C", HERE)
    else:
        detail = (
            "the kernel's ip_vs is loaded, without services: programs outside `uvs exec` would speak to it"
        )
        yield Finding(Name.IP_VS, "note", detail, "modprobe -r ip_vs", HERE)


def check_directors(host: Host) -> Iterator[Finding]:
    """Two directors in one network namespace replace each other's rules."""
    found = host.directors()
    if len(found) > 1:
        pids = [str(pid) for pid, _ in found]
        detail = f"{len(found)} of them run here (PIDs {some(pids)}): each replaces the other's rules"
        yield Finding(Name.DIRECTORS, "fail", detail, f"kill {' '.join(pids[1:])}", HERE)
    else:
        yield Finding(Name.DIRECTORS, "ok", "not more than one runs here")
