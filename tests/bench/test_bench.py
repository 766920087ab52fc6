"""The harness of scripts/bench works: a run in miniature, and what it makes of the tools' words."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

import pytest

from bench import bulk, flood, page, plan, plots, report, stand, targets, web
from bench.__main__ import main, parser
from bench.peers import ACCEPT, ACCEPT_GSO, DNAT, HAPROXY, NGINX, ROUTING, peers, uvs_name
from bench.results import Figure, Results, WorkResult, processor
from bench.work import FULL, TINY

NAT = uvs_name("nat", "native")
ABOUT = {
    "uvs": "1", "commit": "abc", "date": "today", "processors": 2, "processor": "x", "kernel": "6", "load at the beginning": 0.1,
    "tools": {"wrk": "wrk 4"}, "rounds": 2,
}  # fmt: skip


def made(**works: dict[str, dict[str, list[float]]]) -> Results:
    """Results of works: figures, subjects, rounds."""
    results = Results(dict(ABOUT))
    for name, rounds in works.items():
        order = list(dict.fromkeys(subject for of in rounds.values() for subject in of))
        results.works[name] = WorkResult(name, {f: Figure(f, "u") for f in rounds}, None, order, rounds)
    return results


# ---------------------------------------------------------------------------- what tools say

WRK = """\
Running 1s test @ http://192.0.2.100:80/
  2 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency   532.80us    1.02ms  31.50ms   97.11%
    Req/Sec    58.21k     6.18k   66.34k    80.00%
  Latency Distribution
     50%  {p50}
     75%  555.00us
     90%  812.00us
     99%    {p99}
  115914 requests in 1.00s, 17.91MB read
{errors}Requests/sec: 115795.80
Transfer/sec:     17.89MB
"""


@pytest.mark.parametrize(
    ("p50", "p99", "errors", "expected"),
    [
        ("425.00us", "3.98ms", "", (0.425, 3.98, 0)),
        ("1.00ms", "1.20s", "  Socket errors: connect 1, read 20, write 3, timeout 4\n", (1, 1200, 28)),
        ("1.00ms", "2.00m", "  Non-2xx or 3xx responses: 7\n", (1, 120_000, 7)),
    ],
)
def test_wrk_is_understood(p50: str, p99: str, errors: str, expected: tuple[float, float, float]) -> None:
    found = web.parse(WRK.format(p50=p50, p99=p99, errors=errors))
    assert found["requests"] == pytest.approx(115.7958)
    assert (found["p50"], found["p99"], found["errors"]) == pytest.approx(expected)


def test_what_is_not_wrks_is_told() -> None:
    with pytest.raises(ValueError, match="not what wrk prints: 'unable to connect"):
        web.parse("unable to connect to 192.0.2.100:80 Connection refused")


def test_iperf3_is_understood() -> None:
    assert bulk.rate({"end": {"sum_received": {"bits_per_second": 1.25e9}}}) == 1.25
    with pytest.raises(RuntimeError, match="iperf3: unable to connect"):
        bulk.rate({"end": {}, "error": "unable to connect to server"})


def intervals(*rates: float) -> list[dict[str, dict[str, float]]]:
    """iperf3's, of half a second each."""
    return [{"sum": {"start": i / 2, "end": (i + 1) / 2, "bits_per_second": r}} for i, r in enumerate(rates)]


def test_what_a_flow_keeps_leaves_begin_and_edges_out() -> None:
    rates = intervals(99, 99, 10, 12, 11, 99, 99, 4, 6, 5, 5, 99)
    assert flood.shares(rates, 3.0, 5.5) == (11, 5)
    with pytest.raises(ValueError, match="iperf3 ended early"):
        flood.shares(rates[:4], 3.0, 5.5)


def test_connections_are_counted() -> None:
    listing = """\
IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  192.0.2.100:80 rr
  -> 198.51.100.11:80             Masq    1      3          40000
UDP  192.0.2.100:7000 rr
  -> 198.51.100.11:7000           Masq    1      0          20
"""
    assert flood.connections(listing) == 40023


def test_busy_time_is_what_is_not_idle() -> None:
    assert stand.machine_time("cpu  100 20 30 9999 999 5 45 7 0 0\ncpu0 1 2") * stand.TICK == pytest.approx(
        200
    )


