"""How many ICMP errors one host may be told (inet_peer_xrlim_allow, net/ipv4/inetpeer.c)."""

from __future__ import annotations

BURST = 6  # XRLIM_BURST_FACTOR
PEERS_MAX = 65536


class IcmpLimit:
    """A token bucket per peer: one error per interval, six at once.

    `interval_ms`: net.ipv4.icmp_ratelimit, default 1000; 0: no limit.
    """

    def __init__(self, interval_ms: int = 1000) -> None:
        self.interval_ms = interval_ms
        self._peers: dict[bytes, tuple[int, int]] = {}  # tokens (ns), last time (ns)

    def allow(self, peer: bytes, now: int) -> bool:
        """May an error be sent to `peer` at `now` (ns)?"""
        cost = self.interval_ms * 1_000_000
        if not cost:
            return True
        tokens, last = self._peers.pop(peer, (BURST * cost, now))
        tokens = min(tokens + now - last, BURST * cost)
        allowed = tokens >= cost
        if len(self._peers) >= PEERS_MAX:
            del self._peers[next(iter(self._peers))]  # the one told longest ago
        self._peers[peer] = (tokens - cost if allowed else tokens, now)
        return allowed
