"""Results drawn as SVG: bars for peers, lines for what depends on a number. Needs matplotlib (the extra `bench`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench import bulk
from bench.results import Results, WorkResult

# file, work, figures (bars side by side), the axis
BARS = (
    ("bulk", "bulk", (bulk.name(4, "up"), bulk.name(4, "down")), "Gbit/s"),
    ("packets", "packets", ("packets",), "1000 packets/s"),
    ("cost", "paced", ("process", "machine"), "µs a packet"),
    ("close", "close", ("connections",), "1000 connections/s"),
    ("keep", "keep", ("requests",), "1000 requests/s"),
    ("latency", "latency", ("same connection, median", "new connection, median"), "µs"),
)
LINES = (
    ("connections", "connections", ("packets",), "1000 packets/s"),
    ("services", "services", ("known", "new"), "1000/s"),
    ("servers", "servers", ("known", "new"), "1000/s"),
)
OURS, OTHERS = ("#1f6fb4", "#8fc1e8"), ("#6b6b6b", "#bdbdbd")


def of_work(work: str) -> list[str]:
    """Names of the files that show it: its own, and those named after something else (`cost`)."""
    return [f"{name}.svg" for name, of, *_ in BARS + LINES if of == work]


def available() -> bool:
    """Is matplotlib there?"""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw(results: Results, folder: Path) -> list[Path]:
    """One file a plot, of what was measured."""
    import matplotlib

    matplotlib.use("svg")
    # The same figures make the same file: no random ids, no date.
    matplotlib.rcParams |= {
        "svg.hashsalt": "uvs",
        "svg.fonttype": "none",
        "font.size": 9,
        "axes.axisbelow": True,
    }
    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for kind, plots in ((_bars, BARS), (_lines, LINES)):
        for name, work, figures, axis in plots:
            if work in results.works and results.works[work].rounds:
                made.append(folder / f"{name}.svg")
                kind(results.works[work], figures, axis, made[-1])
    return made


def _figure(height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(7, height), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _bars(work: WorkResult, figures: tuple[str, ...], axis: str, path: Path) -> None:
    subjects = [s for s in work.subjects() if any(s in work.rounds.get(f, {}) for f in figures)]
    figure = _figure(0.9 + 0.24 * len(figures) * len(subjects))
    ax = figure.subplots()
    thick = 0.8 / len(figures)
    for i, name in enumerate(figures):
        medians = [work.median(name, s) or 0 for s in subjects]
        rows = [work.rounds.get(name, {}).get(s, [0]) for s in subjects]
        errors = [
            [m - min(r) for m, r in zip(medians, rows, strict=True)],
            [max(r) - m for m, r in zip(medians, rows, strict=True)],
        ]
        colours = [(OURS if s.startswith("uvs") else OTHERS)[i % 2] for s in subjects]
        places = [n + (i - (len(figures) - 1) / 2) * thick for n in range(len(subjects))]
        ax.barh(places, medians, thick, xerr=errors, color=colours, error_kw={"lw": 0.8}, label=name)
    ax.set_yticks(range(len(subjects)), subjects)
    ax.invert_yaxis()
    ax.grid(axis="x", lw=0.3)
    ax.set_xlabel(axis if len(figures) == 1 else f"{axis}: {' (dark), '.join(figures)} (light)")
    ax.set_title(work.title, fontsize=9)
    _save(figure, path)


def _lines(work: WorkResult, figures: tuple[str, ...], axis: str, path: Path) -> None:
    figure = _figure(3)
    ax = figure.subplots()
    for i, name in enumerate(figures):
        counts = sorted(work.rounds.get(name, {}), key=int)
        medians = [work.median(name, c) or 0 for c in counts]
        ax.plot(
            [int(c) for c in counts], medians, marker="o", color=OURS[i % 2], label=work.figures[name].name
        )
    ax.set_xscale("log")
    ax.set_xticks([10**n for n in range(7) if 10**n <= max(map(int, work.order))])
    ax.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    ax.margins(y=0.1)
    ax.set_ylim(bottom=0)
    ax.grid(lw=0.3)
    ax.set_xlabel(work.count or "")
    ax.set_ylabel(axis)
    ax.set_title(work.title, fontsize=9)
    if len(figures) > 1:
        ax.legend()
    _save(figure, path)
