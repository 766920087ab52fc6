"""The documents are true: reasons, commands, options, links, man pages, completions."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest

from uvs.adm import cli, grammar
from uvs.cli import COMMANDS, command_parser
from uvs.doctor.finding import Finding, Name, State
from uvs.engine.core import TUN_F_CSUM, TUN_GRE, TUN_GUE, TUN_IPIP, Dir, Table, Why, tunnel_hlen
from uvs.engine.table import sctp_next, state_name, tcp_next
from uvs.ipvs import scheduling
from uvs.ipvs.estimator import Estimator
from uvs.ipvs.knobs import KNOBS
from uvs.ipvs.sysctl import Sysctl
from uvs.ipvs.walk import Walk
from uvs.walk.jsontext import complete

ROOT = Path(__file__).parents[2]
MAN = ROOT / "docs/reference/man"
COMPLETIONS = ROOT / "completions"
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
HELP = {"-h", "--help"}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def commands(
    parser: argparse.ArgumentParser, words: tuple[str, ...] = ()
) -> Iterator[tuple[str, set[str], list[str]]]:
    """Each (sub)command of `uvs`: its words, its options but --help, its subcommands."""
    subcommands = next((a.choices for a in parser._actions if isinstance(a, argparse._SubParsersAction)), {})
    options = {o for action in parser._actions for o in action.option_strings} - HELP
    yield " ".join(words), options, list(subcommands)
    for word, sub in subcommands.items():
        yield from commands(sub, (*words, word))


UVS = {words: (options, subs) for words, options, subs in commands(command_parser())}
OTHERS = {"uvsadm-save": {"-n"}, "uvsadm-restore": {*cli.RESTORE_OPTIONS} | HELP}
UVSADM = {f"--{o.long}" for o in grammar.OPTIONS} | {f"-{o.short}" for o in grammar.OPTIONS if o.short}


# ---------------------------------------------------------------------------- Markdown


def test_every_reason_is_explained_and_no_other() -> None:
    table = (ROOT / "docs/reference/reasons.md").read_text()
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == [why.label for why in Why]


def test_every_sysctl_is_explained_with_its_default_and_range() -> None:
    table = (ROOT / "docs/reference/sysctls.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \| ([^|]*) \|[^|]*\| ([^|]*) \|$", table, re.M)
    of_the_host = {"est_cpulist": "all CPUs", "sync_qlen_max": "pages of memory / 32"}
    sysctl = Sysctl()
    assert [row[:3] for row in rows] == [
        (name, of_the_host.get(name, sysctl.get(name).replace("\t", " ")), knob.range)
        for name, knob in KNOBS.items()
    ]
    told = {name for name, _, _, see in rows if see.startswith("no meaning here because ")}
    assert told == {name for name, knob in KNOBS.items() if knob.inert}


def test_every_finding_of_the_doctor_is_explained_and_no_other() -> None:
    _, *rows = tables("doctor.md")["Findings"]
    assert [row[0] for row in rows] == list(Name)
    assert [row[0] for row in rows if len(row) != 4 or not all(row)] == []
    members = [row[0] for row in tables("doctor.md")["JSON"][1:]]
    schema = json.loads((ROOT / "docs/reference/doctor.schema.json").read_text())
    assert members == [f.name for f in fields(Finding)] == schema["items"]["required"]
    assert members == list(schema["items"]["properties"])
    assert schema["items"]["properties"]["state"]["enum"] == list(get_args(State))


def test_every_command_is_in_the_reference() -> None:
    text = (ROOT / "docs/reference/commands.md").read_text()
    assert [c for c in COMMANDS if f"`uvs {c}" not in text] == []


def test_every_field_of_the_walk_is_documented() -> None:
    text = (ROOT / "docs/reference/walk.md").read_text()
    documented = re.findall(r"^\| `(\w+)` \|", text, re.M)
    assert documented == list(complete(Walk(0, "LOCAL_IN", "", b"").to_json()))
    schema = json.loads((ROOT / "docs/reference/walk.schema.json").read_text())
    assert documented == schema["required"]
    assert sorted(documented) == sorted(schema["properties"])


def tables(page: str) -> dict[str, list[list[str]]]:
    """The first table under each heading of a page of the reference: rows of cells, the head first, the rule left out."""
    _, *parts = re.split(r"^#+ (.*)$", (ROOT / "docs/reference" / page).read_text(), flags=re.M)
    found = {}
    for heading, text in zip(parts[::2], parts[1::2], strict=True):
        if table := re.search(r"(?:^\|.*\|\n)+", text, re.M):
            rows = [[cell.strip(" `") for cell in row.split("|")[1:-1]] for row in table[0].splitlines()]
            found[heading] = [rows[0], *rows[2:]]
    return found


TCP, SCTP = 6, 132
MODULES = {p.stem for p in (ROOT / "uvs/ipvs").glob("*.py")}
DIRECTIONS = {"request": Dir.INPUT, "reply": Dir.OUTPUT, "request alone": Dir.INPUT_ONLY}
TCP_ACTIVE = {"ESTABLISHED", "SYN_SENT", "SYN_RECV", "SYNACK"}
STATES = tables("states.md")


@pytest.mark.parametrize(
    ("protocol", "heading", "active"), [(TCP, "TCP", TCP_ACTIVE), (SCTP, "SCTP", {"ESTABLISHED"})]
)
def test_the_table_of_states_is_the_engines(protocol: int, heading: str, active: set[str]) -> None:
    """Names, time-outs, and which count as active (the engine's table of that: tests/unit/engine/test_proto_*)."""
    with Table() as table:
        timeouts = table.timeouts(protocol)
    names = [state_name(protocol, n) for n in range(len(timeouts))]
    expected = [
        [n, str(ms // 1000), "yes" if n in active else ""] for n, ms in zip(names, timeouts, strict=True)
    ]
    assert [[row[0], *row[2:]] for row in STATES[heading][1:]] == expected


def short(heading: str) -> list[str]:
    """The short names of a protocol's states, by number."""
    return [row[1] for row in STATES[heading][1:]]


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("secure", [False, True])
def test_tcps_transitions_are_the_engines(secure: bool, direction: str) -> None:
    names = short("TCP")
    head, *rows = STATES[f"TCP{' under secure_tcp' if secure else ''}: {direction}"]
    events = [event.lower() for event in head[1:]]
    assert rows == [
        [now, *(names[tcp_next(secure, DIRECTIONS[direction], event, n)] for event in events)]
        for n, now in enumerate(names)
    ]


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sctps_transitions_are_the_engines(direction: str) -> None:
    names = short("SCTP")
    head, *rows = STATES[f"SCTP: {direction}"]
    assert rows == [
        [now, *(names[sctp_next(DIRECTIONS[direction], event, n)] for event in range(len(head) - 1))]
        for n, now in enumerate(names)
    ]


TUNNELS = {
    "ipip": (TUN_IPIP, 0),
    "gue": (TUN_GUE, 0),
    "gre": (TUN_GRE, 0),
    "gre with checksum": (TUN_GRE, TUN_F_CSUM),
}


def test_what_fits_into_a_tunnel_is_the_transmitters() -> None:
    """Largest inner packets on a route of 1500 bytes, by outer family."""
    _, *rows = tables("packets.md")["Sizes"]
    expected = [
        [k, *(str(1500 - outer - tunnel_hlen(*kind)) for outer in (20, 40))] for k, kind in TUNNELS.items()
    ]
    assert rows == expected


def test_every_scheduler_is_documented() -> None:
    documented = [row[0] for row in tables("schedulers.md")["Schedulers"][1:]]
    assert sorted(documented) == sorted([*scheduling.names(), "none"])


def test_the_worked_rates_are_the_estimators() -> None:
    _, *rows = tables("statistics.md")["Rates"]
    estimator, conns = Estimator(), 0
    for row in rows:
        conns += int(row[1])
        estimator.sample((conns, 0, 0, 0, 0))
        assert int(row[2]) == estimator.rates[0], row


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_scenarios_that_are_named_exist(path: Path) -> None:
    named = [
        n for text in re.findall(r"\(recorded: ([^)]*)\)", path.read_text()) for n in re.split(r",\s+", text)
    ]
    scenarios = {p.stem for p in (ROOT / "tests/kernel/scenarios").glob("*.txt")}
    assert [n for n in named if n not in scenarios] == []


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_knobs_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"uvs sysctl ([a-z][a-z0-9_]*)", path.read_text())
    assert [n for n in named if n not in KNOBS] == []


def anchors(path: Path) -> set[str]:
    """What a link may name after `#`: the headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
    return {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_anchors_exist(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)#([^)]*)\)", path.read_text())
    wrong = [f"{file}#{to}" for file, to in links if to not in anchors(path.parent / file if file else path)]
    assert wrong == []


def test_every_page_is_reached_from_the_index() -> None:
    found, todo = set(), [ROOT / "docs/README.md"]
    while todo:
        page = todo.pop().resolve()
        if page in found or page.suffix != ".md":
            continue
        found.add(page)
        todo += [page.parent / link for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())]
    assert sorted(name(p) for p in (ROOT / "docs").rglob("*.md") if p.resolve() not in found) == []
    assert "(docs/README.md)" in (ROOT / "README.md").read_text()


def test_functions_of_the_hook_path_exist() -> None:
    here = " ".join(row[0] for row in tables("hook-path.md")["Function by function"][1:])
    named = re.findall(r"\b(\w+)\.(\w+)((?:\.\w+)*)", re.sub(r"\S+\.(?:c|py)\b", "", here))
    assert len(named) > 10
    missing = [
        f"{m}.{f}" for m, f, _ in named if m in MODULES and not hasattr(import_module(f"uvs.ipvs.{m}"), f)
    ]
    assert missing == []
    assert [m for m, _, _ in named if m not in MODULES and m[0].islower()] == []


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text())
    assert [link for link in links if not (path.parent / link).exists()] == []


@pytest.mark.parametrize("path", DOCS, ids=name)
def test_files_that_are_named_exist(path: Path) -> None:
    named = re.findall(r"`((?:csrc|docs|scripts|tests|uvs)/[\w./-]*)`", path.read_text())
    assert [n for n in named if not (ROOT / n).exists()] == []


# ---------------------------------------------------------------------------- man pages


def flags(mdoc: str) -> list[str]:
    """The options that have an item of their own: `.It Fl a , Fl -all Ar x` → -a, --all."""
    items = re.findall(r"^\.It (Fl .*)$", mdoc, re.M)
    return ["-" + flag for item in items for flag in re.findall(r"Fl (\S+)", item)]


def test_the_man_page_of_uvs_has_the_options_of_each_command() -> None:
    before, *sections = re.split(r"^\.Ss (.*)$", (MAN / "uvs.8").read_text(), flags=re.M)
    pages = dict(zip(sections[::2], map(flags, sections[1::2]), strict=True)) | {"": flags(before)}
    leaves = {words: options for words, (options, subs) in UVS.items() if not subs or not words}
    leaves[""] = leaves[""] | HELP
    assert {words: sorted(found) for words, found in pages.items()} == {
        words: sorted(options) for words, options in leaves.items()
    }


def test_the_man_page_of_uvsadm_has_its_options() -> None:
    assert sorted(flags((MAN / "uvsadm.8").read_text())) == sorted(UVSADM)


@pytest.mark.parametrize(("program", "options"), OTHERS.items())
def test_the_smaller_programs_have_man_page_and_completions(program: str, options: set[str]) -> None:
    assert sorted(flags((MAN / f"{program}.8").read_text())) == sorted(options)
    assert bash(program) == options
    assert zsh(program) == options
    assert set().union(*(o for _, o, _ in fish(program))) == options


def test_what_is_there_is_installed() -> None:
    """Man pages and completions of every program."""
    programs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert {p.stem for p in MAN.iterdir()} - {"uvs.toml"} == set(programs)
    forms = ("_{}", "{}.bash", "{}.fish")
    assert {p.name for p in COMPLETIONS.iterdir()} == {f.format(p) for p in programs for f in forms}
    listed = re.search(r"^foreach program : \[(.*)\]$", (ROOT / "meson.build").read_text(), re.M)
    assert listed
    assert set(re.findall(r"'(.*?)'", listed[1])) == set(programs)


# ---------------------------------------------------------------------------- completions


def bash(program: str, *words: str) -> set[str]:
    """What bash offers after `program words… <TAB>`."""
    script = """
        source "$0"
        COMP_WORDS=("$@" "") COMP_CWORD=$#
        "_${1/-/_}"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    file = COMPLETIONS / f"{program}.bash"
    done = subprocess.run(
        ["bash", "-c", script, file, program, *words], capture_output=True, text=True, check=True
    )
    return set(done.stdout.split())


@pytest.mark.parametrize("words", UVS, ids=lambda w: w or "uvs")
def test_bash_completes_commands_and_options_of_uvs(words: str) -> None:
    options, subcommands = UVS[words]
    offered = bash("uvs", *words.split())
    assert {o for o in offered if o.startswith("-")} == options | HELP
    if subcommands:
        assert {o for o in offered if not o.startswith("-")} == set(subcommands)


def test_bash_completes_the_options_of_uvsadm() -> None:
    first, later = bash("uvsadm"), bash("uvsadm", "-A")
    assert first & later == set()
    assert first | later == UVSADM


def test_zsh_completes_commands_and_options_of_uvs() -> None:
    text = (COMPLETIONS / "_uvs").read_text()
    every = set().union(*(options for options, _ in UVS.values()))
    assert set(re.findall(r"(?<![\w-])(--?\w[\w-]*)(?=[\[,}])", text)) == every | HELP
    for _, subcommands in UVS.values():
        assert [s for s in subcommands if not re.search(rf"\b{s}\b", text)] == []


def zsh(program: str) -> set[str]:
    """The options that are offered."""
    text = (COMPLETIONS / f"_{program}").read_text()
    return set(re.findall(r"(?<![\w(-])(--?\w[\w-]*)(?=[\[,}])", text))


def test_zsh_completes_the_options_of_uvsadm() -> None:
    assert zsh("uvsadm") == UVSADM


def fish(program: str) -> Iterator[tuple[str, set[str], str]]:
    """Each line: the subcommand for which it holds, its options, its arguments."""
    for line in (COMPLETIONS / f"{program}.fish").read_text().splitlines():
        if line.startswith(f"complete -c {program} "):
            where = re.search(r"-n '?(?:__uvs_in )?([\w -]+?)'? -", line)
            options = {f"-{s}" for s in re.findall(r" -s (\S+)", line)}
            options |= {f"--{long}" for long in re.findall(r" -l (\S+)", line)}
            arguments = re.search(r" -a '?([^']*?)'?(?: -d |$)", line)
            yield where[1] if where else "", options, arguments[1] if arguments and not options else ""


def test_fish_completes_commands_and_options_of_uvs() -> None:
    for words, (options, subcommands) in UVS.items():
        mine = [f for f in fish("uvs") if f[0] == (words or "__fish_use_subcommand")]
        assert set().union(*(o for _, o, _ in mine)) == options
        if subcommands:
            assert {a for _, _, arguments in mine for a in arguments.split()} == set(subcommands)


def test_fish_completes_the_options_of_uvsadm() -> None:
    assert set().union(*(o for _, o, _ in fish("uvsadm"))) == UVSADM


def test_the_readmes_figures_can_be_measured() -> None:
    """The table's program is compiled of sources that it names itself: here in little, where no limit is meant."""
    done = subprocess.run(
        [sys.executable, "tests/bench/table.py", "1000"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "look up, one by one" in done.stdout
