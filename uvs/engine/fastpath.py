"""The fast path (`csrc/fastpath.c`), and what it looks at besides the table: next hops and switches.

The hook path (`uvs.ipvs.core`) is the meaning; for a packet of a known connection, or one that opens a
connection to a plain service, the engine does the same without entering Python.
"""

from __future__ import annotations

import enum
from typing import Any, NamedTuple

from uvs.engine.binding import ffi, lib, put_packed
from uvs.engine.packet import Packet
from uvs.engine.table import Table
from uvs.engine.trace import Trace

ETH_HLEN = 14


class Fast(enum.IntFlag):
    """What may not be decided without the hook path: `UVS_FAST_*`."""

    OFF = lib.UVS_FAST_OFF
    PE = lib.UVS_FAST_PE
    NAT_ICMP = lib.UVS_FAST_NAT_ICMP
    REROUTE = lib.UVS_FAST_REROUTE
    SLOPPY_TCP = lib.UVS_FAST_SLOPPY_TCP
    SLOPPY_SCTP = lib.UVS_FAST_SLOPPY_SCTP
    DROP_RATE = lib.UVS_FAST_DROP_RATE
    NODEST = lib.UVS_FAST_NODEST
    REUSE = lib.UVS_FAST_REUSE
    REUSE_FIN_WAIT = lib.UVS_FAST_REUSE_FIN_WAIT
    TRACE = lib.UVS_FAST_TRACE


class Step(enum.IntEnum):
    """What became of a packet: `enum uvs_step`."""

    SLOW = lib.UVS_STEP_SLOW
    ACCEPT = lib.UVS_STEP_ACCEPT
    REWRITTEN = lib.UVS_STEP_REWRITTEN
    SEND = lib.UVS_STEP_SEND


class Done(NamedTuple):
    """What became of a packet; if it is to be sent, where, and in segments of how many bytes (0: as one)."""

    step: Step
    nexthop: int = 0
    gso_size: int = 0


class NextHop:
    """Where frames go (`struct uvs_nexthop`): device, MTU and link-layer header.

    `eth` is the whole link-layer header, 14 bytes, or empty on devices without one. `cooked`: the
    kernel adds whatever header the device has (PPP, tunnels); such a next hop takes no offload. `saddr`: the
    preferred source towards it, packed (the outer one of a tunnel); `learned`: a router told this MTU;
    `local`: the address is this host's own, and nothing is sent there.
    """

    __slots__ = ("_c",)

    def __init__(
        self,
        ifindex: int,
        mtu: int,
        eth: bytes = b"",
        cooked: bool = False,
        saddr: bytes = b"",
        learned: bool = False,
        local: bool = False,
    ) -> None:
        self._c = ffi.new("struct uvs_nexthop *")
        self._c.ifindex, self._c.mtu, self._c.cooked, self._c.learned = ifindex, mtu, cooked, learned
        self._c.local = local
        put_packed(self._c.saddr, saddr)
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


class NextHops:
    """The rows of the next-hop table as the engine sees them, by slot: the low 16 bits of a row's index."""

    def __init__(self) -> None:
        self._c: Any = ffi.new("struct uvs_nexthops *")
        self._none = ffi.new("struct uvs_nexthop *")

    def put(self, index: int, hop: NextHop | None, quick: bool = False) -> None:
        """Row `index` leads there now; None, or not `quick`: only the hook path may use it."""
        row = self._none if hop is None else hop._c
        row.index, row.quick = index, quick and hop is not None
        lib.uvs_nexthops_put(self._c, row)

    def hasten(self, index: int, quick: bool) -> None:
        """May the fast path use row `index`, which leads where it did?"""
        lib.uvs_nexthops_hasten(self._c, index, quick)

    def remove(self, index: int) -> None:
        """Row `index` is gone."""
        lib.uvs_nexthops_remove(self._c, index)


