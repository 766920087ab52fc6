"""Hashes that several schedulers share, bit for bit the kernel's."""

from __future__ import annotations

GOLDEN_RATIO_32 = 0x61C88647  # include/linux/hash.h
_U32 = 0xFFFFFFFF


def fold(addr: bytes) -> int:
    """An address as 32 bits: IPv4 as it is, IPv6 its four words in host order, xor-ed (ip_vs_*_hashkey)."""
    folded = 0
    for at in range(0, len(addr), 4):
        folded ^= int.from_bytes(addr[at : at + 4], "big")
    return folded


def hash_32(value: int, bits: int) -> int:
    """hash_32 (include/linux/hash.h): the upper `bits` bits of a multiplication."""
    return (value * GOLDEN_RATIO_32 & _U32) >> (32 - bits)


def hsiphash_u32(value: int, key: int) -> int:
    """hsiphash of one 32-bit word on a 64-bit kernel: SipHash-1-3 over its four bytes, the lower 32 bits.

    Both key words are `key` (lib/siphash.c, __hsiphash_aligned; RFC-less: Aumasson and Bernstein, 2012).
    """
    mask = 0xFFFFFFFFFFFFFFFF

    def rotl(x: int, n: int) -> int:
        return (x << n | x >> (64 - n)) & mask

    v0, v1 = 0x736F6D6570736575 ^ key, 0x646F72616E646F6D ^ key
    v2, v3 = 0x6C7967656E657261 ^ key, 0x7465646279746573 ^ key

    def rounds(n: int) -> None:
        nonlocal v0, v1, v2, v3
        for _ in range(n):
            v0 = (v0 + v1) & mask
            v1 = rotl(v1, 13) ^ v0
            v0 = rotl(v0, 32)
            v2 = (v2 + v3) & mask
            v3 = rotl(v3, 16) ^ v2
            v0 = (v0 + v3) & mask
            v3 = rotl(v3, 21) ^ v0
            v2 = (v2 + v1) & mask
            v1 = rotl(v1, 17) ^ v2
            v2 = rotl(v2, 32)

    block = 4 << 56 | value  # length, and what is left over of whole 64-bit words
    v3 ^= block
    rounds(1)
    v0 ^= block
    v2 ^= 0xFF
    rounds(3)
    return (v0 ^ v1 ^ v2 ^ v3) & _U32
