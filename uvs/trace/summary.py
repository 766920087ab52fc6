"""Why not: what the director dropped, or let pass as not its own, by reason, with what to do. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from textwrap import wrap

from uvs.top.model import HANDLED, NOT_OURS
from uvs.walk.reasons import MEANING

# What docs/reference/reasons.md says more about; reasons that are not here need nothing to be done.
ADVICE = {
    "none": "report it as a fault",
    "no_service": "uvsadm -Ln: is the service there, with this address, protocol and port?",
    "not_syn": "many: clients keep connections open longer than the time-out (uvsadm -L --timeout)",
    "fragment": "see that defragmentation is on: the director turns it on with its rules",
    "short": "a broken sender, or a test",
    "malformed": "a broken sender, or an attack",
    "cut": "send smaller datagrams",
    "no_dest": "add a server (uvsadm -a), or make a port-0 service persistent (-p)",
    "weight_0": "give one a weight: uvsadm -e ... -w 1",
    "overload": "add servers, or raise the upper threshold (uvsadm -e ... -x)",
    "dead_dest": "uvs sysctl expire_nodest_conn=1 moves such clients to another server at once",
    "drop_rate": "uvs sysctl drop_packet: 3 always, 2 while memory is low",
    "table_full": "give it more room: uvs run --conn-max",
    "no_route": "ip route get SERVER",
    "no_neighbour": "is the server up, on this link, with this address? ip neigh show",
    "too_big": "normal for path MTU discovery; if transfers hang, somebody drops those ICMP messages",
    "ttl": "a routing loop, or traceroute",
    "boundary": "do not use loopback addresses as real servers for clients elsewhere",
    "pe": "SIP without a Call-ID, or by TCP",
    "send": "the director's log has the error",
    "reassembly": "a broken sender, or an attack",
}
_INDENT, _NAME = " " * 12, 14


def plural(count: int, noun: str) -> str:
    """`1 packet`, `2 packets`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def since(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    """Packets by reason between two looks; of a director that began anew: since then."""
    if any(now.get(reason, 0) < count for reason, count in before.items()):
        return dict(now)
    return {reason: count - before.get(reason, 0) for reason, count in now.items()}


def lines(reasons: Mapping[str, int], when: str, width: int) -> Iterator[str]:
    """The table, the most frequent first; `when`: what its figures are of."""
    told = {reason: count for reason, count in reasons.items() if count}
    handled = sum(count for reason, count in told.items() if reason in HANDLED)
    ignored = {reason: count for reason, count in told.items() if reason in NOT_OURS}
    dropped = {reason: count for reason, count in told.items() if reason not in HANDLED | NOT_OURS}
    figures = [
        f"{plural(handled, 'packet')} handled",
        f"{sum(dropped.values())} dropped",
        f"{sum(ignored.values())} let pass",
    ]
    yield f"{when}: {', '.join(figures)}"
    for heading, part in (("dropped", dropped), ("let pass: not ours", ignored)):
        if part:
            yield f"  {heading}"
        for reason, count in sorted(part.items(), key=lambda item: (-item[1], item[0])):
            yield from _row(reason, count, width)


def _row(reason: str, count: int, width: int) -> Iterator[str]:
    room = max(width - len(_INDENT) - _NAME, 20)
    meaning = wrap(MEANING.get(reason, "?"), room)
    yield f"  {count:>8}  {reason:<{_NAME}}{meaning[0]}"
    for more in meaning[1:]:
        yield _INDENT + " " * _NAME + more
    for i, more in enumerate(wrap(ADVICE.get(reason, ""), room - 2, break_on_hyphens=False)):
        yield _INDENT + " " * _NAME + ("  " if i else "→ ") + more
