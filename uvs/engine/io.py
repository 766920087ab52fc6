"""Sending packets through AF_PACKET: the engine's Linux part (`csrc/uvs_io.h`), typed.

Addresses are packed bytes in network order; lengths are bytes; errors of sending are returned as
positive `errno` numbers, 0 for success, since the caller counts them and goes on.
"""

from __future__ import annotations

import enum
import os
from typing import Any

from uvs.engine import _io  # type: ignore[attr-defined]

ffi: Any = _io.ffi
lib: Any = _io.lib

ETH_HLEN: int = lib.UVS_ETH_HLEN


class Gso(enum.IntEnum):
    """How the kernel cuts a packet: `VIRTIO_NET_HDR_GSO_*` of linux/virtio_net.h."""

    NONE = lib.UVS_GSO_NONE
    TCPV4 = lib.UVS_GSO_TCPV4
    UDP = lib.UVS_GSO_UDP
    TCPV6 = lib.UVS_GSO_TCPV6


class NextHop:
    """Where frames go (`struct uvs_nexthop`): device, MTU and link-layer header.

    `eth` is the whole link-layer header, 14 bytes, or empty on devices without one. `cooked`: the
    kernel adds whatever header the device has (PPP, tunnels); such a next hop takes no offload.
    """

    __slots__ = ("_c",)

    def __init__(self, ifindex: int, mtu: int, eth: bytes = b"", cooked: bool = False) -> None:
        self._c = ffi.new("struct uvs_nexthop *")
        self._c.ifindex, self._c.mtu, self._c.cooked = ifindex, mtu, cooked
        self.eth = eth

    @property
    def ifindex(self) -> int:
        """Index of the device."""
        return self._c.ifindex  # type: ignore[no-any-return]

    @property
    def mtu(self) -> int:
        """Largest IP packet that leaves whole, bytes."""
        return self._c.mtu  # type: ignore[no-any-return]

    @property
    def cooked(self) -> bool:
        """Does the kernel build the device's own header?"""
        return bool(self._c.cooked)

    @property
    def eth(self) -> bytes:
        """The link-layer header that is put in front."""
        return bytes(ffi.buffer(self._c.eth, self._c.ethlen))

    @eth.setter
    def eth(self, value: bytes) -> None:
        if len(value) not in (0, ETH_HLEN):
            raise ValueError(f"a link-layer header has 0 or {ETH_HLEN} bytes, not {len(value)}")
        self._c.ethlen = len(value)
        ffi.buffer(self._c.eth)[0 : len(value)] = value


class Injector:
    """The packet sockets of `struct uvs_inject`: they send, marked with `mark`, and never receive."""

    __slots__ = ("_c",)

    def __init__(self, mark: int) -> None:
        """Open them; PermissionError without CAP_NET_RAW and CAP_NET_ADMIN."""
        self._c = ffi.new("struct uvs_inject *")
        err = -lib.uvs_inject_open(self._c, mark)
        if err:
            self._c = None
            raise OSError(err, f"cannot open a packet socket: {os.strerror(err)}")

    def send(self, nexthop: NextHop, data: bytes) -> int:
        """One IP packet as it is, checksums whole. Never blocks. 0 or errno."""
        return -lib.uvs_inject_send(self._c, nexthop._c, data, len(data))  # type: ignore[no-any-return]

    def offload(
        self,
        nexthop: NextHop,
        data: bytes,
        csum_start: int,
        csum_offset: int,
        gso_type: Gso = Gso.NONE,
        gso_size: int = 0,
        hdr_len: int = 0,
    ) -> int:
        """A packet with an unfinished checksum, or one to be cut into segments of `gso_size`. 0 or errno.

        `csum_start` counts from the IP header, `csum_offset` from there (0: the checksum is whole);
        the checksum field holds the sum of the pseudo header. EOPNOTSUPP on a cooked next hop.
        """
        return -lib.uvs_inject_offload(  # type: ignore[no-any-return]
            self._c, nexthop._c, data, len(data), csum_start, csum_offset, gso_type, gso_size, hdr_len
        )

    def close(self) -> None:
        """Close the sockets; sending fails with EBADF afterwards."""
        lib.uvs_inject_close(self._c)
