"""There is no sync daemon yet: what asks for one is refused, a wrong request as the kernel refuses it."""

from __future__ import annotations

import errno
import socket

from uvs.control import messages
from uvs.control.limits import Seldom
from uvs.control.messages import Daemon
from uvs.control.netlink import Attrs
from uvs.ipvs.services import Services
from uvs.ipvs.spec import IpvsError

MASTER, BACKUP = 1, 2  # IP_VS_STATE_*
IFNAME_MAX = 15  # IP_VS_IFNAME_MAXLEN without its NUL
_NUMBERS = {  # size, bytes
    Daemon.STATE: 4,
    Daemon.SYNC_ID: 4,
    Daemon.SYNC_MAXLEN: 2,
    Daemon.MCAST_PORT: 2,
    Daemon.MCAST_TTL: 1,
}

_asked = Seldom()


def new_daemon(nest: Attrs, services: Services) -> None:
    """IPVS_CMD_NEW_DAEMON, in the kernel's order (ip_vs_genl_new_daemon, start_sync_thread; tried on 6.1).

    EINVAL: a member is missing or malformed, the group is none, a service has servers of another family;
    ENODEV: no such interface; EINVAL: neither master nor backup; else EOPNOTSUPP.
    """
    for kind, size in _NUMBERS.items():  # the policy comes before everything else
        messages.number(nest, kind, size, 0)
    interface = messages.text(nest, Daemon.MCAST_IFN, IFNAME_MAX, "")
    group, group6 = nest.get(Daemon.MCAST_GROUP), nest.get(Daemon.MCAST_GROUP6)
    if (group is not None and len(group) < 4) or (group6 is not None and len(group6) < 16):
        raise messages.invalid("a multicast group is short")
    if not {Daemon.STATE, Daemon.MCAST_IFN, Daemon.SYNC_ID} <= nest.keys():
        raise messages.invalid("a daemon needs state, interface and id")
    if group is not None:
        if group[0] >> 4 != 0xE:
            raise messages.invalid("no multicast group")
    elif group6 is not None and group6[0] != 0xFF:
        raise messages.invalid("no multicast group")
    if any(dest.spec.af != svc.key.af for svc in services for dest in svc.dests):
        raise messages.invalid("the protocol knows no servers of another family")
    start(messages.number(nest, Daemon.STATE, 4), interface)


def start(state: int, interface: str) -> None:
    """start_sync_thread: ENODEV, EINVAL, and here EOPNOTSUPP, which the log tells."""
    try:
        socket.if_nametoindex(interface)
    except (OSError, ValueError):
        raise IpvsError(errno.ENODEV, f"no interface {interface!r}") from None
    if state not in (MASTER, BACKUP):
        raise messages.invalid("state is neither master nor backup")
    _asked.warn("a sync daemon was asked for: uvs has none yet, connections are not synchronised")
    raise IpvsError(errno.EOPNOTSUPP, "no sync daemon yet")


def stop(state: int) -> None:
    """stop_sync_thread: EINVAL, ESRCH."""
    if state not in (MASTER, BACKUP):
        raise messages.invalid("state is neither master nor backup")
    raise IpvsError(errno.ESRCH, "no daemon runs")