class FastPath:
    """`struct uvs_fastpath`: one table, the next hops, and what is switched off (`flags`, of `Fast`)."""

    def __init__(
        self, table: Table, nexthops: NextHops, clock_rate: int = 1, trace: Trace | None = None
    ) -> None:
        """`clock_rate`: of `clock`, by which packets that come are timed; `trace`: with Fast.TRACE."""
        self._kept = table, nexthops, trace
        self._c = ffi.new("struct uvs_fastpath *")
        self._c.table, self._c.nexthops = table._t, nexthops._c
        self._c.clock_rate = clock_rate
        self._c.trace = ffi.NULL if trace is None else trace._c
        nexthops._c.table = table._t  # from now on its lock is theirs
        self._way = ffi.new("struct uvs_way *")
        self._why = ffi.new("uint64_t[]", lib.UVS_WHY_MAX)
        self.watch()

    def close(self) -> None:
        """The table may be closed, the next hops live on."""
        self._kept[1]._c.table = ffi.NULL

    @property
    def flags(self) -> int:
        """Of `Fast`."""
        return self._c.flags  # type: ignore[no-any-return]

    @flags.setter
    def flags(self, value: int) -> None:
        lib.uvs_fastpath_set(self._c, value, self._c.whole)

    @property
    def whole(self) -> int:
        """A datagram of more bytes came in fragments, seen or not."""
        return self._c.whole  # type: ignore[no-any-return]

    @whole.setter
    def whole(self, value: int) -> None:
        lib.uvs_fastpath_set(self._c, self._c.flags, value)

    @property
    def clock_rate(self) -> int:
        """Of `clock`."""
        return self._c.clock_rate  # type: ignore[no-any-return]

    def tunnels(self, flow_seed: int, port_range: tuple[int, int], pmtu_disc: bool) -> None:
        """What outer headers are made of: `flow_seed` and [low, high) of gue's source ports; have they DF?"""
        lib.uvs_fastpath_tunnels(self._c, flow_seed, *port_range, pmtu_disc)

    def set(self, flags: int, whole: int) -> None:
        """`flags` and `whole` at once."""
        lib.uvs_fastpath_set(self._c, flags, whole)

    def watch(self, v4: int = -1, v6: int = -1) -> None:
        """Sockets that heads of fragments come by (-1: none): while one is readable, datagrams are left."""
        lib.uvs_fastpath_watch(self._c, v4, v6)

    def fragmented(self, ends: bytes, by: int) -> None:
        """`by` more datagrams from and to these addresses (both, packed) came in fragments."""
        lib.uvs_fastpath_fragmented(self._c, ends, len(ends), by)

    def step(self, packet: Packet, hook: int, now: int, indev: int = 0, outdev: int = 0) -> Done:
        """One packet that was loaded, at a hook (NF_INET_*). Devices: 0, 1: none, the loopback device."""
        packet._c.indev, packet._c.outdev = indev, outdev
        step = Step(lib.uvs_fastpath(self._c, packet._c, hook, now, self._way))
        if step != Step.SEND:
            return Done(step)
        return Done(step, self._way.nexthop.index, self._way.gso_size)

    def leaving(self, packet: Packet) -> list[bytes]:
        """What leaves of the packet of the last step, which is to be sent: in segments, in its tunnel, with
        checksums whole, as `Injector` and the kernel make it."""
        way, part, parts = self._way, Packet(), list[bytes]()
        if way.gso_size:
            while lib.uvs_way_part(packet._c, way, len(parts), part._c):
                parts.append(part.data)
            return parts
        if way.tunnelled:
            lib.uvs_way_encap(packet._c, way)
        packet.csum_finish()
        return [packet.data]

    def take_counts(self, why: list[int]) -> None:
        """Add how often each reason was given since the last call to `why`, by reason."""
        lib.uvs_fastpath_take(self._c, self._why)
        for reason, n in enumerate(self._why):
            why[reason] += n
