"""The list of metrics is what the documents say: the page of the reference, the dashboard, the how-to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from uvs.metrics.families import FAMILIES
from uvs.walk.reasons import GOOD

DOCS = Path(__file__).parents[3] / "docs"
NAMES = {family.name for family in FAMILIES}
METRIC = re.compile(r"\b(?:uvs|node_ipvs)_[a-z_]+\b")


def test_the_page_has_each_with_kind_and_labels() -> None:
    text = (DOCS / "reference/metrics.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (counter|gauge) \| ([^|]*) \| [^|]+ \|$", text, re.M)
    assert [(name, kind, re.findall(r"`(\w+)`", labels)) for name, kind, labels in rows] == [
        (f.name, "counter" if f.counts else "gauge", list(f.labels)) for f in FAMILIES
    ]


def expressions() -> Iterator[str]:
    """What the dashboard asks Prometheus for."""

    def inside(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from (
                node[key] for key in ("expr", "query", "definition") if isinstance(node.get(key), str)
            )
            node = list(node.values())
        if isinstance(node, list):
            for each in node:
                yield from inside(each)

    yield from inside(json.loads((DOCS / "grafana/uvs.json").read_text()))


def test_the_dashboard_asks_for_what_is_exported() -> None:
    asked = {name for expr in expressions() for name in METRIC.findall(expr)}
    assert asked - NAMES == set()
    assert len(asked) > 20


def test_the_dashboard_shows_what_is_no_success() -> None:
    (expr,) = [expr for expr in expressions() if "uvs_packets_total" in expr]
    left_out = re.search(r'why!~"([^"]*)"', expr)
    assert left_out
    assert set(left_out[1].split("|")) == GOOD


def test_labels_of_the_dashboard_exist() -> None:
    labels = {label for family in FAMILIES for label in family.labels} | {"job", "instance"}
    text = (DOCS / "grafana/uvs.json").read_text()
    assert set(re.findall(r"\{\{(\w+)\}\}", text)) - labels == set()


def test_the_how_to_alerts_on_what_is_exported() -> None:
    text = (DOCS / "how-to/monitor-with-prometheus.md").read_text()
    asked = set(METRIC.findall(text))
    assert {"uvs_up", "uvs_packets_total"} <= asked
    assert asked - NAMES - {"uvs_health_"} == set()
