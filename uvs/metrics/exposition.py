"""Metrics as text: the exposition formats of Prometheus (0.0.4) and OpenMetrics (1.0.0).

By hand, since ten thousand servers are ninety thousand lines, and a server's labels are in nine of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from uvs.metrics.collect import Labels, Samples
from uvs.metrics.families import BY_NAME

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPED = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def wants_open_metrics(accept: str) -> bool:
    """Does an Accept header name it? Prometheus names it first if it takes it."""
    return "application/openmetrics-text" in accept


def exposition(found: Samples, open_metrics: bool = False) -> bytes:
    """The text of a scrape."""
    return "".join(_lines(found, open_metrics)).encode()


def _lines(found: Samples, open_metrics: bool) -> Iterator[str]:
    spelled: dict[tuple[tuple[str, ...], Labels], str] = {}
    for name, samples in found.items():
        family = BY_NAME[name]
        said = name.removesuffix("_total") if open_metrics else name
        yield f"# HELP {said} {family.text}\n# TYPE {said} {'counter' if family.counts else 'gauge'}\n"
        for labels, value in samples.items():
            key = family.labels, labels
            if (text := spelled.get(key)) is None:
                text = spelled[key] = _labels(family.labels, labels)
            yield f"{name}{text} {float(value)!r}\n"
    if open_metrics:
        yield "# EOF\n"


def _labels(names: tuple[str, ...], values: Labels) -> str:
    if not names:
        return ""
    pairs = sorted(zip(names, values, strict=True))
    return "{" + ",".join(f'{name}="{value.translate(_ESCAPED)}"' for name, value in pairs) + "}"
