"""IP protocol numbers by the kernel's names (include/uapi/linux/in.h), and what IPVS calls them."""

from typing import Final

IPPROTO_IP: Final = 0  # of a persistence template of a service by mark
IPPROTO_ICMP: Final = 1
IPPROTO_IPIP: Final = 4
IPPROTO_TCP: Final = 6
IPPROTO_UDP: Final = 17
IPPROTO_IPV6: Final = 41
IPPROTO_GRE: Final = 47
IPPROTO_ESP: Final = 50
IPPROTO_AH: Final = 51
IPPROTO_ICMPV6: Final = 58
IPPROTO_SCTP: Final = 132

PROTO_NAMES: Final[dict[int, str]] = {
    IPPROTO_IP: "IP",
    IPPROTO_ICMP: "ICMP",
    IPPROTO_TCP: "TCP",
    IPPROTO_UDP: "UDP",
    IPPROTO_ICMPV6: "ICMPv6",
    IPPROTO_SCTP: "SCTP",
}
"""ip_vs_proto_name; others are `IP_` and their number there."""
