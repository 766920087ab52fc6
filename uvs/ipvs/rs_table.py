"""Destinations in use by their address (rs_table, ip_vs_ctl.c): of which server is a packet?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from uvs.engine.core import TUN_GRE, TUN_GUE, TUN_IPIP, ConnFlag

if TYPE_CHECKING:
    from uvs.ipvs.services import Dest


class RsTable:
    """By family and address; the newest of any service comes first."""

    def __init__(self) -> None:
        self._at: dict[tuple[int, bytes], dict[Dest, None]] = {}  # oldest first

    def add(self, dest: Dest) -> None:
        """ip_vs_rs_hash: as the newest; one that is there already becomes it."""
        here = self._at.setdefault(dest.id[:2], {})
        here.pop(dest, None)
        here[dest] = None

    def remove(self, dest: Dest) -> None:
        """ip_vs_rs_unhash."""
        here = self._at[dest.id[:2]]
        del here[dest]
        if not here:
            del self._at[dest.id[:2]]

    def real_service(self, af: int, protocol: int, addr: bytes, port: int) -> Dest | None:
        """ip_vs_find_real_service: the NAT server of that address, the newest of any service."""
        return next(
            (
                d
                for d in reversed(self._at.get((af, addr), {}))
                if d.fwd == ConnFlag.MASQ
                and d.spec.port == port
                and (d.svc.key.fwmark or d.svc.key.protocol == protocol)
            ),
            None,
        )

    def find_tunnel(self, af: int, addr: bytes, port: int) -> int | None:
        """ip_vs_find_tunnel: the type (`TUN_*`) of the tunnel to that address, or None.

        `port`: the gue port, 0 for ipip and gre. Of several the one that was made, or made anew, last.
        """
        types = (TUN_GUE,) if port else (TUN_IPIP, TUN_GRE)  # others are not hashed
        for dest in reversed(self._at.get((af, addr), {})):
            spec = dest.spec
            if dest.fwd == ConnFlag.TUNNEL and spec.tun_port == port and spec.tun_type in types:
                return spec.tun_type
        return None
