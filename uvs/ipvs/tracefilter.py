"""What `uvs trace` is asked for, in pcap-filter's way: read, written out, made a program for the engine.

    client 10.9.0.0/16 and (verdict drop or not tcp port 80)

As there, `and` and `or` bind alike, from the left; `not` binds tighter (docs/reference/trace.md). Pure; a
text may come from anywhere, and is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import ip_address, ip_interface
from typing import NamedTuple

from uvs.engine.names import AF_INET, AF_INET6, Why
from uvs.engine.trace import DEPTH_MAX, PROGRAM_MAX, Cond, Op
from uvs.ipvs.ipproto import IPPROTO_ICMP, IPPROTO_ICMPV6, IPPROTO_SCTP, IPPROTO_TCP, IPPROTO_UDP

TEXT_MAX = 1000  # characters
NESTED_MAX = 32  # parentheses and `not`s within each other

PROTOCOLS = {
    "tcp": IPPROTO_TCP,
    "udp": IPPROTO_UDP,
    "sctp": IPPROTO_SCTP,
    "icmp": IPPROTO_ICMP,
    "icmp6": IPPROTO_ICMPV6,
}
FAMILIES = {"ip": AF_INET, "ip6": AF_INET6}
HOOKS = {"local_in": 1, "forward": 2, "local_out": 3}
VERDICTS = {"drop": 0, "accept": 1, "stolen": 2}
# Counted where no walk tells of it: before it begins, or after it has ended.
UNTOLD = frozenset({Why.NONE, Why.CUT, Why.SEND, Why.NO_NEIGHBOUR})
WHYS = {why.label: int(why) for why in Why if why not in UNTOLD}
ADDRESSED = {"client": Op.CLIENT, "service": Op.SERVICE, "server": Op.SERVER, "host": Op.HOST}
NAMED = {"hook": (Op.HOOK, HOOKS), "verdict": (Op.VERDICT, VERDICTS), "why": (Op.WHY, WHYS)}
NUMBERED = {"port": (Op.PORT, 1, 65535), "mark": (Op.MARK, 0, 0xFFFFFFFF)}
WORDS = (*ADDRESSED, *NUMBERED, "proto", *PROTOCOLS, *FAMILIES, *NAMED)
_JOINS = {"and": "and", "&&": "and", "or": "or", "||": "or"}
_NOTS = ("not", "!")
_TOKEN = re.compile(r"\(|\)|&&|\|\||!|[^\s()!&|]+|[&|]")


class FilterError(ValueError):
    """Says in one line which word is wrong, where it stands, and what may stand there."""


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition."""

    cond: Cond

    def __str__(self) -> str:
        return _written(self.cond)


@dataclass(frozen=True, slots=True)
class Not:
    """What the other one is not."""

    of: Expr

    def __str__(self) -> str:
        return f"not {_in_parentheses(self.of)}" if isinstance(self.of, Join) else f"not {self.of}"


@dataclass(frozen=True, slots=True)
class Join:
    """Both, or at least one of two: `word` is `and` or `or`."""

    word: str
    left: Expr
    right: Expr

    def __str__(self) -> str:
        left, right = self.left, self.right
        mixed = isinstance(left, Join) and left.word != self.word  # no need, but nobody has to know the rule
        first = _in_parentheses(left) if mixed else str(left)
        return f"{first} {self.word} {_in_parentheses(right) if isinstance(right, Join) else right}"


Expr = Condition | Not | Join


def parse(text: str) -> Expr | None:
    """The filter of a text; None: it is empty, so that everything is meant. FilterError."""
    if len(text) > TEXT_MAX:
        raise FilterError(f"a filter has at most {TEXT_MAX} characters, not {len(text)}")
    if not text.strip():
        return None
    found = _Parser(text).whole()
    program(found)  # is it within bounds?
    return found


def program(expr: Expr | None) -> list[Cond]:
    """What the engine evaluates: postfix. FilterError: it is too long."""
    made = list(_postfix(expr)) if expr else []
    depth = most = 0
    for cond in made:
        depth += 0 if cond.op == Op.NOT else -1 if cond.op in (Op.AND, Op.OR) else 1
        most = max(most, depth)
    if len(made) > PROGRAM_MAX:
        raise FilterError(
            f"the filter is too long: {len(made)} conditions, and, or and not; at most {PROGRAM_MAX}"
        )
    if most > DEPTH_MAX:
        raise FilterError(
            f"the filter is nested too deeply: more than {DEPTH_MAX} conditions wait for others"
        )
    return made


def _postfix(expr: Expr) -> Iterator[Cond]:
    if isinstance(expr, Condition):
        yield expr.cond
    elif isinstance(expr, Not):
        yield from _postfix(expr.of)
        yield Cond(Op.NOT)
    else:
        yield from _postfix(expr.left)
        yield from _postfix(expr.right)
        yield Cond(Op.AND if expr.word == "and" else Op.OR)


# ------------------------------------------------------------------------------- written out


def _in_parentheses(expr: Expr) -> str:
    return f"({expr})"


def _name_of(table: dict[str, int], number: int) -> str:
    return next(name for name, value in table.items() if value == number)


