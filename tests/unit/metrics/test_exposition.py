"""The text is what prometheus_client would write of the same samples, but for what Prometheus does not care about."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from uvs.metrics.collect import Samples
from uvs.metrics.exposition import exposition, wants_open_metrics
from uvs.metrics.families import BY_NAME

# Values that a float tells apart, labels that need quoting, a metric without samples.
FOUND: Samples = {
    "node_ipvs_connections_total": {(): 2**40 + 1},
    "node_ipvs_backend_weight": {("192.0.2.1", "80", "198.51.100.1", "80", "TCP", ""): 0},
    "uvs_scrape_duration_seconds": {(): 0.125},
    "uvs_packets_total": {('a"b',): 1, ("c\\d",): 2, ("e\nf",): 3, ("é",): 1.5},
    "uvs_queue_waiting_packets": {},
}


class Registry:
    """What prometheus_client collects from."""

    def collect(self) -> Any:
        for name, values in FOUND.items():
            family = BY_NAME[name]
            kind = CounterMetricFamily if family.counts else GaugeMetricFamily
            metric = kind(name, family.text, labels=family.labels)
            for labels, value in values.items():
                metric.add_metric(labels, value)
            yield metric


@pytest.mark.parametrize(
    ("open_metrics", "generate"),
    [(False, generate_latest), (True, generate_openmetrics)],
    ids=["text", "OpenMetrics"],
)
def test_it_is_what_the_library_writes(open_metrics: bool, generate: Any) -> None:
    expected = generate(Registry()).decode().replace("1.099511627777e+012", "1099511627777.0")
    expected = expected.replace("1.099511627777e+12", "1099511627777.0")
    assert exposition(FOUND, open_metrics).decode().splitlines() == expected.splitlines()


# What Prometheus 2 and 3, curl and a browser accept.
ACCEPTED = [
    ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.4,*/*;q=0.1", True),
    ("text/plain;version=0.0.4;q=0.4,*/*;q=0.1", False),
    ("*/*", False),
    ("text/html,application/xhtml+xml", False),
    ("", False),
]


@pytest.mark.parametrize(("accept", "expected"), ACCEPTED)
def test_which_format(accept: str, expected: bool) -> None:
    assert wants_open_metrics(accept) is expected
