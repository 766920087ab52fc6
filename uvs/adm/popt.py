"""A command line read as libpopt reads it: that is what ipvsadm's grammar rests on.

Long options by their whole name, short ones in clusters, `-w=3` as well as `-w3` and `-w 3`, an optional
argument taken from the next word unless that begins with `-`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

NONE, REQUIRED, OPTIONAL = range(3)


class Option(NamedTuple):
    """An option; `name` is what it is called here, `argument` NONE, REQUIRED or OPTIONAL."""

    name: str
    long: str
    short: str = ""
    argument: int = NONE


class BadOption(Exception):
    """An option that cannot be read; the text names the word and what is wrong with it."""


class Known:
    """The options that there are, by their names."""

    def __init__(self, options: Iterable[Option]) -> None:
        self.long = {o.long: o for o in options}
        self.short = {o.short: o for o in options if o.short}


class Popt:
    """The options of a command line, one after the other; what is no option waits in `rest`."""

    def __init__(self, known: Known, words: list[str]) -> None:
        self._long, self._short = known.long, known.short
        self._words = words
        self._at = 0
        self._cluster = ""  # what is left of a word of short options
        self._ended = False
        self.word = ""  # the word the option stands in
        self.last = ""  # the last word that was used: the option's, or its argument's
        self.rest: list[str] = []

    def next(self) -> tuple[Option, str | None] | None:
        """The next option and its argument; None at the end. BadOption."""
        if self._cluster:
            return self._from_cluster()
        while self._at < len(self._words):
            word = self._words[self._at]
            self._at += 1
            if self._ended or not word.startswith("-") or word == "-":
                self.rest.append(word)
            elif word == "--":
                self._ended = True
            elif word.startswith("--"):
                self.word = self.last = word
                return self._from_long(word)
            else:
                self.word, self._cluster = word, word[1:]
                self.last = word
                return self._from_cluster()
        return None

    def _from_long(self, word: str) -> tuple[Option, str | None]:
        name, given, value = word[2:].partition("=")
        option = self._long.get(name)
        if option is None:
            raise BadOption(f"{word}: unknown option")
        if option.argument == NONE:
            if given:
                raise BadOption(f"{word}: option does not take an argument")
            return option, None
        return option, value if given else self._next_word(option)

    def _from_cluster(self) -> tuple[Option, str | None]:
        letter, left = self._cluster[0], self._cluster[1:]
        option = self._short.get(letter)
        if option is None:
            raise BadOption(f"{self.word}: unknown option")
        if option.argument == NONE:
            if left.startswith("="):
                raise BadOption(f"{self.word}: option does not take an argument")
            self._cluster = left
            return option, None
        self._cluster = ""
        return option, left.removeprefix("=") if left else self._next_word(option)

    def _next_word(self, option: Option) -> str | None:
        if self._at < len(self._words):
            word = self._words[self._at]
            if option.argument == REQUIRED or not word.startswith("-"):
                self._at += 1
                self.last = word
                return word
        if option.argument == REQUIRED:
            raise BadOption(f"{self.word}: missing argument")
        return None
