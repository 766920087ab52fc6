"""How the kernel reads what is written to a sysctl: numbers (kernel/sysctl.c), CPU lists (lib/bitmap.c)."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator

INT_MIN, INT_MAX, ULONG_MAX = -(2**31), 2**31 - 1, 2**64 - 1

_SPACE = b" \t\n\v\f\r\xa0"  # isspace()
_AFTER = b" \t\n"  # proc_wspace_sep
_NUMBER = re.compile(rb"-?(0[xX][0-9a-fA-F]+|0[0-7]*|[1-9][0-9]*)")
_NUMBER_MAX = 20  # characters; TMPBUFLEN less room for one more and the NUL


class TextError(ValueError):
    """What was written is refused; `errno` as write(2) has it."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.errno = code


def take_number(text: bytes, low: int = INT_MIN, high: int = INT_MAX) -> tuple[int, bytes]:
    """proc_get_long: the first number of `text` (decimal, 0x, octal), and what follows. TextError EINVAL."""
    text = text.lstrip(_SPACE)
    match = _NUMBER.match(text)
    if not match or match.end() > _NUMBER_MAX:
        raise TextError(errno.EINVAL, "no number")
    rest = text[match.end() :]
    if rest and rest[0] not in _AFTER:
        raise TextError(errno.EINVAL, "no number")
    digits = match[1]
    base = 16 if digits[:2] in (b"0x", b"0X") else 8 if digits.startswith(b"0") else 10
    number = int(digits, base)
    if match[0].startswith(b"-"):
        if high == ULONG_MAX:  # proc_doulongvec_minmax: not even -0
            raise TextError(errno.EINVAL, "negative")
        number = -number
    if not low <= number <= high:
        raise TextError(errno.EINVAL, "out of range")
    return number, rest


def take_numbers(text: bytes, values: tuple[int, ...]) -> tuple[tuple[int, ...], bool]:
    """proc_dointvec: the ints of `text` in place of the first of `values`; what is left of it is ignored.

    False: something was no int, or there was none at all. What stands before it is taken all the same.
    """
    new = list(values)
    for i in range(len(values)):
        text = text.lstrip(_SPACE)
        if not text:
            return tuple(new), i > 0
        try:
            new[i], text = take_number(text)
        except TextError:
            return tuple(new), False
    return tuple(new), True


def take_cpulist(text: bytes, size: int) -> frozenset[int]:
    """bitmap_parselist: `0-3,8`, `0-15:2/4` (2 of every 4), `all`, `N` (the last); empty is none.

    `size`: how many CPUs there may be. TextError EINVAL, ERANGE (no such CPU), EOVERFLOW.
    """
    found: set[int] = set()
    for region in re.split(rb"[,\s]+", text.strip(_SPACE + b",")):
        if region:
            found.update(_region(region, size))
    return frozenset(found)


_REGION = re.compile(rb"(?:(all)|(\d+|N)(?:-(\d+|N))?)(?::(\d+|N)/(\d+|N))?")


def _region(region: bytes, size: int) -> Iterator[int]:
    match = _REGION.fullmatch(region)
    if not match or (match[4] and not (match[1] or match[3])):
        raise TextError(errno.EINVAL, "no list of CPUs")

    def number(digits: bytes) -> int:
        value = size - 1 if digits == b"N" else int(digits)
        if value > 2**32 - 1:
            raise TextError(errno.EOVERFLOW, "no list of CPUs")
        return value

    first = 0 if match[1] else number(match[2])
    last = size - 1 if match[1] else number(match[3]) if match[3] else first
    used, group = (number(match[4]), number(match[5])) if match[4] else (last + 1, last + 1)
    if first > last or group == 0 or used > group:
        raise TextError(errno.EINVAL, "no list of CPUs")
    if last >= size:
        raise TextError(errno.ERANGE, "no such CPU")
    return (cpu for cpu in range(first, last + 1) if (cpu - first) % group < used)


def cpulist(cpus: Iterable[int]) -> str:
    """A set of CPUs as the kernel writes it (%*pbl)."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and runs[-1][1] == cpu - 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
