"""What a check's, a fault monitor's and the hooks' settings may be."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from uvs.config import checks
from uvs.config.checks import Check, Fault, Hooks, Monitor, status_range

CHECK: TypeAdapter[Check] = TypeAdapter(Check)


def test_the_defaults() -> None:
    check = CHECK.validate_python({"type": "tcp"})
    assert (check.interval, check.timeout, check.rise, check.fall) == (5.0, 3.0, 2, 3)


def test_a_short_interval_shortens_the_time_out_that_is_not_said() -> None:
    assert CHECK.validate_python({"type": "tcp", "interval": 1}).timeout == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "Unable to extract tag"),
        ({"type": "telnet"}, "does not match any of the expected tags"),
        ({"type": "tcp", "interval": "5"}, "valid number"),
        ({"type": "tcp", "interval": 0.01}, "greater than or equal to 0.05"),
        ({"type": "tcp", "interval": float("inf")}, "finite number"),
        ({"type": "tcp", "interval": 1, "timeout": 2}, "timeout (2) is longer than interval (1)"),
        ({"type": "tcp", "rise": 0}, "greater than or equal to 1"),
        ({"type": "tcp", "port": 0}, "greater than or equal to 1"),
        ({"type": "tcp", "address": "rs1"}, "'rs1' is not an IP address"),
        ({"type": "tcp", "path": "/"}, "Extra inputs are not permitted"),
        ({"type": "http", "path": "/a b"}, "'/a b' is not a path"),
        ({"type": "http", "host": "a\r\nb"}, "has control characters"),
        ({"type": "http", "headers": {"a b": "c"}}, "'a b' is no name of a header"),
        ({"type": "http", "headers": {"a": "c\n"}}, "has control characters"),
        ({"type": "http", "body": "("}, "'(' is not a regular expression"),
        ({"type": "http", "body": "x", "method": "HEAD"}, "the answer to HEAD has none"),
        ({"type": "http", "status": []}, "at least 1 item"),
        ({"type": "http", "status": ["2xx"]}, "'2xx' is no HTTP status"),
        ({"type": "dns", "query": "a..b"}, "'a..b' is not a domain name"),
        ({"type": "dns", "query": "x" * 64}, "is not a domain name"),
        ({"type": "smtp", "helo": "a b"}, "should match pattern"),
        ({"type": "udp", "payload": "a", "payload_hex": "61"}, "payload and payload_hex: one of them"),
        ({"type": "udp", "payload_hex": "6"}, "'6' is not hexadecimal"),
        ({"type": "command", "command": " "}, "at least a program"),
        ({"type": "command", "command": []}, "at least a program"),
        ({"type": "command", "command": ["a\0"]}, "no NUL"),
    ],
)
def test_what_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError) as error:
        CHECK.validate_python(settings)
    assert message in str(error.value)


@pytest.mark.parametrize(("code", "span"), [(200, (200, 200)), ("204", (204, 204)), ("200-399", (200, 399))])
def test_statuses(code: int | str, span: tuple[int, int]) -> None:
    assert status_range(code) == span


@pytest.mark.parametrize("code", [99, 600, "399-200", "20", -200, True])
def test_what_is_no_status(code: int | str) -> None:
    with pytest.raises(ValueError, match="no HTTP status"):
        status_range(code)


def test_what_is_not_said_has_no_hooks_and_stays_with_the_director() -> None:
    assert Monitor() == Monitor(process="director", history=20, concurrency=100, hooks=Hooks())
    assert Fault().restart is None


# ---------------------------------------------------------------------------- docs/reference/health.md

PAGE = (Path(__file__).parents[3] / "docs/reference/health.md").read_text()
MODELS: dict[str, tuple[type[BaseModel], type[BaseModel] | None]] = {
    "tcp": (checks.Tcp, checks.Common),
    "http": (checks.Http, checks.Common),
    "https": (checks.Https, checks.Http),
    "dns": (checks.Dns, checks.Common),
    "smtp": (checks.Smtp, checks.Common),
    "ping": (checks.Ping, checks.Common),
    "udp": (checks.Udp, checks.Common),
    "command": (checks.External, checks.Common),
    "forward": (checks.Forward, checks.Common),
    "Every check": (checks.Tcp, None),
    "Fault monitor": (Fault, None),
    "Hooks": (Hooks, None),
    "Monitor": (Monitor, None),
}


def default(model: type[BaseModel], key: str) -> str:
    """As the page writes it."""
    field = model.model_fields[key]
    if field.is_required():
        return "required"
    if isinstance(field.default, BaseModel):
        return "none"
    return "" if field.default is None else f"`{json.dumps(field.default)}`"


@pytest.mark.parametrize("heading", MODELS)
def test_the_page_has_every_key_with_its_default(heading: str) -> None:
    model, base = MODELS[heading]
    section = re.split(rf"^## {heading}$", PAGE, flags=re.M)[1].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*?) ?\| ", section, re.M)
    inherited = set(base.model_fields) | {"type"} if base else set()
    keys = [key for key in model.model_fields if key not in inherited]
    assert sorted(rows) == sorted((key, default(model, key)) for key in keys)


def test_the_page_has_every_kind() -> None:
    kinds = {
        kind
        for model in get_args(get_args(Check)[0])
        for kind in get_args(model.model_fields["type"].annotation)
    }
    assert kinds < set(MODELS)
    assert all(f"`{kind}`" in PAGE for kind in kinds)
