"""Lines of a TOML document: every path that tomllib yields is found where it was written."""

from __future__ import annotations

import json
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from uvs.config.lines import Path, lines

TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8) | st.sampled_from(
    ["#", "]", "}", "=", ",", "[[", "\\", '"', "'", '"""', "a.b", "{x = 1}", "# no comment"]
)
BLANKS = st.sampled_from(["", " ", "\t"])
ENDS = st.sampled_from(["", " # a comment", "# ] } \" '"])


class Writer:
    """Writes a document, and notes where what stands."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.text, self.line, self.names = draw, "", 1, 0
        self.found: dict[Path, int] = {}

    def put(self, text: str) -> None:
        self.text += text
        self.line += text.count("\n")

    def note(self, path: Path, line: int | None = None) -> None:
        self.found.setdefault(path, line or self.line)

    def key(self) -> tuple[str, str]:
        """A key that there is not yet, and how it is written."""
        self.names += 1
        name = f"k{self.names}" + self.draw(st.just("") | TEXTS)
        if self.draw(st.booleans()) and name.isascii() and name.isalnum():
            return name, name
        if "'" not in name and "\t" not in name and self.draw(st.booleans()):
            return name, f"'{name}'"
        return name, json.dumps(name, ensure_ascii=False)

    def string(self) -> str:
        text = self.draw(TEXTS)
        match self.draw(st.integers(0, 3)):
            case 0:
                return json.dumps(text, ensure_ascii=False)
            case 1 if "'" not in text:
                return f"'{text}'"
            case 2 if "'" not in text:
                return f"'''{text}\n{text}'''"
            case _:
                return '"""' + json.dumps(text, ensure_ascii=False)[1:-1] + '\n"" x\\\n' + '"""'

    def gap(self) -> None:
        if self.draw(st.booleans()):
            self.put(self.draw(st.sampled_from(["\n", "\n\n", " # ] a comment\n", " "])))

    def value(self, path: Path, depth: int = 0) -> None:
        match self.draw(st.integers(0, 5 if depth < 3 else 2)):
            case 0:
                self.put(self.draw(st.sampled_from(["1", "-2.5", "true", "1979-05-27 07:32:00", "0x1f"])))
            case 1 | 2:
                self.put(self.string())
            case 3 | 4:
                self.put("[")
                size = self.draw(st.integers(0, 3))
                for i in range(size):
                    self.gap()
                    self.note((*path, i))
                    self.value((*path, i), depth + 1)
                    self.gap()
                    if i < size - 1 or self.draw(st.booleans()):
                        self.put(",")
                self.gap()
                self.put("]")
            case _:
                self.put("{")
                for i in range(size := self.draw(st.integers(0, 3))):
                    self.pair(path, depth + 1)
                    self.put(", " if i < size - 1 else "")
                self.put("}")

    def pair(self, table: Path, depth: int = 0) -> None:
        path, written = table, []
        for _ in range(self.draw(st.sampled_from([1, 1, 1, 2]))):
            name, text = self.key()
            written.append(text)
            path = (*path, name)
            self.note(path)
        self.put(f"{self.draw(BLANKS)}.{self.draw(BLANKS)}".join(written) + self.draw(BLANKS) + "=")
        self.put(self.draw(BLANKS))
        self.value(path, depth)

    def pairs(self, table: Path) -> None:
        for _ in range(self.draw(st.integers(0, 3))):
            if self.draw(st.booleans()):
                self.put(self.draw(st.sampled_from(["\n", "  # a comment\n", "\t\n"])))
            self.put(self.draw(BLANKS))
            self.pair(table)
            self.put(self.draw(ENDS) + "\n")

    def document(self) -> None:
        self.pairs(())
        for _ in range(self.draw(st.integers(0, 3))):
            name, text = self.key()
            if self.draw(st.booleans()):
                self.note((name,))
                self.put(f"[{text}]{self.draw(ENDS)}\n")
                self.pairs((name,))
                continue
            for i in range(self.draw(st.integers(1, 3))):
                self.note((name,))
                self.note((name, i))
                self.put(f"[[ {text} ]]{self.draw(ENDS)}\n")
                self.pairs((name, i))
                inner, short = self.key()
                self.note((name, i, inner))
                if self.draw(st.booleans()):
                    self.put(f"[{text}.{short}]\n")
                    self.pairs((name, i, inner))
                else:
                    self.note((name, i, inner, 0))
                    self.put(f"[[{text} . {short}]]\n")
                    self.pairs((name, i, inner, 0))


def paths(value: Any, at: Path = ()) -> set[Path]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {at for _ in [0] if at} | {path for name, each in inside for path in paths(each, (*at, name))}


@given(st.data(), st.booleans())
def test_every_path_has_its_line(data, windows):
    writer = Writer(data.draw)
    writer.document()
    text = writer.text.replace("\n", "\r\n") if windows else writer.text
    assert paths(tomllib.loads(text)) == set(writer.found)
    assert lines(text) == writer.found
