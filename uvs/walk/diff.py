"""What of a packet changed on its way, field by field."""

from __future__ import annotations

import re
from typing import TypedDict

from uvs.walk.fields import Layer, layers


class Change(TypedDict):
    """One field of one layer; `before` None: the layer, or the field, came in; `after` None: it went."""

    layer: str
    field: str
    before: str | None
    after: str | None


def changes(before: bytes, after: bytes) -> list[Change]:
    """From one IP datagram to another, outermost layer first. A tunnel's headers are layers that came in."""
    old, new = layers(before), layers(after, before)
    outer = len(new) - len(old)
    if outer > 0 and [layer.name for layer in new[outer:]] == [layer.name for layer in old]:
        found = [change for layer in new[:outer] for change in _between(None, layer)]
        return found + [c for pair in zip(old, new[outer:], strict=True) for c in _between(*pair)]
    names = list(dict.fromkeys(layer.name for layer in new + old))
    was, now = ({layer.name: layer for layer in some} for some in (old, new))
    return [change for name in names for change in _between(was.get(name), now.get(name))]


def _between(old: Layer | None, new: Layer | None) -> list[Change]:
    layer = old or new
    assert layer is not None
    was, now = old.fields if old else {}, new.fields if new else {}
    return [
        Change(layer=layer.name, field=name, before=was.get(name), after=now.get(name))
        for name in dict.fromkeys([*was, *now])
        if was.get(name) != now.get(name)
    ]


def of_frame(frame: dict[str, str] | None, nexthop: str) -> list[Change]:
    """The frame's destination, as a next hop's description tells it: its MAC address, or whose it is."""
    known = re.search(r"lladdr (\S+)", nexthop)
    address = nexthop.split(" ", 1)[0]
    return [
        Change(
            layer="Ethernet",
            field="dst",
            before=frame["dst"] if frame else "the director's",
            after=known[1] if known else f"that of {address}",
        )
    ]
