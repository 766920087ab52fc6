"""Egress: next hops by the kernel's routes and neighbours, packets sent through AF_PACKET.

`netlink` asks the kernel and hears of changes, `nexthop` holds the tables (sans-io), `egress` joins
them to the packet sockets.
"""

from uvs.egress.egress import Egress

__all__ = ["Egress"]
