"""Connection tracking: its table, and whether it is kept from what servers send."""

from __future__ import annotations

from collections.abc import Iterator

from uvs.doctor.finding import HERE, Finding, Name
from uvs.doctor.firewall import rules
from uvs.doctor.host import Host
from uvs.doctor.knobs import sysctl
from uvs.doctor.table import reals

ALMOST = 0.9  # of the table


def check_conntrack(host: Host) -> Iterator[Finding]:
    """When its table is full the kernel drops what it does not know yet, before the director sees it."""
    count = sysctl(host, "net.netfilter.nf_conntrack_count")
    most = sysctl(host, "net.netfilter.nf_conntrack_max")
    if count is None or not most:
        yield Finding(Name.CONNTRACK, "ok", "this kernel does not track connections")
        return
    detail = f"{count} of {most} entries are in use"
    mend = f"sysctl -w net.netfilter.nf_conntrack_max={4 * most}"
    if count >= most:
        yield Finding(Name.CONNTRACK, "fail", f"{detail}: the kernel drops what is new", mend, HERE)
    elif count >= ALMOST * most:
        yield Finding(Name.CONNTRACK, "warn", f"{detail}: soon the kernel drops what is new", mend, HERE)
    else:
        yield Finding(Name.CONNTRACK, "ok", detail)


def check_notrack(host: Host) -> Iterator[Finding]:
    """Replies of NAT servers are invalid to conntrack, since it has not seen their requests leave."""
    servers = [r for r in reals(host) if r.method == "nat" and not r.local]
    chains = rules(host) if servers else None
    if not chains:
        return
    ours = [c for c in chains.values() if c.ours]
    if not ours:
        return  # rivals.check_stale tells of rules that are gone
    if any(rule.verdict == "notrack" for c in ours for rule in c.rules):
        yield Finding(Name.NOTRACK, "ok", "conntrack is kept from what servers send")
    else:
        detail = (
            "replies of NAT servers pass through conntrack, to which they are invalid: a rule may drop them"
        )
        mend = "use a kernel with xt_CT or nft's notrack, or accept INVALID in FORWARD from the servers"
        yield Finding(Name.NOTRACK, "warn", detail, mend)
