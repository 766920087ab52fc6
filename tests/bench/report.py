"""Results told: plain tables for a terminal, Markdown for docs/performance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.peers import ROUTING
from bench.results import Figure, Results, WorkResult
from bench.targets import Bound, Row, added_latency, rows

NONE = "–"
Table = list[list[str]]  # the first row is the head


def title_of(work: WorkResult, subject: str) -> str:
    """A row's name: the peer, or the number with what it counts."""
    return f"{int(subject):,} {work.count}" if work.count else subject


def column_title(figure: Figure) -> str:
    """A column's."""
    return f"{figure.name}, {figure.unit}" if figure.unit else figure.name


def value(number: float | None, digits: int = 2) -> str:
    """A figure, or a dash."""
    return NONE if number is None else f"{number:,.{digits}f}"


def work_table(results: Results, name: str) -> Table:
    """Subjects against figures: medians, with the ratio to the first subject (plain routing, the smallest number) and
    the spread of the rounds, where there are several."""
    work = results.works[name]
    subjects = work.subjects()
    base = subjects[0] if subjects else ""
    table = [["", *(column_title(figure) for figure in work.figures.values())]]
    for subject in subjects:
        cells = [_cell(work, figure, subject, base) for figure in work.figures.values()]
        table.append([title_of(work, subject), *cells])
    return table


def _cell(work: WorkResult, figure: Figure, subject: str, base: str) -> str:
    median, against = work.median(figure.name, subject), work.median(figure.name, base)
    if median is None:
        return NONE
    share = f" ({median / against:.2f} x)" if against and subject != base else ""
    spread = work.spread(figure.name, subject)
    return value(median, figure.digits) + share + (f" ±{spread / 2:.0%}" if spread is not None else "")


def reasons(work: WorkResult) -> list[str]:
    """Why there are dashes."""
    return [f"{title_of(work, subject)}: {why}" for subject, why in work.missing.items()]


def latency_table(results: Results) -> Table:
    """Microseconds that each peer adds to plain routing's."""
    work = results.works["latency"]
    names = list(work.figures)
    table = [["added by", *(f"{name}, µs" for name in names)]]
    for subject in work.subjects():
        if subject != ROUTING and subject not in work.missing:
            table.append([subject, *(value(added_latency(results, name, subject), 1) for name in names)])
    return table


def target_table(found: Sequence[Row]) -> Table:
    """What the project wants to reach."""
    table = [["number to reach", "at least", "aim"]]
    for row in found:
        table.append([row.work, told(row.limits) or "reported", told(row.aims) or NONE])
    return table


def told(bounds: Sequence[Bound]) -> str:
    """Value, what it is of, the bound, and whether it holds."""
    words = []
    for each in bounds:
        state = {True: "met", False: "MISSED", None: "not measured"}[each.met]
        sign = ">=" if each.least else "<="
        digits = 3 if each.value is not None and abs(each.value) < 10 else 1
        words.append(f"{value(each.value, digits)} {each.of} ({sign} {each.bound:.4g}: {state})")
    return "; ".join(words)


def measured(row: Row) -> bool:
    """Is there anything of it?"""
    return any(bound.value is not None for bound in row.limits + row.aims)


def all_tables(results: Results) -> Iterator[tuple[str, Table, list[str]]]:
    """Titles, tables and what is to be said beneath them, in order."""
    for name, work in results.works.items():
        yield work.title, work_table(results, name), reasons(work)
        if name == "latency":
            yield "what each adds to that", latency_table(results), []
    found, rest = [r for r in rows(results) if measured(r)], [r for r in rows(results) if not measured(r)]
    notes = ["not measured: " + ", ".join(row.work for row in rest)] if rest else []
    yield "numbers to reach (driver native, ratios within this run)", target_table(found), notes


def plain(table: Table) -> str:
    """Aligned columns; a head longer than its column is wrapped to the width of what stands beneath it."""
    columns = list(zip(*table, strict=True))
    widths = [max([len(cell) for cell in column[1:]] + [min(16, len(column[0]))]) for column in columns]
    heads = [_wrapped(head, width) for head, width in zip(table[0], widths, strict=True)]
    widths = [max([w, *map(len, head)]) for w, head in zip(widths, heads, strict=True)]
    height = max(map(len, heads))
    lines = [[head[i] if i < len(head) else "" for head in heads] for i in range(height)] + table[1:]
    return "\n".join(_line(line, widths) for line in lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(c.ljust(w) for c, w in zip(cells, widths, strict=True)).rstrip()


def _wrapped(text: str, width: int) -> list[str]:
    lines = [""]
    for word in text.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > width:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def markdown(table: Table) -> str:
    """The same for a page."""
    head, *body = table
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *body])


def text(results: Results) -> str:
    """Everything, for a terminal."""
    parts = ["\n".join([title, plain(table), *notes]) for title, table, notes in all_tables(results)]
    parts += ["not run:\n" + "\n".join(results.failures)] if results.failures else []
    return "\n\n".join([machine(results), *parts])


def machine(results: Results) -> str:
    """Where and when, in two lines."""
    a = results.about
    return (
        f"uvs {a['uvs']} ({a['commit']}), {a['date']}: {a['processors']} processors, {a['processor']}, "
        f"Linux {a['kernel']}, load {a['load at the beginning']:.1f}\n"
        f"{', '.join(v for v in a['tools'].values())}; {a['rounds']} rounds, medians, ± half the spread"
    )
