"""The course: its pictures, its last lesson's table beside the code, and that nothing in it is left untyped."""

from __future__ import annotations

import ast
import itertools
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from support import session

from uvs.cli import main
from uvs.netfilter.iptables import __doc__ as IPTABLES
from uvs.netfilter.nft import PRIORITIES

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs/tutorial"
PAGES = sorted(TUTORIAL.glob("*.md"))
LESSONS = sorted(TUTORIAL.glob("[0-9]-*.md"))
PICTURES = sorted(TUTORIAL.rglob("*.svg"))
LAST = (TUTORIAL / "8-reading-ip_vs_in.md").read_text()
SVG = "{http://www.w3.org/2000/svg}"
CHAINS = {"LOCAL_IN": "input", "FORWARD": "forward", "LOCAL_OUT": "output"}


def rows(heading: str) -> list[list[str]]:
    """The cells of the table of the last lesson whose head begins so, without head and rule."""
    table = re.search(rf"^\| {re.escape(heading)}.*\n\|[-|]*\n((?:\|.*\n)+)", LAST, re.M)
    assert table, heading
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table[1].splitlines()]


def number(text: str) -> int:
    """A number with a typographer's minus."""
    return int(text.replace("−", "-"))


# ---------------------------------------------------------------------------- lessons


def test_the_lessons_are_eight_and_each_leads_to_the_next() -> None:
    assert [path.name[0] for path in LESSONS] == list("12345678")
    index = (TUTORIAL / "README.md").read_text()
    assert re.findall(r"\]\((\d-[^)]*)\)", index) == [path.name for path in LESSONS]
    for here, following in itertools.pairwise(LESSONS):
        assert re.search(rf"^Next: \[.*\]\({re.escape(following.name)}\)$", here.read_text(), re.M), here.name


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_has_what_belongs_to_it(path: Path) -> None:
    """An aim, a picture, sessions in labs of its own, questions with answers, most of them to be checked."""
    text = path.read_text()
    assert "After this lesson you can\n\n- " in text
    assert re.search(r"^!\[.{40,}\]\(pictures/\w+\.svg\)$", text, re.M)
    first = next(step for steps in session.blocks(text) for step in steps if step.prompt != "$")
    assert text.index("$ uvs lab up") < text.index(f"{first.prompt} {first.command}")
    questions = text.partition("\n## Questions\n")[2]
    asked = re.findall(r"^\*\*(\d)\.\*\* ", questions, re.M)
    assert asked == [str(n + 1) for n in range(len(asked))]
    assert len(asked) >= 4
    answers = re.findall(r"<details><summary>Answer</summary>\n\n(.*?)\n\n</details>", questions, re.S)
    assert len(answers) == len(asked)
    assert sum("```console" in answer for answer in answers) * 2 >= len(asked)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_every_command_is_one_that_is_played(path: Path) -> None:
    """By tests/net/test_sessions.py, which takes `console` blocks; what sets uvs up has tests of its own."""
    fences = re.findall(r"^ *```([^\n]*)\n(.*?)^ *```$", path.read_text(), re.M | re.S)
    others = {body for kind, body in fences if kind != "console"}
    assert others <= {"scripts/demo\n", "scripts/demo --mode dr -6\n", ". .venv/bin/activate\n"}


def test_lesson_3_answers_why_the_vip_is_on_lo() -> None:
    """The walk that it ends with: by direct routing the destination stays, by NAT it does not."""
    questions = (TUTORIAL / "3-direct-routing.md").read_text().partition("\n## Questions\n")[2]
    walks = {
        method: "\n".join(step.lines)
        for steps in session.blocks(questions)
        for step in steps
        for method in ("table", "nat")
        if step.command.startswith(f"uvs walk --services {method} ")
    }
    assert re.search(r"sent +TCP 192\.0\.2\.2:1024 > 192\.0\.2\.100:80 S", walks["table"])
    assert "IPv4      dst" not in walks["table"]
    assert "IPv4      dst       192.0.2.100 → 198.51.100.11" in walks["nat"]


# ---------------------------------------------------------------------------- pictures


def test_every_picture_is_shown() -> None:
    shown = {name for path in PAGES for name in re.findall(r"\]\((pictures/[^)]*)\)", path.read_text())}
    assert shown == {str(path.relative_to(TUTORIAL)) for path in PICTURES}


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_whole_and_can_be_heard(path: Path) -> None:
    """Well-formed, with title and description, colours for both schemes, nothing from elsewhere or outside its frame."""
    root = ElementTree.parse(path).getroot()
    assert root.tag == f"{SVG}svg"
    assert root.get("role") == "img"
    named = {root.find(f"*[@id='{word}']") for word in (root.get("aria-labelledby") or "").split()}
    assert {element.tag.removeprefix(SVG) for element in named if element is not None} == {"title", "desc"}
    assert all(len(element.text or "") > 10 for element in named if element is not None)
    text = path.read_text()
    assert "@media (prefers-color-scheme: dark)" in text
    assert re.findall(r'(?:href="|url\()(?!#)', text) == []
    width, height = int(root.get("width", "0")), int(root.get("height", "0"))
    assert root.get("viewBox") == f"0 0 {width} {height}"
    for element in root.iter(f"{SVG}text"):
        assert 0 < float(element.get("x", "-1")) < width, element.text
        assert 0 < float(element.get("y", "-1")) < height, element.text