def test_the_processor_is_named() -> None:
    assert processor("processor\t: 0\nmodel name\t: A 9\nmodel name\t: A 9\n") == "A 9"
    assert processor("") == ""


# ---------------------------------------------------------------------------- what is made of figures


def test_targets_compare_within_the_run() -> None:
    results = made(
        bulk={"IPv4 up": {HAPROXY: [8, 8], NAT: [9, 7], ACCEPT_GSO: [10, 10]}},
        latency={"same connection, median": {ROUTING: [20], HAPROXY: [50], NAT: [35]}},
        packets={"packets": {ACCEPT: [100], NAT: [59]}},
        connections={"arena": {"1000000": [140]}, "resident": {"10": [50], "1000000": [200]}},
    )
    found = {row.work: row for row in targets.rows(results)}
    up = found["bulk TCP by NAT, up"]
    assert [(b.value, b.met) for b in up.limits + up.aims] == [(1.0, True), (0.8, False)]
    assert found["small packets by NAT"].limits[0].met is False
    latency = found["latency added to a request, same connection"]
    assert [(b.value, b.met) for b in latency.limits + latency.aims] == [(0.5, True), (0.5, True)]
    each = found["a million connections, each"]
    assert [(b.value, b.met) for b in each.limits + each.aims] == [(150, True), (150, False)]
    assert found["connections a second by NAT"].limits[0].met is None


def test_every_row_is_told_whatever_is_missing() -> None:
    results = Results(dict(ABOUT))
    text = report.text(results)
    assert [row.work for row in targets.rows(results) if row.work not in text] == []
    assert report.plain(report.target_table(targets.rows(results))).count("not measured") > len(
        targets.rows(results)
    )


def test_a_table_has_ratios_and_spread_and_says_what_is_missing() -> None:
    results = made(work={"rate": {"a": [10, 12], "b": [5, 6]}})
    work = results.works["work"]
    work.order.append("c")
    work.missing["c"] = "not here: c"
    assert report.work_table(results, "work")[1:] == [
        ["a", "11.00 ±9%"],
        ["b", "5.50 (0.50 x) ±9%"],
        ["c", "–"],
    ]
    assert "c: not here: c" in report.text(results)


def test_json_brings_results_back() -> None:
    results = made(work={"rate": {"a": [1.5], "b": [2.0]}})
    results.failures.append("work: c: no")
    assert Results.from_json(json.loads(json.dumps(results.to_json()))) == results


# ---------------------------------------------------------------------------- docs/performance


def test_the_page_has_a_place_for_every_table_and_no_other() -> None:
    text = (page.FOLDER / page.PAGE).read_text()
    assert {name for _, name, _ in page.MARKER.findall(text)} == {
        "machine",
        "targets",
        "latency-added",
        *plan.NAMES,
    }
    assert len(re.findall("<!-- (?:begin|end) ", text)) == 2 * len(page.MARKER.findall(text))


def test_a_table_without_a_place_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers for targets, work"):
        page.filled("<!-- begin machine -->\n<!-- end machine -->", made(work={"rate": {"a": [1]}}))


def test_the_page_says_what_the_figures_say() -> None:
    figures = page.FOLDER / page.FIGURES
    text = (page.FOLDER / page.PAGE).read_text()
    assert page.filled(text, Results.from_json(json.loads(figures.read_text()))) == text


def test_plots_are_drawn(tmp_path: Path) -> None:
    results = made(
        bulk={bulk.name(4, "up"): {"a": [1, 2], NAT: [3]}, bulk.name(4, "down"): {"a": [1]}},
        services={"known": {"1": [4], "100": [2]}, "new": {"1": [1], "100": [1]}},
    )
    results.works["services"].count = "services"
    first = {p.name: p.read_text() for p in plots.draw(results, tmp_path / "first")}
    assert set(first) == {"bulk.svg", "services.svg"}
    assert all("<svg" in text for text in first.values())
    assert {p.name: p.read_text() for p in plots.draw(results, tmp_path / "second")} == first


