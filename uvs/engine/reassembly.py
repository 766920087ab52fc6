"""Fragments put together (`csrc/reasm.c`), typed."""

from __future__ import annotations

import os

from uvs.engine.binding import ffi, lib
from uvs.engine.packet import Packet

QUEUES = 1024  # unfinished datagrams
BLOCKS = 2048  # of 2 KiB: 4 MiB, as net.ipv4.ipfrag_high_thresh


class Reassembler:
    """Unfinished datagrams, in bounded memory that is taken when it is made."""

    __slots__ = ("_c",)

    def __init__(self, queues: int = QUEUES, blocks: int = BLOCKS) -> None:
        """`queues` unfinished datagrams at most, with `blocks` of 2 KiB of payload in all."""
        raw = lib.uvs_reasm_new(queues, blocks, int.from_bytes(os.urandom(4)))
        if raw == ffi.NULL:
            raise MemoryError("no memory for fragments")
        self._c = ffi.gc(raw, lib.uvs_reasm_free)

    def gather(self, packet: Packet, user: int, now: int) -> int:
        """Take a fragment; 0: `packet` is whole now (`frag_max` says of which pieces), or always was.

        Else Why.GATHERED: it is kept; Why.REASSEMBLY: it cannot be; or why the whole cannot be read. Only
        fragments of the same `user` (0..255) belong together. `now` in ns; 30 s (IPv6: 60 s) after its first
        fragment a datagram is given up (RFC 791, RFC 8200 4.5; ip_defrag(), nf_ct_frag6_gather()).
        """
        return lib.uvs_reassemble(self._c, packet._c, user, now)  # type: ignore[no-any-return]

    def expire(self, now: int) -> None:
        """Give up what is due; `gather` does so too."""
        lib.uvs_reasm_expire(self._c, now)

    def info(self) -> dict[str, int]:
        """In use: `queues`, `blocks`. Counted: whole, expired, duplicates, contradictions, refused."""
        raw = ffi.new("struct uvs_reasm_info *")
        lib.uvs_reasm_info(self._c, raw)
        return {name: int(getattr(raw, name)) for name, _ in ffi.typeof("struct uvs_reasm_info").fields}