@pytest.mark.parametrize(
    ("picture", "lesson"), [("nat", "2-nat"), ("dr", "3-direct-routing"), ("tun", "4-tunnelling")]
)
def test_a_pictures_packets_are_those_of_the_lab(picture: str, lesson: str) -> None:
    """Each `from → to` in it is printed by `uvs lab mode` in the lesson, in that order."""
    root = ElementTree.parse(TUTORIAL / f"pictures/{picture}.svg").getroot()
    texts = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    drawn = [re.sub(r" (out|in)side$", "", text) for text in texts if " → " in text]
    steps = [step for steps in session.blocks((TUTORIAL / f"{lesson}.md").read_text()) for step in steps]
    measured = "\n".join(next(step.lines for step in steps if step.command.startswith("uvs lab mode")))
    assert len(drawn) >= 6
    at = 0
    for pair in drawn:
        at = measured.find(pair, at)
        assert at >= 0, f"{pair}: not measured, or not there"


def test_the_picture_of_the_hooks_has_the_tables_priorities() -> None:
    root = ElementTree.parse(TUTORIAL / "pictures/hooks.svg").getroot()
    drawn, hook = set(), ""
    for element in root.iter(f"{SVG}text"):
        text = element.text or ""
        if text in CHAINS:
            hook = text
        elif found := re.fullmatch(r"(−?\d+) +(ip_vs_\w+)", text):
            drawn.add((hook, number(found[1]), found[2]))
    assert drawn == {
        (hook, number(at), handler.strip("`")) for hook, at, handler, _ in rows("hook | priority")
    }


# ---------------------------------------------------------------------------- the last lesson's tables


def test_the_priorities_are_those_of_our_rules() -> None:
    """One chain for the handlers of a hook, at the priority of one of them; with iptables in `security`."""
    kernels = {hook: [] for hook in CHAINS}  # type: dict[str, list[int]]
    for hook, at, _, _ in rows("hook | priority"):
        kernels[hook].append(number(at))
    ours = {hook: number(nft) for hook, nft, _ in rows("hook | nft")}
    assert ours == {hook: PRIORITIES[chain] for hook, chain in CHAINS.items()}
    for hook, at in ours.items():
        assert at in kernels[hook]
        assert sorted(kernels[hook]) == kernels[hook] == list(range(kernels[hook][0], kernels[hook][0] + 2))
    assert {iptables for _, _, iptables in rows("hook | nft")} == {
        "INPUT of `security`", "FORWARD of `security`", "OUTPUT of `security`"
    }  # fmt: skip
    assert IPTABLES
    assert "the `security` table" in IPTABLES


def test_the_handlers_run_in_the_order_of_their_priorities(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A packet of each hook that all its handlers let pass, and ICMP at FORWARD, which the first one looks at."""
    services = tmp_path / "services"
    services.write_text("-A -t 192.0.2.100:80 -s rr\n")
    packets = [
        f'{hook}: IP(src="192.0.2.2", dst="192.0.2.100")/{inside}'
        for hook, inside in {
            "LOCAL_IN": "TCP(sport=1024, dport=81)",
            "FORWARD": 'ICMP(type=3, code=1)/IP(src="192.0.2.100", dst="192.0.2.2")/TCP(sport=81, dport=1024)',
            "LOCAL_OUT": "TCP(sport=1024, dport=81)",
        }.items()
    ]
    assert main(["walk", "--services", str(services), "--json", *packets]) == 0
    walks = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for walk in walks:
        passed = [
            s["function"] for s in walk["steps"] if s["depth"] == 0 and s["function"].startswith("ip_vs")
        ]
        told = [h.strip("`") for hook, _, h, _ in rows("hook | priority") if hook == walk["hook"]]
        assert passed == told, walk["hook"]
    assert [walk["hook"] for walk in walks] == list(CHAINS)


FUNCTIONS = rows("here | function")


@pytest.mark.parametrize("row", FUNCTIONS, ids=lambda row: row[1].strip("`"))
def test_our_functions_are_where_the_table_says(row: list[str]) -> None:
    file, function = row[0].strip("`"), row[1].strip("`")
    text = (ROOT / file).read_text()
    if file.endswith(".c"):
        assert re.search(rf"^\w[\w *]*[ *]{function}\(", text, re.M), f"{file} has no {function}"
        return
    body: list[ast.stmt] = ast.parse(text).body
    for word in function.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [node for node in body if isinstance(node, kinds) and node.name == word]
        assert found, f"{file} has no {function}"
        body = found[0].body


def test_the_table_of_functions_tells_hook_and_priority() -> None:
    """The handlers with those of the first table; all others by one of ours that calls them."""
    registered: dict[str, set[tuple[str, int]]] = {}
    for hook, at, handler, _ in rows("hook | priority"):
        registered.setdefault(handler.strip("`"), set()).add((hook, number(at)))
    told = {}
    known = {function.strip("`") for _, function, *_ in FUNCTIONS}
    for file, function, kernel, there, where in FUNCTIONS:
        assert re.fullmatch(r"`ip_vs_\w+\.c`", kernel), file
        assert re.fullmatch(r"`\w+`(, `\w+`)*", there), function
        if places := re.findall(r"(LOCAL_IN|FORWARD|LOCAL_OUT) (−?\d+)", where):
            told[function.strip("`")] = {(hook, number(at)) for hook, at in places}
        else:
            assert set(re.findall(r"`(\w+)`", where)) <= known, where
    assert told == registered
