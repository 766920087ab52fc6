"""The reference of uvs.toml: the page and the man page have each key of the models, with type and default."""

from __future__ import annotations

import re
import types
import typing
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from uvs.config import schema
from uvs.config.load import parse
from uvs.config.schema import Config, Director, Server, Service, Timeouts, Tunnel

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/reference/configuration.md").read_text()
MAN = (ROOT / "docs/reference/man/uvs.toml.5").read_text()
HEADINGS = {
    "director": Director,
    "timeouts": Timeouts,
    "service": Service,
    "server": Server,
    "tunnel": Tunnel,
}
SECTIONS = {"[director]": Director, "[timeouts]": Timeouts, "[[service]]": Service, "[[service.server]]": Server, "tunnel": Tunnel}  # fmt: skip


def kind(annotation: Any, metadata: list[Any]) -> str:
    """A type as the page names it."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return kind(args[0], [*metadata, *args[1:]])
    if origin is typing.Literal:
        *some, last = (f"`{each}`" for each in args)
        return f"{', '.join(some)} or {last}"
    if origin is list:
        inner = kind(args[0], [])
        return f"list of {inner}" if inner.startswith("`") else f"list of {inner}s"
    if origin in (types.UnionType, typing.Union):
        kinds = [kind(each, metadata) for each in args if each is not type(None)]
        return "table" if set(kinds) == {"table"} else " or ".join(kinds)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "table"
    bounds = [part for each in metadata for part in getattr(each, "metadata", [each])]
    low = next((each.ge for each in bounds if hasattr(each, "ge")), None)
    high = next((each.le for each in bounds if hasattr(each, "le")), None)
    within = "" if low is None else f" {low}..{high}"
    return {int: "integer", float: "number", str: "text", bool: "boolean"}[annotation] + within


def default(value: Any) -> str:
    match value:
        case None:
            return ""
        case []:
            return "none"
        case bool():
            return str(value).lower()
        case float():
            return f"{value:g}"
        case BaseModel():
            return "{}"
    return "needed" if value is PydanticUndefined else str(value)


@pytest.mark.parametrize("heading", HEADINGS)
def test_the_page_has_each_key_with_its_type_and_default(heading):
    (text,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*?) ?\| [^|]+ \|$", text, re.M)
    fields = HEADINGS[heading].model_fields
    assert rows == [
        (name, kind(field.annotation, field.metadata), default(field.get_default(call_default_factory=True)))
        for name, field in fields.items()
    ]


@pytest.mark.parametrize("section", SECTIONS)
def test_the_man_page_has_each_key(section):
    (text,) = re.findall(rf"^\.Ss {re.escape(section)}\n(.*?)(?=^\.S[sh] )", MAN, re.M | re.S)
    assert re.findall(r"^\.It Va (\w+)", text, re.M) == list(SECTIONS[section].model_fields)


def test_each_model_is_in_the_reference():
    models = {
        each for each in vars(schema).values() if isinstance(each, type) and issubclass(each, BaseModel)
    }
    ours = {each for each in models if each.__module__ == schema.__name__}
    assert ours == {Config, *HEADINGS.values()}


@pytest.mark.parametrize("page", ["how-to/configure.md"])
def test_examples_are_right(page):
    examples = re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / page).read_text(), re.M | re.S)
    assert examples
    for text in examples:
        assert parse(text.encode(), page).service
