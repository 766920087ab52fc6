"""A walk as a tree in the kernel's function names, and what it did to the packet and to the table."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import Any

from uvs.walk.jsontext import complete
from uvs.walk.reasons import GOOD, MEANING

WIDTH = 100
_COLOURS = {"name": "1", "good": "32", "bad": "31", "other": "33", "dim": "2"}
_COLUMN_MAX = 44  # of decisions
_MARGIN = "   "
_LABEL = 8
_DATA_MAX = 48  # characters of a payload
_ON = {"LOCAL_IN": "on to the local stack", "FORWARD": "forwarded", "LOCAL_OUT": "on its way out"}
_ENDS = ("client", "virtual", "destination")
_BELOW = str.maketrans("├└─", "│  ")  # of a step's further lines
_ASCII = str.maketrans({"├": "|", "└": "`", "│": "|", "─": "-", "→": ">", "·": "-"})


def render(walk: dict[str, Any], colour: bool = False, width: int = WIDTH, start: int | None = None) -> str:
    """The text of a walk in its JSON form, without a newline at its end.

    `width`: columns; `start`: the clock's time (ns) that the walk's own is told from, None: not told.
    """
    told = _harmless(walk if "changes" in walk else complete(walk))
    return "\n".join(_Text(told, colour, width, start).lines())


def _harmless(value: Any) -> Any:
    """A walk may come from elsewhere: nothing in it steers a terminal."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(c if c.isprintable() else "?" for c in value)
    if isinstance(value, list):
        return [_harmless(one) for one in value]
    return {key: _harmless(one) for key, one in value.items()} if isinstance(value, dict) else value


def in_ascii(text: str) -> str:
    """For terminals that know no other characters."""
    return text.translate(_ASCII)


def fitting(text: str, encoding: str | None) -> str:
    """The text, or its nearest if that encoding cannot write it."""
    try:
        text.encode(encoding or "ascii")
        return text
    except UnicodeEncodeError:
        return in_ascii(text).encode("ascii", "replace").decode()


def way(entry: dict[str, Any]) -> str:
    """`client → virtual → destination Method` of a connection."""
    return " → ".join(entry[end] for end in _ENDS) + f" {entry['method']}"