def _written(cond: Cond) -> str:
    op, number = cond.op, cond.number
    for word, (of, names) in NAMED.items():
        if op == of:
            return f"{word} {_name_of(names, number)}"
    for word, (of, _, _) in NUMBERED.items():
        if op == of:
            return f"{word} {number}"
    if op == Op.PROTO:
        return _name_of(PROTOCOLS, number) if number in PROTOCOLS.values() else f"proto {number}"
    if op == Op.FAMILY:
        return _name_of(FAMILIES, number)
    word = next(word for word, of in ADDRESSED.items() if of == op)
    address, whole = str(ip_address(cond.addr)), len(cond.addr) * 8
    if cond.port:
        return f"{word} [{address}]:{cond.port}" if ":" in address else f"{word} {address}:{cond.port}"
    return f"{word} {address}" if cond.bits == whole else f"{word} {address}/{cond.bits}"


# ------------------------------------------------------------------------------- read


class _Token(NamedTuple):
    text: str
    at: int  # column, from 1 on


class _Parser:
    def __init__(self, text: str) -> None:
        self._tokens = [_Token(m[0], m.start() + 1) for m in _TOKEN.finditer(text)]
        self._next = 0
        self._nested = 0

    def whole(self) -> Expr:
        found = self._joined()
        if token := self._peek():
            if token.text == ")":
                raise _wrong(token, "there is no ( that it closes")
            raise _wrong(token, "`and` or `or` is missing before it")
        return found

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, what: str) -> _Token:
        token = self._peek()
        if token is None:
            last = self._tokens[-1].text
            raise FilterError(f"the filter ends too early: {what} is missing after `{last}`")
        self._next += 1
        return token

    def _joined(self) -> Expr:
        found = self._term()
        while (token := self._peek()) and (word := _JOINS.get(token.text.lower())):
            self._next += 1
            found = Join(word, found, self._term())
        return found

    def _term(self) -> Expr:
        token = self._take("a condition")
        self._nested += 1
        if self._nested > NESTED_MAX:
            raise _wrong(token, f"more than {NESTED_MAX} parentheses and `not`s within each other")
        try:
            if token.text.lower() in _NOTS:
                return Not(self._term())
            if token.text != "(":
                return self._primitive(token)
            found = self._joined()
            end = self._take("`)`")
            if end.text != ")":
                raise _wrong(end, "`and`, `or` or `)` is missing before it")
            return found
        finally:
            self._nested -= 1

    def _primitive(self, token: _Token) -> Expr:
        word = token.text.lower()
        if word in PROTOCOLS or word in FAMILIES:
            known = word in PROTOCOLS
            cond = Cond(Op.PROTO, PROTOCOLS[word]) if known else Cond(Op.FAMILY, FAMILIES[word])
            following = self._peek()
            if following and following.text.lower() in ("port", "host"):  # `tcp port 80`
                return Join("and", Condition(cond), self._primitive(self._take("a condition")))
            return Condition(cond)
        if word in ADDRESSED:
            return Condition(_addressed(ADDRESSED[word], word, self._take(f"the address of `{word}`")))
        if word in NAMED:
            op, names = NAMED[word]
            return Condition(Cond(op, _named(names, word, self._take(f"the name of `{word}`"))))
        if word in NUMBERED:
            op, least, most = NUMBERED[word]
            return Condition(Cond(op, _number(self._take(f"the number of `{word}`"), word, least, most)))
        if word == "proto":
            value = self._take("the name or number of `proto`")
            number = PROTOCOLS.get(value.text.lower())
            return Condition(Cond(Op.PROTO, _number(value, word, 0, 255) if number is None else number))
        raise _wrong(token, _instead(word, WORDS))


def _wrong(token: _Token, why: str) -> FilterError:
    shown = token.text if len(token.text) <= 40 else f"{token.text[:37]}..."
    shown = shown if shown.isprintable() else ascii(shown)
    return FilterError(f"column {token.at} of the filter, `{shown}`: {why}")


def _instead(word: str, words: tuple[str, ...]) -> str:
    near = get_close_matches(word, words, 1)
    return f"did you mean `{near[0]}`?" if near else f"one of {', '.join(words)} is wanted"


def _number(token: _Token, word: str, least: int, most: int) -> int:
    try:
        if token.text.isascii() and least <= (number := int(token.text, 0)) <= most:
            return number
    except ValueError:
        pass
    raise _wrong(token, f"{word} takes a number, {least}..{most}")


def _named(names: dict[str, int], word: str, token: _Token) -> int:
    given = token.text.lower()
    if given in names:
        return names[given]
    if word == "why" and given in {why.label for why in UNTOLD}:
        raise _wrong(token, "no walk ends so; `uvs trace --summary` counts it")
    near = get_close_matches(given, names, 1)
    more = f"did you mean `{near[0]}`?" if near else f"one of {', '.join(names)}"
    raise _wrong(token, f"no {'reason' if word == 'why' else word} has this name: {more}")


def _addressed(op: Op, word: str, token: _Token) -> Cond:
    """ADDR, ADDR/LEN, ADDR:PORT, [ADDR]:PORT."""
    text, port = token.text, 0
    try:
        if (match := re.fullmatch(r"\[([^\]]*)\]:(\d{1,5})", text)) or (
            match := re.fullmatch(r"([\d.]+):(\d{1,5})", text)
        ):
            text, port = match[1], int(match[2])
            if op == Op.HOST or not 1 <= port <= 65535:
                raise ValueError
        if "%" in text or (port and "/" in text):
            raise ValueError
        network = ip_interface(text).network
    except ValueError:
        more = "" if op == Op.HOST else ", ADDRESS:PORT, [IPv6 ADDRESS]:PORT"
        raise _wrong(token, f"{word} takes ADDRESS, ADDRESS/LENGTH{more}") from None
    address = network.network_address.packed
    return Cond(op, 0, address, network.prefixlen, port)
