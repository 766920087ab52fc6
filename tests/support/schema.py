"""As much of JSON Schema as the project's own schemas use; a keyword that is not known is an error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "boolean": (bool,), "null": (type(None),),
}  # fmt: skip
SAID = {"$schema", "title", "description", "$defs"}


def wrong(
    schema: dict[str, Any], value: Any, root: dict[str, Any] | None = None, at: str = "$"
) -> Iterator[str]:
    """What of a value is not as its schema says."""
    root = root or schema
    for word, rule in schema.items():
        match word:
            case "$ref":
                yield from wrong(root["$defs"][rule.removeprefix("#/$defs/")], value, root, at)
            case "anyOf":
                found = [list(wrong(one, value, root, at)) for one in rule]
                if all(found):
                    yield from found[0]
            case "type":
                names = [rule] if isinstance(rule, str) else rule
                kinds = sum((TYPES[name] for name in names), ())
                if not isinstance(value, kinds) or (isinstance(value, bool) and "boolean" not in names):
                    yield f"{at}: {value!r} is no {rule}"
                    return
            case "const":
                if value != rule:
                    yield f"{at}: {value!r}, not {rule!r}"
            case "enum":
                if value not in rule:
                    yield f"{at}: {value!r} is none of {rule}"
            case "pattern":
                if isinstance(value, str) and not re.search(rule, value):
                    yield f"{at}: {value!r} does not match {rule}"
            case "minimum":
                if value < rule:
                    yield f"{at}: {value} < {rule}"
            case "required":
                yield from (f"{at}: no {name}" for name in rule if name not in value)
            case "properties":
                for name in rule.keys() & value.keys():
                    yield from wrong(rule[name], value[name], root, f"{at}.{name}")
            case "items":
                for i, one in enumerate(value):
                    yield from wrong(rule, one, root, f"{at}[{i}]")
            case _:
                assert word in SAID, f"{at}: {word}"
