"""docs/performance/README.md: what stands between its markers comes from a run's figures, which are kept beside it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from bench import plots, report
from bench.results import Results
from bench.targets import rows

FOLDER = Path(__file__).parents[2] / "docs/performance"
PAGE, FIGURES = "README.md", "figures.json"
MARKER = re.compile(r"(<!-- begin (\S+) -->\n).*?(<!-- end \2 -->)", re.S)


def parts(results: Results, folder: Path = FOLDER) -> dict[str, str]:
    """What belongs between the markers, by their names: tables, and the plots that there are."""
    found = {
        "machine": report.machine(results) + "\n",
        "targets": report.markdown(report.target_table(rows(results))) + "\n",
    }
    for name, work in results.works.items():
        table = report.markdown(report.work_table(results, name))
        blocks = [_capital(work.title) + ":", table]
        if notes := report.reasons(work):
            blocks.append(_capital("; ".join(notes)) + ".")
        blocks += [f"![{work.title}]({plot})" for plot in plots.of_work(name) if (folder / plot).exists()]
        found[name] = "\n\n".join(blocks) + "\n"
    if "latency" in results.works:
        found["latency-added"] = report.markdown(report.latency_table(results)) + "\n"
    return found


def _capital(title: str) -> str:
    return title[:1].upper() + title[1:]


def filled(page: str, results: Results, folder: Path = FOLDER) -> str:
    """The page with a run's tables. ValueError if a table has no place there."""
    made = parts(results, folder)
    places = [name for _, name, _ in MARKER.findall(page)]
    if without := [name for name in made if name not in places]:
        raise ValueError(f"{PAGE} has no markers for {', '.join(without)}")
    return MARKER.sub(lambda m: m[1] + made.get(m[2], "") + m[3], page)


def write(results: Results, folder: Path = FOLDER) -> list[Path]:
    """Page, figures and plots."""
    page, figures = folder / PAGE, folder / FIGURES
    drawn = plots.draw(results, folder) if plots.available() else []
    page.write_text(filled(page.read_text(), results, folder))
    figures.write_text(json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n")
    return [page, figures, *drawn]
