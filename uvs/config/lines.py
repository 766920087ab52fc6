"""Where in a TOML document something stands: tomllib does not say.

A scanner of documents that tomllib has accepted: it follows keys, tables and brackets, and reads no values.
"""

from __future__ import annotations

import re
from typing import Any

Path = tuple[str | int, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ATOM = re.compile(r"[^,\]}#\n]+")  # a number, a date, true, false
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")  # with comments
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:\\.|(?!""").)*"{3,5}' r"|'''(?:(?!''').)*'{3,5}" r'|"(?:\\.|[^"\\])*"' r"|'[^']*'", re.DOTALL
)


def lines(text: str) -> dict[Path, int]:
    """The line, from 1, of each table, key and element of an array of a document that tomllib accepts.

    A table stands where its header does, or its first key; an array of tables where its first one does.
    """
    return _Scanner(text).document()


def show(path: Path) -> str:
    """A path as it is told: `service[0].server[1].weight`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE.fullmatch(part) else '"' + part.replace('"', '\\"') + '"'
            text += f".{name}" if text else name
    return text


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.found: dict[Path, int] = {}
        self._sizes: dict[Path, int] = {}  # of arrays of tables
        self._line, self._counted = 1, 0

    def document(self) -> dict[Path, int]:
        table: Path = ()
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return self.found
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Path:
        array = self.text.startswith("[[", self.at)
        line = self._here()
        self.at += 2 if array else 1
        keys = self._keys()
        self.at += 2 if array else 1
        path: Path = ()
        for key in keys[:-1]:
            path = self._within((*path, key), line)
        path = (*path, keys[-1])
        self.found.setdefault(path, line)
        if array:
            self._sizes[path] = self._sizes.get(path, 0) + 1
            return self._within(path, line)
        return path

    def _within(self, path: Path, line: int) -> Path:
        """The table of that name; of an array of tables the last."""
        self.found.setdefault(path, line)
        if size := self._sizes.get(path):
            path = (*path, size - 1)
            self.found.setdefault(path, line)
        return path

    def _pair(self, table: Path) -> None:
        line = self._here()
        path = table
        for key in self._keys():
            path = (*path, key)
            self.found.setdefault(path, line)
        self.at += 1  # =
        self._skip(_SPACE)
        self._value(path)

    def _keys(self) -> list[str]:
        """A key with its dots, up to what follows it."""
        keys = []
        while True:
            self._skip(_SPACE)
            if self.text[self.at] in "\"'":
                keys.append(_unquoted(self._skip(_STRING)))
            else:
                keys.append(self._skip(_BARE))
            self._skip(_SPACE)
            if self.text[self.at] != ".":
                return keys
            self.at += 1

    def _value(self, path: Path) -> None:
        match self.text[self.at]:
            case "[":
                self._array(path)
            case "{":
                self._inline_table(path)
            case '"' | "'":
                self._skip(_STRING)
            case _:
                self._skip(_ATOM)

    def _array(self, path: Path) -> None:
        self.at += 1
        size = 0
        while True:
            self._skip(_BLANK)
            if self.text[self.at] == "]":
                break
            self.found[(*path, size)] = self._here()
            self._value((*path, size))
            size += 1
            self._skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
        self.at += 1

    def _inline_table(self, path: Path) -> None:
        self.at += 1
        while True:
            self._skip(_BLANK)
            if self.text[self.at] == "}":
                break
            self._pair(path)
            self._skip(_BLANK)
            if self.text[self.at] == ",":
                self.at += 1
        self.at += 1

    def _skip(self, what: re.Pattern[str]) -> str:
        found = what.match(self.text, self.at)
        if found is None:
            raise ValueError(f"line {self._here()} is not understood")
        self.at = found.end()
        return found[0]

    def _here(self) -> int:
        self._line += self.text.count("\n", self._counted, self.at)
        self._counted = self.at
        return self._line


def _unquoted(text: str) -> str:
    import tomllib

    key: dict[str, Any] = tomllib.loads(f"k = {text}")
    return str(key["k"])
