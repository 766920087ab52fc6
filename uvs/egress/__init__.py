"""Egress: next hops by the kernel's routes and neighbours, packets sent through AF_PACKET.

`netlink` asks the kernel and hears of changes, `nexthop` holds the tables (sans-io), `egress` joins
them to the packet sockets; `fragments` watches in which pieces datagrams come.
"""

from uvs.egress.egress import Egress
from uvs.egress.fragments import FragmentWatch

__all__ = ["Egress", "FragmentWatch"]
