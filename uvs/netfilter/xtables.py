"""What the kernel's legacy iptables interface tells of a table, without running a program.

Layout: include/uapi/linux/netfilter_ipv4/ip_tables.h, struct ipt_getinfo (that of ip6_tables.h is the same).
"""

from __future__ import annotations

import ctypes
import os
import socket

IPT_SO_GET_INFO = 64  # IP6T_SO_GET_INFO has the same number
NAME_SIZE = 32
INFO_SIZE = NAME_SIZE + 4 * (1 + 5 + 5 + 1 + 1)  # hooks, entry and underflow of each, entries, bytes

_libc = ctypes.CDLL(None, use_errno=True)


def table_shape(af: int, table: str) -> bytes:
    """How many rules of which size there are, and where each hook begins: other rules rarely have the same.

    OSError: no such table, or no CAP_NET_ADMIN.
    """
    level = socket.IPPROTO_IP if af == socket.AF_INET else socket.IPPROTO_IPV6
    info = ctypes.create_string_buffer(table.encode(), INFO_SIZE)
    size = ctypes.c_uint32(INFO_SIZE)
    with socket.socket(af, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        if _libc.getsockopt(sock.fileno(), level, IPT_SO_GET_INFO, info, ctypes.byref(size)):
            error = ctypes.get_errno()
            raise OSError(error, os.strerror(error))
    return info.raw
