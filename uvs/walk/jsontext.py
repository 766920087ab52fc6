"""A walk's JSON form (docs/reference/walk.schema.json): what a director records, and the differences."""

from __future__ import annotations

from typing import Any

from uvs.walk.diff import changes, of_frame


def complete(walk: dict[str, Any]) -> dict[str, Any]:
    """A walk as `uvs.ipvs.walk.Walk.to_json` makes it, with `changes` of all that left.

    A director on the wire leaves them out, since they follow from the bytes.
    """
    came = bytes.fromhex(walk["data"])
    sent = [dict(one, changes=_of_sent(walk, one, came)) for one in walk["sent"]]
    delivered = walk["delivered"]
    changed = None if delivered is None else changes(came, bytes.fromhex(delivered))
    return dict(walk, sent=sent, changes=changed)


def _of_sent(walk: dict[str, Any], sent: dict[str, Any], came: bytes) -> list[Any] | None:
    """None: it is no packet that came, but the director's own."""
    if sent["own"]:
        return None
    return [*of_frame(walk["frame"], sent["nexthop"]), *changes(came, bytes.fromhex(sent["data"]))]
