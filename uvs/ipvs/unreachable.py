"""A real server that does not answer ARP or ND (ipv4_link_failure, ip6_link_failure)."""

from __future__ import annotations

from uvs.ipvs import icmp
from uvs.ipvs.hooks import own_packets
from uvs.ipvs.skb import Hook, NetnsIpvs, Skb


def no_neighbour(ipvs: NetnsIpvs, data: bytes) -> list[tuple[int, bytes]]:
    """The ICMP errors to send, each with its next hop, about a packet that could not be delivered.

    `data`: the packet as it was sent. The error about a translated one is translated back on its way, that
    about a tunnel packet goes no further than this host.
    """
    skb = Skb()
    if skb.begin(Hook.LOCAL_OUT, data, 0, 0, ipvs.clock()):
        return []
    icmp.host_unreachable(ipvs, skb, sent=True)
    own_packets(ipvs, skb)
    return skb.sends
