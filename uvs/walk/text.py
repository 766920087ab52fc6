"""A walk as an indented tree in the kernel's function names."""

from __future__ import annotations

from typing import Any

_COLOURS = {"name": "1", "good": "32", "bad": "31", "dim": "2"}


def render(walk: dict[str, Any], colour: bool = False) -> str:
    """The text of a walk in its JSON form (docs/reference/walk.md), without a newline at its end."""

    def paint(style: str, text: str) -> str:
        return f"\033[{_COLOURS[style]}m{text}\033[0m" if colour else text

    lines = [f"{paint('name', walk['hook'])}  {walk['packet']}"]
    for step in walk["steps"]:
        looked = ", ".join(
            f"{k} {v}" for k, v in step["looked_at"].items() if v is not None and v is not False
        )
        line = f"{'  ' * (step['depth'] + 1)}{paint('name', step['function'])}: {step['decision']}"
        lines.append(line + (paint("dim", f"  [{looked}]") if looked else ""))
    style = "bad" if walk["verdict"] == "DROP" else "good"
    lines.append(f"  verdict {paint(style, walk['verdict'])}: {walk['why']}")
    for name in "before", "after":
        if entry := walk["entry"][name]:
            way = f"{entry['client']} -> {entry['virtual']} -> {entry['destination']} ({entry['method']})"
            expires = f"{entry['expires'] / 1000:.0f} s"
            lines.append(f"  entry {name}: {entry['protocol']} {entry['state']} {way}, {expires}")
    lines += [f"  sent to {s['nexthop']}: {s['packet']}" for s in walk["sent"]]
    return "\n".join(lines)
