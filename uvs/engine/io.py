"""Sending packets through AF_PACKET: the engine's Linux part (`csrc/uvs_io.h`), typed.

Addresses are packed bytes in network order; lengths are bytes; errors of sending are returned as
positive `errno` numbers, 0 for success, since the caller counts them and goes on.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from uvs.engine import _io  # type: ignore[attr-defined]
from uvs.engine.fastpath import FastPath, NextHop

ffi: Any = _io.ffi
lib: Any = _io.lib


class Gso(enum.IntEnum):
    """How the kernel cuts a packet: `VIRTIO_NET_HDR_GSO_*` of linux/virtio_net.h."""

    NONE = lib.UVS_GSO_NONE
    TCPV4 = lib.UVS_GSO_TCPV4
    UDP = lib.UVS_GSO_UDP
    TCPV6 = lib.UVS_GSO_TCPV6


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


class Queued(NamedTuple):
    """A packet for the hook path: `data` IP datagram, `hook` NF_INET_*, `indev` input interface or 0.

    `gso`: a TCP packet that stands for several segments.
    """

    id: int
    hook: int
    data: bytes
    mark: int
    indev: int
    gso: bool


class Queue:
    """The packets of one NFQUEUE (`csrc/nfq.c`) on a netlink socket that owns it.

    What the fast path does is done; the others come out of `packets`, and each needs a `verdict`.
    """

    def __init__(self, fd: int, number: int, fastpath: FastPath, injector: Injector) -> None:
        """`fd`: the socket, non-blocking, open for as long as this is used."""
        raw = lib.uvs_nfq_new(fd, number)
        if raw == ffi.NULL:
            raise MemoryError("no memory for a queue's buffers")
        self._c = ffi.gc(raw, lib.uvs_nfq_free)
        self._info = lib.uvs_nfq_info(raw)
        self._fastpath, self._injector = fastpath, injector
        self._slow = ffi.new("struct uvs_queued *")

    def receive(self) -> int:
        """Take the next batch, or what is left of the last one: how many packets. Never blocks."""
        return lib.uvs_nfq_receive(self._c, self._fastpath.clock_rate)  # type: ignore[no-any-return]

    def packets(self) -> Iterator[Queued]:
        """Handle the batch; what the fast path leaves comes out, in order."""
        c, slow, fastpath, inject = self._c, self._slow, self._fastpath._c, self._injector._c
        while lib.uvs_nfq_run(c, fastpath, inject, slow):
            data = bytes(ffi.buffer(slow.data, slow.len))
            yield Queued(slow.id, slow.hook, data, slow.mark, slow.indev, bool(slow.gso))

    def verdict(self, number: int, accept: bool, payload: bytes = b"", mark: int | None = None) -> None:
        """NF_ACCEPT or NF_DROP for a packet; with another payload (PAYLOAD_MAX bytes) or mark."""
        lib.uvs_nfq_verdict(
            self._c, number, accept, ffi.from_buffer(payload), len(payload), mark is not None, mark or 0
        )

    @property
    def info(self) -> dict[str, int]:
        """Counters, by the names of `struct uvs_nfq_info`."""
        return {name: getattr(self._info, name) for name in _COUNTERS}

    def take_refusal(self) -> tuple[int, int] | None:
        """(next hop, errno) of the last packet that the kernel would not send for good, once."""
        found = self._info.nexthop, self._info.err
        self._info.nexthop = self._info.err = 0
        return found if found[1] else None


PAYLOAD_MAX: int = lib.UVS_NFQ_PAYLOAD
_COUNTERS = ("packets", "fast", "lost", "cut", "refused", "unsaid")