class _Text:
    def __init__(self, walk: dict[str, Any], colour: bool, width: int, start: int | None) -> None:
        self.walk, self.colour, self.width, self.start = walk, colour, width, start

    def lines(self) -> Iterator[str]:
        yield self._head()
        for line in (*self._tree(), *self._verdict(), *self._entry(), *self._left()):
            yield (_MARGIN + line).rstrip()

    def _paint(self, style: str, text: str) -> str:
        return f"\033[{_COLOURS[style]}m{text}\033[0m" if self.colour and text else text

    def _head(self) -> str:
        walk = self.walk
        about = [f"{walk['length']} bytes"]
        if walk["mark"]:
            about.append(f"mark {walk['mark']}")
        if self.start is not None:
            about.append(f"at {(walk['time'] - self.start) / 1e9:.3f} s")
        head = f"{walk['number']:<2} {walk['hook']}  {walk['packet']}"
        told = f"({', '.join(about)})"
        between = "  " if len(head) + 2 + len(told) <= self.width else "\n" + _MARGIN
        return self._paint("name", head) + between + self._paint("dim", told)

    # ---- the steps

    def _tree(self) -> Iterator[str]:
        steps = self.walk["steps"]
        rows = [
            (guide, step) for guide, step in zip(_guides([s["depth"] for s in steps]), steps, strict=True)
        ]
        names = [len(guide) + len(step["function"]) for guide, step in rows]
        column = min(max(names, default=0), _COLUMN_MAX) + 2
        for guide, step in rows:
            name = step["function"]
            pad = " " * (column - len(guide) - len(name)) if column > len(guide) + len(name) else "  "
            line = self._paint("dim", guide) + name
            decision = "" if step["decision"] == "begin" else step["decision"]
            looked = self._looked_at(step)
            if not decision and not looked:
                yield line
                continue
            used = len(_MARGIN) + len(guide) + len(name) + len(pad) + len(decision) + 2
            line += pad + decision
            if looked and used + len(looked) <= self.width:
                yield line + ("  " if decision else "") + self._paint("dim", looked)
            else:
                yield line
                below = guide.translate(_BELOW).ljust(column)
                for more in _in_pairs(looked, max(self.width - column - len(_MARGIN), 20)):
                    yield self._paint("dim", below + more)

    def _looked_at(self, step: dict[str, Any]) -> str:
        """What a step looked at, without what stands elsewhere in the walk."""
        looked = dict(step["looked_at"])
        if looked.get("packet") == self.walk["packet"]:
            del looked["packet"]
        if step["decision"] == "begin":
            looked.pop("hook", None)
        words = []
        if all(end in looked for end in _ENDS):
            after = self.walk["entry"]["after"]
            if not after or any(looked[end] != after[end] for end in _ENDS):
                words.append(way(looked))
            if looked.pop("template", False):
                words.append(f"{looked['expires'] / 1000:.0f} s left")
            for name in (*_ENDS, "protocol", "method", "state", "expires"):
                looked.pop(name, None)
        words += [
            _word(name, value) for name, value in looked.items() if value is not None and value is not False
        ]
        return ", ".join(words)

    # ---- what came of it

    def _verdict(self) -> Iterator[str]:
        walk = self.walk
        verdict, why = walk["verdict"], walk["why"]
        style = "good" if why in GOOD else "bad" if verdict == "DROP" or why == "no_neighbour" else "other"
        text = f"{why}: {MEANING.get(why, '?')}"
        if verdict == "ACCEPT":
            text += f"; {_ON.get(walk['hook'], 'accepted')}"
        for i, line in enumerate(self._wrapped(text)):
            yield self._paint(style, f"{'' if i else verdict:<{_LABEL}}{line}")

    def _entry(self) -> Iterator[str]:
        before, after = self.walk["entry"]["before"], self.walk["entry"]["after"]
        if before and after and way(before) == way(after):
            yield from self._told("", before, after)
            return
        for label, entry in (("was", before), ("now" if before else "new", after)):
            if entry:
                yield from self._told(f"{label}: ", entry, entry)

    def _told(self, label: str, before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
        """An entry: whose it is, then state and time left; on one line if there is room."""
        state = _from_to(before["state"], after["state"])
        state += f", {_from_to(_seconds(before), _seconds(after))}"
        whose = f"{label}{after['protocol']} {way(after)},"
        if len(_MARGIN) + _LABEL + len(whose) + 1 + len(state) <= self.width:
            yield from self._labelled("entry", f"{whose} {state}")
        else:
            yield from self._labelled("entry", whose)
            yield " " * _LABEL + state

    def _left(self) -> Iterator[str]:
        if self.walk["changes"] is not None:
            yield from self._labelled("packet", "rewritten" if self.walk["changes"] else "put together")
            yield from self._changes(self.walk["changes"])
        for sent in self.walk["sent"]:
            if sent["own"]:
                yield from self._labelled("answer", f"{sent['packet']}")
            else:
                label = "lost" if self.walk["why"] == "no_neighbour" else "sent"
                yield from self._labelled(label, f"{sent['packet']}  via {sent['nexthop']}")
                yield from self._changes(sent["changes"])
        if self.walk["omitted"]:
            yield from self._labelled("", f"and {self.walk['omitted']} more like it")

    def _labelled(self, label: str, text: str) -> Iterator[str]:
        for i, line in enumerate(self._wrapped(text)):
            yield self._paint("name", f"{'' if i else label:<{_LABEL}}") + line

    def _wrapped(self, text: str) -> list[str]:
        return wrap(text, self.width - _LABEL - len(_MARGIN), break_on_hyphens=False)

    def _changes(self, changes: list[dict[str, Any]]) -> Iterator[str]:
        pad = " " * _LABEL
        names = max((len(c["layer"]) for c in changes), default=0)
        fields = max((len(c["field"]) for c in changes if c["before"] is not None), default=0)
        last = ""
        for layer, group in _by_layer(changes):
            if all(c["before"] is None for c in group):
                text = ", ".join(f"{c['field']} {_short(c['after'])}" for c in group)
                for i, line in enumerate(_in_pairs(text, self.width - _LABEL - names - len(_MARGIN) - 4)):
                    sign = " " if i else "+"
                    yield pad + f"{'' if i else layer:<{names}}  " + self._paint("good", f"{sign} {line}")
                continue
            for c in group:
                shown = "" if layer == last else layer
                last = layer
                before, after = _short(c["before"]), _short(c["after"])
                if after.endswith(" right"):
                    before = before.removesuffix(" right")
                text = f"{pad}{shown:<{names}}  {c['field']:<{fields}}  "
                room = self.width - len(_MARGIN) - len(text)
                between = " → " if len(before) + 3 + len(after) <= room else f"\n{_MARGIN}{' ' * len(text)}→ "
                yield text + self._paint("dim", before) + between + self._paint("good", after)


def _in_pairs(text: str, width: int) -> list[str]:
    """`name value, name value` in lines that end behind a comma."""
    kept = ", ".join(pair.replace(" ", "\xa0") for pair in text.split(", "))
    return [line.replace("\xa0", " ") for line in wrap(kept, width)]


def _guides(depths: list[int]) -> list[str]:
    """The branches in front of each step of a tree."""
    guides, above = [], list[int]()
    depths, told = [], depths
    for depth in told:  # a level that nobody is at is no level
        while above and above[-1] >= depth:
            above.pop()
        above.append(depth)
        depths.append(len(above) - 1)
    for i, depth in enumerate(depths):
        guide = ""
        for level in range(depth + 1):
            # Does another step of this level come before the tree goes back further?
            later = next((d for d in depths[i + 1 :] if d <= level), -1) == level
            guide += ("├─" if later else "└─") if level == depth else ("│ " if later else "  ")
        guides.append(guide)
    return guides


def _by_layer(changes: list[dict[str, Any]]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    names = list(dict.fromkeys(c["layer"] for c in changes))
    for name in names:
        yield name, [c for c in changes if c["layer"] == name]


def _word(name: str, value: Any) -> str:
    if name == "timeout":
        return f"{value / 1000:g} s"
    return str(value) if name == "direction" else f"{name.replace('_', ' ')} {value}"


def _seconds(entry: dict[str, Any]) -> str:
    return f"{entry['expires'] / 1000:.0f} s"


def _from_to(before: str, after: str) -> str:
    return after if before == after else f"{before} → {after}"


def _short(value: str | None) -> str:
    if value is None:
        return "-"
    return value if len(value) <= _DATA_MAX else value[: _DATA_MAX - 3] + "..."


def aside(said: str, colour: bool = False) -> str:
    """What happened between two packets."""
    return f"\033[{_COLOURS['dim']}m·· {said}\033[0m" if colour else f"·· {said}"
