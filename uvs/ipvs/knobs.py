"""What each of IPVS's sysctls is: default, range, meaning (ip_vs_ctl.c, vs_vars)."""

from __future__ import annotations

from dataclasses import dataclass

from uvs.ipvs.proc_text import INT_MAX, INT_MIN, ULONG_MAX

HZ = 250  # of Debian's kernels: it limits what is kept in jiffies
_SECONDS = INT_MAX // HZ
_SYNC = "no sync daemon yet"


@dataclass(frozen=True, slots=True)
class Knob:
    """One sysctl. Without another range it takes every int, and every one but 0 switches it on.

    `inert`: why its value changes nothing here; empty if it does something.
    """

    default: int | tuple[int, int] | str
    doc: str
    low: int = INT_MIN
    high: int = INT_MAX
    range_text: str = ""
    inert: str = ""

    @property
    def range(self) -> str:
        """What it takes, for people."""
        if self.range_text:
            return self.range_text
        return "any integer" if (self.low, self.high) == (INT_MIN, INT_MAX) else f"{self.low}..{self.high}"


KNOBS: dict[str, Knob] = {
    "am_droprate": Knob(10, "drop_packet=3 drops one of so many packets; 0 none, below 0 all"),
    "amemthresh": Knob(1024, "memory is low below so many free pages"),
    "backup_only": Knob(0, "a sync backup lets all packets pass", inert=_SYNC),
    "cache_bypass": Knob(
        0, "a fwmark service without a live server: send to the packet's own destination"
    ),
    "conn_reuse_mode": Knob(
        1, "schedule a SYN anew whose connection has closed; bit 1 (2, 3): in FIN_WAIT without replies too"
    ),
    "conntrack": Knob(
        0, "keep netfilter conntrack for connections",
        inert="requests are taken out before conntrack confirms them, replies are not tracked",
    ),
    "debug_level": Knob(
        0, "what the module logs", inert="the walk tells why; kernels without CONFIG_IP_VS_DEBUG lack it"
    ),
    "drop_entry": Knob(0, "defence: drop half-open and idle connections", 0, 3),
    "drop_packet": Knob(0, "defence: drop packets that would open a connection", 0, 3),
    "est_cpulist": Knob(
        "", "CPUs of the estimation threads; an empty list stops estimation",
        range_text="a list of CPUs", inert="one thread does all; only an empty list has its effect",
    ),
    "est_nice": Knob(0, "niceness of the estimation threads", -20, 19, inert="there are no such threads"),
    "expire_nodest_conn": Knob(
        0, "connections of deleted servers end at once; a SYN leaves a server of weight 0"
    ),
    "expire_quiescent_template": Knob(0, "persistence templates do not steer to a server of weight 0"),
    "ignore_tunneled": Knob(
        0, "packets out of a tunnel that ends here are not balanced again",
        inert="a packet does not tell that it came out of a tunnel",
    ),
    "lblc_expiration": Knob(86400, "seconds that lblc remembers an unused address", -_SECONDS, _SECONDS),
    "lblcr_expiration": Knob(
        86400, "seconds that lblcr remembers an unused address, or keeps a set", -_SECONDS, _SECONDS
    ),
    "nat_icmp_send": Knob(0, "a NAT server's packet of no connection is answered: port unreachable"),
    "pmtu_disc": Knob(1, "tunnels: path MTU discovery for packets that may not be fragmented"),
    "run_estimation": Knob(1, "counters and rates move; 0 freezes them"),
    "schedule_icmp": Knob(0, "an ICMP error about no connection is scheduled by the packet that it quotes"),
    "secure_tcp": Knob(0, "defence: the stricter TCP state table", 0, 3),
    "sloppy_sctp": Knob(0, "any SCTP chunk but ABORT opens a connection"),
    "sloppy_tcp": Knob(0, "any TCP segment but RST opens a connection"),
    "snat_reroute": Knob(1, "route a reply again by its new source"),
    "sync_persist_mode": Knob(0, "of persistent connections only the templates are synced", inert=_SYNC),
    "sync_ports": Knob(1, "UDP ports and threads of sync", 1, INT_MAX, "a power of two", inert=_SYNC),
    "sync_qlen_max": Knob(
        0, "sync messages that may wait; by default a 32nd of the pages of memory", 0, ULONG_MAX,
        inert=_SYNC,
    ),
    "sync_refresh_period": Knob(
        0, "seconds between syncs of an unchanged connection", -_SECONDS, _SECONDS, inert=_SYNC
    ),
    "sync_retries": Knob(0, "how often a sync is sent again", 0, 3, inert=_SYNC),
    "sync_sock_size": Knob(0, "socket buffer of sync, bytes; 0: the host's default", inert=_SYNC),
    "sync_threshold": Knob(
        (3, 50), "sync at the first number's packet of each period of the second",
        range_text="two numbers: T 0.., P 0.., T < P unless P is 0", inert=_SYNC,
    ),
    "sync_version": Knob(1, "sync protocol", 0, 1, inert=_SYNC),
}  # fmt: skip
