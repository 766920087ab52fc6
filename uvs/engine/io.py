"""Sending packets through AF_PACKET: the engine's Linux part (`csrc/uvs_io.h`), typed.

Addresses are packed bytes in network order; lengths are bytes; errors of sending are returned as
positive `errno` numbers, 0 for success, since the caller counts them and goes on.
"""

from __future__ import annotations

import enum
import os
from typing import Any, NamedTuple

from uvs.engine import _io  # type: ignore[attr-defined]
from uvs.engine.fastpath import FastPath, NextHop

ffi: Any = _io.ffi
lib: Any = _io.lib

BATCH: int = lib.UVS_NFQ_BATCH


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

    `gso`: a TCP packet that stands for several segments; `traced`: what the fast path was told of it
    (`Trace.begin`).
    """

    id: int
    hook: int
    data: bytes
    mark: int
    indev: int
    gso: bool
    traced: int = 0


class Queue:
    """The packets of one NFQUEUE (`csrc/nfq.c`) on a netlink socket that owns it.

    `step` does what the fast path can (a `Worker`'s thread calls it, or a test); the others come out of
    `slow`, and each needs a `verdict` before the next comes.
    """

    def __init__(self, fd: int, number: int, begun: bool = False) -> None:
        """`fd`: the socket, non-blocking, open for as long as this is used; `begun`: others took from it."""
        raw = lib.uvs_nfq_new(fd, number, begun)
        if raw == ffi.NULL:
            raise MemoryError("no memory for a queue's buffers")
        self.fd = fd
        self._c = ffi.gc(raw, lib.uvs_nfq_free)
        self._info = ffi.new("struct uvs_nfq_info *")
        self._slow = ffi.new("struct uvs_queued *")
        self._nexthop = ffi.new("uint32_t *")

    def step(self, fastpath: FastPath, injector: Injector, budget: int = BATCH) -> int:
        """Take a batch, or what is left of the last one, and do what the fast path can: how many packets."""
        return lib.uvs_nfq_step(self._c, fastpath._c, injector._c, budget)  # type: ignore[no-any-return]

    def hold(self) -> None:
        """Drops may wait for those of the next step from now on, as with a `Worker`."""
        lib.uvs_nfq_hold(self._c)

    def settle(self) -> None:
        """Say what waits."""
        lib.uvs_nfq_settle(self._c)

    @property
    def full(self) -> bool:
        """Is a packet in hand for which there is no room before the hook path?"""
        return bool(lib.uvs_nfq_full(self._c))

    @property
    def open(self) -> int:
        """Packets that the hook path was given and has not said a verdict for."""
        return lib.uvs_nfq_open(self._c)  # type: ignore[no-any-return]

    def slow(self) -> Queued | None:
        """The packet whose turn on the hook path it is."""
        slow = self._slow
        if not lib.uvs_nfq_slow(self._c, slow):
            return None
        data = bytes(ffi.buffer(slow.data, slow.len))
        return Queued(slow.id, slow.hook, data, slow.mark, slow.indev, bool(slow.gso), slow.traced)

    def verdict(self, accept: bool, payload: bytes = b"", mark: int | None = None) -> None:
        """NF_ACCEPT or NF_DROP for it; with another payload (PAYLOAD_MAX bytes) or mark."""
        lib.uvs_nfq_verdict(
            self._c, accept, ffi.from_buffer(payload), len(payload), mark is not None, mark or 0
        )

    @property
    def info(self) -> dict[str, int]:
        """Counters, by the names of `struct uvs_nfq_info`."""
        lib.uvs_nfq_info(self._c, self._info)
        return {name: getattr(self._info, name) for name in COUNTERS}

    def take_refusal(self) -> tuple[int, int] | None:
        """(next hop, errno) of the last packet that the kernel would not send for good, once."""
        err = lib.uvs_nfq_refusal(self._c, self._nexthop)
        return (self._nexthop[0], err) if err else None


class Worker:
    """A thread of the engine that serves queues (`csrc/worker.c`); Python need not run for it to."""

    def __init__(self, fastpath: FastPath, mark: int, wake: int, busy_poll: int = 0) -> None:
        """`mark`: of what it sends; `wake`: an eventfd, readable when packets wait for the hook path;
        `busy_poll`: microseconds that it looks for the next packet, after a lone one, before it sleeps.

        PermissionError without CAP_NET_RAW and CAP_NET_ADMIN.
        """
        self._c = lib.uvs_worker_new(fastpath._c, mark, wake, busy_poll)
        if self._c == ffi.NULL:
            self._c = None
            raise OSError(ffi.errno, f"cannot start a worker: {os.strerror(ffi.errno)}")
        self._kept: list[object] = [fastpath]

    def add(self, queue: Queue, flags: int = 0) -> None:
        """A queue more to serve, before it starts; `flags`: QUEUE_SYN."""
        _check(lib.uvs_worker_add(self._c, queue._c, queue.fd, flags))
        self._kept.append(queue)

    def start(self) -> None:
        """Begin."""
        _check(lib.uvs_worker_start(self._c), "cannot start a thread: ")

    def kick(self) -> None:
        """There may be room before the hook path again."""
        lib.uvs_worker_kick(self._c)

    @property
    def turns(self) -> int:
        """How often it went round, once a second at least: when this stands still it hangs."""
        return lib.uvs_worker_turns(self._c)  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the thread, after the batch that it has in hand."""
        if self._c is not None:
            lib.uvs_worker_free(self._c)
            self._c = None


def _check(err: int, what: str = "") -> None:
    if err:
        raise OSError(-err, f"{what}{os.strerror(-err)}")


PAYLOAD_MAX: int = lib.UVS_NFQ_PAYLOAD
QUEUE_SYN: int = lib.UVS_QUEUE_SYN
COUNTERS = ("packets", "fast", "slow", "lost", "cut", "refused", "unsaid")