# ---------------------------------------------------------------------------- the command


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--only", "bulk,wings"], "no 'wings': one of bulk, "),
        (["--peers", "HAProxy,ipvs"], "no 'ipvs': one of plain routing, "),
        (["--rounds", "many"], "invalid int value"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_wrong_use_is_told(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(argv)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_options_are_passed_on_to_the_native_driver() -> None:
    args = parser().parse_args(["--uvs-options=--queues 2"])
    assert isinstance(args, argparse.Namespace)
    assert args.uvs_options == ["--queues", "2"]
    native, other = (
        next(p for p in peers(args.uvs_options) if p.driver == d) for d in ("native", "netfilterqueue")
    )
    assert native.start.keywords["options"] == ("--driver", "native", "--queues", "2")  # type: ignore[attr-defined]
    assert other.start.keywords["options"] == ("--driver", "netfilterqueue")  # type: ignore[attr-defined]


def test_figures_of_an_earlier_run_are_told_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"
    file.write_text(json.dumps(made(packets={"packets": {ACCEPT: [100], NAT: [90]}}).to_json()))
    assert main(["--from", str(file)]) == 0
    assert "0.900 x accept loop (>= 0.6: met)" in capsys.readouterr().out


# ---------------------------------------------------------------------------- a run


def test_a_peer_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    haproxy = next(p for p in peers() if p.name == HAPROXY)
    if not haproxy.lacks():
        monkeypatch.setattr(type(haproxy), "lacks", lambda self: ["haproxy"])
    run = plan.Run(TINY, {}, Results(dict(ABOUT)))
    run.everything(["bulk"], [haproxy])
    assert run.results.failures == ["bulk: HAProxy: not here: haproxy"]
    assert run.results.works["bulk"].subjects() == [HAPROXY]


def test_a_run_in_miniature(tmp_path: Path) -> None:
    """Every kind of work, by peers of every kind: each figure is there."""
    programs, every = stand.compile_programs(tmp_path), {p.name: p for p in peers()}
    run = plan.Run(TINY, programs, Results(dict(ABOUT)))
    run.everything(plan.NAMES, [every[HAPROXY], every[NAT]])
    results = run.results
    assert results.failures == []
    assert list(results.works) == list(plan.NAMES)
    holes = [
        (name, figure, subject)
        for name, work in results.works.items()
        for subject in work.order
        for figure in work.figures
        if work.median(figure, subject) is None and subject not in work.missing
    ]
    assert [hole for hole in holes if hole[0] != "flood" or hole[2] != HAPROXY] == []  # it has no table
    assert results.works["packets"].missing == {HAPROXY: "forwards no UDP"}
    assert all(n > 0 for n in results.works["bulk"].rounds["IPv4 up"][NAT])
    assert Results.from_json(json.loads(json.dumps(results.to_json()))) == results
    assert page.filled((page.FOLDER / page.PAGE).read_text(), results).count("| --- |") > len(plan.NAMES)

    others = plan.Run(TINY, programs, Results(dict(ABOUT)))
    others.everything(
        ["packets", "latency"], [every[name] for name in (ROUTING, DNAT, NGINX, ACCEPT, ACCEPT_GSO)]
    )
    assert others.results.failures == []


def test_an_interruption_leaves_what_was_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And ends the labs."""
    labs = []

    def latency(self: stand.Stand, kind: str, seconds: float) -> tuple[int, float, float]:
        labs.append(self.lab)
        if len(labs) == 3:
            raise KeyboardInterrupt
        return 1, 2.0, 3.0

    monkeypatch.setattr(stand.Stand, "latency", latency)
    run = plan.Run(TINY, stand.compile_programs(tmp_path), Results(dict(ABOUT)))
    run.everything(["latency"], [p for p in peers() if p.name in (ROUTING, DNAT)])
    assert run.results.failures == [plan.INTERRUPTED]
    assert run.results.works["latency"].subjects() == [ROUTING]
    assert [lab.stands for lab in labs] == [False] * 3


def test_a_full_run_has_both_families_and_many_streams() -> None:
    figures = [figure.name for figure in bulk.WORK.figures(FULL)]
    assert figures == [
        "IPv4 up",
        "IPv4 down",
        "IPv4 up, 16 streams",
        "IPv4 down, 16 streams",
        "IPv6 up",
        "IPv6 down",
    ]


def test_no_file_hides_a_module_of_python() -> None:
    """Those that are run by themselves have this folder first on their path."""
    assert not {path.stem for path in Path(__file__).parent.glob("*.py")} & sys.stdlib_module_names
