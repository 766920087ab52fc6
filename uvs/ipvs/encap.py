"""The headers that tunnels put between the outer IP header and the inner packet: gue and gre, read.

Free of the rest of IPVS, so that the other end of a tunnel (`uvs decap`) can use it. Writing them is the
engine's (`csrc/xmit_tun.c`).
"""

from __future__ import annotations

from typing import NamedTuple

from uvs.ipvs.ipproto import IPPROTO_IPIP, IPPROTO_IPV6

UDP_HLEN = 8
_INNER = {0x0800: IPPROTO_IPIP, 0x86DD: IPPROTO_IPV6}  # ETH_P_IP, ETH_P_IPV6
_GRE_CSUM, _GRE_KEY, _GRE_SEQ = 0x8000, 0x2000, 0x1000  # RFC 2784, RFC 2890
_GUE_REMCSUM, _GUE_UNKNOWN = 0x80000000, 1  # private flags (GUE_PFLAG_REMCSUM of include/net/gue.h)


class Encap(NamedTuple):
    """What a gue or gre header says: its length in bytes, and the protocol inside (4 or 41)."""

    length: int
    protocol: int
    csum: bool = False  # gre: a checksum over header and packet is there
    remcsum: tuple[int, int] | None = None  # gue: where the sum starts and where it is to be put, within


def gue(head: bytes | memoryview) -> Encap | None:
    """A GUE header of variant 0 behind its UDP header, or None: cut, control, another variant or content.

    Flags other than remote checksum offload are refused, as the kernel does (validate_gue_flags).
    """
    if len(head) < 4 or head[0] >> 5:  # variant, control bit
        return None
    length, protocol, flags = 4 + (head[0] & 31) * 4, head[1], head[2] << 8 | head[3]
    if protocol not in (IPPROTO_IPIP, IPPROTO_IPV6) or len(head) < length or flags & ~1:
        return None
    if not flags:
        return Encap(length, protocol)
    private = int.from_bytes(head[4:8], "big") if length >= 8 else _GUE_UNKNOWN
    if private & ~_GUE_REMCSUM or (private and length < 12):
        return None
    remcsum = (head[8] << 8 | head[9], head[10] << 8 | head[11]) if private else None
    return Encap(length, protocol, remcsum=remcsum)


def gre(head: bytes | memoryview) -> Encap | None:
    """A GRE header of version 0, or None: cut, routing or other flags, or another content."""
    if len(head) < 4:
        return None
    flags, content = head[0] << 8 | head[1], head[2] << 8 | head[3]
    if flags & ~(_GRE_CSUM | _GRE_KEY | _GRE_SEQ) or content not in _INNER:
        return None
    length = 4 + 4 * (flags & 0xF000).bit_count()
    return Encap(length, _INNER[content], csum=bool(flags & _GRE_CSUM)) if len(head) >= length else None
